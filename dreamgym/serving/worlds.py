"""What a server plays: the dream of a run, or a real environment.

run directory or environment -> World: its tasks by split, and how an environment for
one session is made
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, limits, registry, restarting
from dreamgym.envs.dream import DreamEnv, thoughts
from dreamgym.envs.workers.env import process_env
from dreamgym.evaluation.comparisons.episode_comparison import recalled_view
from dreamgym.evaluation.state_text import as_lines
from dreamgym.run.versions import VERSION
from dreamgym.serving.dream import Dream
from worldmodel.data.records import Task
from worldmodel.experience.base import ExperienceModel

SEEDS = 10_000_000
"""The number of seeds of a split, where an environment lists no tasks."""


class World(NamedTuple):
    """An environment to be played in many sessions at once."""

    name: str
    description: str
    version: str
    max_steps: int
    tasks: Mapping[str, Sequence[Task]]
    """The tasks of each split that has some; empty where a task is a seed."""
    make: Callable[[], gymnasium.Env]
    """Return an environment for one session."""
    facts: Callable[[gymnasium.Env], dict[str, Any]]
    """Return what is known of the last step besides Gymnasium's five values."""
    recalled: Callable[[gymnasium.Env], list[dict[str, Any]]]
    """Return the demonstrations behind the last answer, the most similar first."""
    error: Callable[[gymnasium.Env], str | None]
    """Return why the last step broke the episode off, if it did."""

    def splits(self) -> list[str]:
        """Return the splits that have tasks."""
        return list(self.tasks) or list(base.SPLITS)

    def task(self, split: str, *, seed: int, index: int | None) -> Task:
        """Return the task of this index in a split, or one drawn by the seed.

        Raises:
          ValueError: there is no such split or index.
        """
        if split not in self.splits():
            raise ValueError(f"no tasks of split {split!r}; have {self.splits()}")
        if not self.tasks:
            number = seed % SEEDS if index is None else index % SEEDS
            return seed_task(self.name, split, number)
        tasks = self.tasks[split]
        if index is None:
            index = int(np.random.default_rng(seed).integers(len(tasks)))
        if index >= len(tasks):
            raise ValueError(
                f"split {split!r} has tasks 0 to {len(tasks) - 1}, got {index}"
            )
        return tasks[index]


def seed_task(name: str, split: str, number: int) -> Task:
    """Return a task that is a seed; those of two splits never meet."""
    seed = SEEDS * base.SPLITS.index(split) + number
    return Task(
        id=f"{name}-{split}-{number}",
        instruction="",
        env=name,
        family=name,
        split=split,
        options={"seed": seed},
    )


def dream_world(dream: Dream, model: ExperienceModel) -> World:
    """Return the world of a dream, whose sessions ask `model`."""
    tasks: dict[str, list[Task]] = {}
    for task in dream.tasks:
        tasks.setdefault(task.split, []).append(task)

    def facts(env: gymnasium.Env) -> dict[str, Any]:
        assert isinstance(env, DreamEnv)
        return thoughts(env.exchange)

    def recalled(env: gymnasium.Env) -> list[dict[str, Any]]:
        assert isinstance(env, DreamEnv)
        if env.exchange is None:
            return []
        rows = dream.recall(env.exchange.query)
        return [recalled_view(score, t, as_lines) for score, t in rows]

    def error(env: gymnasium.Env) -> str | None:
        assert isinstance(env, DreamEnv)
        return env.error

    return World(
        name=dream.name,
        description=f"A dream: the experience model of the run {dream.name} answers "
        "the agent's actions. It is no real environment, and may be wrong.",
        version=dream.version,
        max_steps=dream.max_steps,
        tasks=tasks,
        make=lambda: dream.env(model),
        facts=facts,
        recalled=recalled,
        error=error,
    )


def real_world(spec: str, *, processes: bool = False) -> World:
    """Return the world of a real environment.

    With `processes` the environment of each session has a process of its own, which is
    ended where a reset or step takes too long or crashes. Its tasks are listed and its
    step limit is found out once, without a step.

    Raises:
      ValueError: there is no environment of this name.
    """
    seconds = EnvConfig().start_seconds
    make: Callable[[str], gymnasium.Env] = (
        functools.partial(process_env, start_seconds=seconds)
        if processes
        else functools.partial(registry.start, seconds=seconds)
    )
    with contextlib.closing(restarting.open_env(spec, make=make)) as env:
        lister, listed = base.as_tasks(env), dict[str, list[Task]]()
        for split in base.SPLITS:
            if lister is None:
                break
            rows = base.guarded(env, functools.partial(lister.tasks, split))
            if isinstance(rows, base.EnvironmentFailure):
                raise ValueError(
                    f"environment {spec!r}: tasks({split!r}) failed: {rows.reason} "
                    f"({rows.place})"
                )
            listed[split] = list(rows or ())
        tasks = {split: rows for split, rows in listed.items() if rows}
        plans = base.tasks_of(env, spec, "train", limits.PLANS)
        max_steps = limits.step_limit(env, plans).steps
    return World(
        name=Path(spec).name or spec,
        description=f"The real environment {spec}.",
        version=VERSION,
        max_steps=max_steps,
        tasks=tasks,
        make=lambda: restarting.open_env(spec, make=make),
        facts=lambda _: {},
        recalled=lambda _: [],
        error=lambda _: None,
    )
