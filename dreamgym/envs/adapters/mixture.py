"""Several environments as one, in given proportions: "mix:A,B*2".

One policy is then trained on all of them, and its success in the test games is the mean
of its success in each, weighted as here (J = sum of w_e J_e), where their number is a
multiple of the sum of the weights. Tasks are those of the environments in turn, two of
B after each of A. Their families begin with the name of the environment, so that every
table by family shows each of them.
"""

import copy
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np

from dreamgym.envs import base, limits, registry
from dreamgym.envs.base import TextEnv
from dreamgym.envs.failures import deadlines_of, declared_copies
from worldmodel.data.records import Task

MAX_WEIGHT = 100
SEEDS = 2000
"""Tasks of one environment and split, at most."""
_PART = re.compile(r"(?P<spec>.+?)(?:\*(?P<weight>\d+))?")


class Part(NamedTuple):
    """An environment of a mixture, by its name, and how many of its tasks in turn."""

    spec: str
    weight: int


class MixtureEnv(TextEnv):
    """Environments as one: each task says by its options which it is of."""

    parts: ClassVar[tuple[Part, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self._envs: dict[int, gymnasium.Env] = {}
        self._active, self._steps, self._open = 0, 0, False

    def _env(self, number: int) -> gymnasium.Env:
        if number not in self._envs:
            self._envs[number] = registry.make(self.parts[number].spec)
        return self._envs[number]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]` in its environment; without one, draw a train task.

        Raises:
          ValueError: the task's options name none of the environments.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = base.task_to_start(self, options)
            seed = base.seed_of(task) if base.seed_of(task) is not None else seed
        self._open = False  # also where the reset below fails
        self._active, self._steps = self._number_of(task), 0
        options = {"task": _inner_task(task)}
        start = self._env(self._active).reset(seed=seed, options=options)
        self._open = True
        return start

    def seed_anew(self, seed: int) -> None:
        """Seed the generators of the environment that plays (base.seed_anew)."""
        base.seed_anew(self._env(self._active), seed)

    def step_limit_of(self, task: Task) -> int | None:
        """Return the step limit that the environment of a task declares, or None.

        Raises:
          ValueError: the task's options name none of the environments.
        """
        return limits.declared_step_limit(self._env(self._number_of(task)))

    def _number_of(self, task: Task) -> int:
        specs = [part.spec for part in self.parts]
        spec = task.options.get("env")
        if spec not in specs:
            raise ValueError(
                f"task {task.id!r}: expected an option 'env' of {specs}, got {spec!r}"
            )
        return specs.index(spec)

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take one action in the environment of the task.

        Raises:
          RuntimeError: there is no running episode.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        env = self._env(self._active)
        obs, reward, terminated, truncated, info = env.step(action)
        self._steps += 1
        # A short game is not played on because another one of the mixture is longer.
        limit = _declared_limit(env)
        truncated = truncated or (not terminated and self._steps >= limit)
        self._open = not (terminated or truncated)
        return obs, reward, terminated, truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of all environments in turn, each as often as its weight.

        The list ends when the tasks of one environment run out: the rest would be in
        other proportions.

        Raises:
          ValueError: an environment has fewer tasks than its weight.
        """
        lists = [
            base.tasks_of(self._env(i), part.spec, split, SEEDS)
            for i, part in enumerate(self.parts)
        ]
        for part, tasks in zip(self.parts, lists, strict=True):
            if len(tasks) < part.weight:
                raise ValueError(
                    f"{registry.MIX}...: {part.spec} has {len(tasks)} tasks of split "
                    f"{split!r}, and a weight of {part.weight}"
                )
        rounds = min(
            len(tasks) // part.weight
            for part, tasks in zip(self.parts, lists, strict=True)
        )
        return [
            _outer_task(part, task)
            for number in range(rounds)
            for part, tasks in zip(self.parts, lists, strict=True)
            for task in tasks[number * part.weight : (number + 1) * part.weight]
        ]

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs.values():
            env.close()


# Capabilities are methods that a mixture has or has not (envs/base.py).


def _expert(self: MixtureEnv) -> Sequence[str]:
    """Return a plan of the task's environment; empty where that has no expert."""
    expert = base.as_expert(self._env(self._active))
    return [] if expert is None else expert.expert()


def _valid_actions(self: MixtureEnv) -> Sequence[str]:
    """Return the valid actions of the task's environment."""
    lister = base.as_valid_actions(self._env(self._active))
    assert lister is not None
    return lister.valid_actions()


def _variations(
    self: MixtureEnv, task: Task, rng: np.random.Generator
) -> Iterator[Task]:
    """Yield variations of a task by its environment; none where it has none."""
    number = self._number_of(task)
    varied = base.as_variations(self._env(number))
    if varied is not None:
        for variation in varied.variations(_inner_task(task), rng):
            outer = _outer_task(self.parts[number], variation)
            yield dataclasses.replace(outer, lineage=(*task.lineage, task.id))


def _fork(self: MixtureEnv) -> MixtureEnv:
    """Return a mixture that goes on from this moment of the task's environment."""
    forkable = base.as_forkable(self._env(self._active))
    assert forkable is not None
    fork = copy.copy(self)
    fork._envs = {self._active: forkable.fork()}
    return fork


def mixture_class(spec: str) -> type[MixtureEnv]:
    """Return the class of "mix:A,B*2", made anew without arguments.

    It has an expert and variations if one of the environments has, and valid actions
    and forks if all have. It is deterministic if all are. It has no `render_state`: a
    state alone does not say which of the environments it is of.

    Raises:
      ValueError: there is no part, a weight is not in 1..MAX_WEIGHT, one is named
        twice, or an environment cannot be made.
    """
    parts = tuple(map(_part, _names(spec.removeprefix(registry.MIX))))
    specs = [part.spec for part in parts]
    if len(set(specs)) < len(specs):
        raise ValueError(f"environment {spec!r}: expected each one once")
    envs = [registry.make(name) for name in specs]
    try:
        members = _members(envs)
    finally:
        for env in envs:
            env.close()
    environment: Any = type("MixtureEnv", (MixtureEnv,), {"parts": parts, **members})
    return environment


def _names(text: str) -> list[str]:
    """Return the parts between commas, those within brackets left out."""
    names, depth = [""], 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and depth <= 0:
            names.append("")
        else:
            names[-1] += character
    return names


def _part(text: str) -> Part:
    match = _PART.fullmatch(text.strip())
    if match is None or match["spec"].startswith(registry.MIX):
        raise ValueError(
            f"{registry.MIX}...: expected NAME or NAME*WEIGHT, got {text!r}"
        )
    weight = int(match["weight"] or 1)
    if not 1 <= weight <= MAX_WEIGHT:
        raise ValueError(
            f"{registry.MIX}...: expected a weight of 1 to {MAX_WEIGHT}, got {text!r}"
        )
    return Part(match["spec"], weight)


def _members(envs: Sequence[gymnasium.Env]) -> dict[str, Any]:
    """Return what the class of a mixture of these environments has."""
    step_limits = [_declared_limit(env) for env in envs]
    members: dict[str, Any] = {
        "deterministic": _joint_determinism(map(base.declared_determinism, envs)),
        "plans_from_any_state": all(map(base.plans_from_any_state, envs)),
    }
    if max(step_limits) < math.inf:
        members["max_episode_steps"] = int(max(step_limits))
    copies = [declared_copies(env) for env in envs]
    if limits_of_copies := [count for count in copies if count is not None]:
        members["max_copies"] = min(limits_of_copies)
    deadlines = [deadlines_of(env) for env in envs]
    members["reset_seconds"] = _longest([d.reset for d in deadlines])
    members["step_seconds"] = _longest([d.step for d in deadlines])
    if any(base.as_expert(env) for env in envs):
        members["expert"] = _expert
    if any(base.as_variations(env) for env in envs):
        members["variations"] = _variations
    if all(base.as_valid_actions(env) for env in envs):
        members["valid_actions"] = _valid_actions
    if all(base.as_forkable(env) for env in envs):
        members["fork"] = _fork
    return members


def _joint_determinism(flags: Iterable[bool | None]) -> bool | None:
    """Return whether all are deterministic, None if that of one is not known."""
    flags = list(flags)
    if None in flags and False not in flags:
        return None
    return all(flags)


def _longest(seconds: Sequence[float]) -> float:
    """Return the longest of several deadlines, of which 0 is none."""
    return 0.0 if 0 in seconds else max(seconds)


def _declared_limit(env: gymnasium.Env) -> float:
    limit = limits.declared_step_limit(env)
    return math.inf if limit is None else float(limit)


def _outer_task(part: Part, task: Task) -> Task:
    """Return a task of an environment as one of the mixture."""
    inner: dict[str, Any] = {"id": task.id, "env": task.env, "family": task.family}
    inner["options"] = dict(task.options)
    family = "" if part.spec.endswith(task.family) else task.family
    return dataclasses.replace(
        task,
        id=f"{part.spec}/{task.id}",
        env="mix",
        family=f"{part.spec}/{family}" if family else part.spec,
        options={**task.options, "env": part.spec, "inner": inner},
    )


def _inner_task(task: Task) -> Task:
    """Return a task of the mixture as one of its environment."""
    return dataclasses.replace(task, **task.options["inner"])
