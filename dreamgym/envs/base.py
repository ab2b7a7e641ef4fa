"""A text environment: Gymnasium's interface, its optional capabilities, its failures.

An environment is a `gymnasium.Env` over text: `reset(seed=, options={"task": Task})`
and the five-value `step`. Every capability beyond that is a protocol of one method:

  HasTasks         tasks(split) -> the tasks of a split
  HasExpert        expert() -> actions that win from the start of the episode
  HasValidActions  valid_actions() -> actions that the environment would take now
  HasVariations    variations(task, rng) -> new tasks like a train task, of no split
  Forkable         fork() -> another environment that continues from this moment
  HasRender        render_state(state) -> the text in which a person sees a state

`as_tasks(env)`, `as_expert(env)` and so on return what has the method, or None; they
also find it behind Gymnasium wrappers. An environment with random transitions sets
`deterministic = False`, one whose expert plans from the present state at any time
`plans_from_any_state = True`.

`info` may hold `rewards` and `costs` (dicts of numbers), `success`, `invalid`,
`reveals` and `instruction` (worldmodel.data.records). `begin` adds `tools`, a text, to
the instruction, and `tool_schemas` and `calls` to the options of a task without them.
Environments may raise anything: `guarded` (failures.py) is the one place to catch it.
"""

import copy
import dataclasses
import functools
import json
import numbers
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import numpy as np

from dreamgym.envs.failures import EnvironmentFailure, declared_flag, guarded
from dreamgym.envs.spaces import MAX_CHARACTERS, AnyText
from worldmodel.data.records import SPLITS, State, Task, Transition, lines
from worldmodel.text.tools.tool_schemas import complete_options


class TextTooLong(ValueError):
    """A text of an environment has more than MAX_CHARACTERS characters."""


class TextEnv(gymnasium.Env[str, str]):
    """A base class for text environments that sets their two spaces.

    They are made when first asked for: a subclass need not call `super().__init__()`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    @functools.cached_property
    def observation_space(self) -> AnyText:
        """Texts of any length that an observation may have."""
        return AnyText()

    @functools.cached_property
    def action_space(self) -> AnyText:
        """Texts of at most 200 characters."""
        return AnyText(200)


# --- optional capabilities ---------------------------------------------------


@runtime_checkable
class HasTasks(Protocol):
    """An environment that lists its tasks."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, one of SPLITS; no task is in two splits."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """An environment that knows how its tasks are won."""

    def expert(self) -> Sequence[str]:
        """Return actions that win the episode from its start; call `reset` first."""
        ...


@runtime_checkable
class HasValidActions(Protocol):
    """An environment that lists the actions it would take."""

    def valid_actions(self) -> Sequence[str]:
        """Return the actions that the environment would take in its present state."""
        ...


@runtime_checkable
class HasVariations(Protocol):
    """An environment that can vary its tasks."""

    def variations(self, task: Task, rng: np.random.Generator) -> Iterable[Task]:
        """Return tasks like this train task, of split "generated"."""
        ...


@runtime_checkable
class Forkable(Protocol):
    """An environment that can be copied in the middle of an episode."""

    def fork(self) -> gymnasium.Env:
        """Return another environment that continues from this moment."""
        ...


@runtime_checkable
class HasRender(Protocol):
    """An environment that shows its states to people in another form (optional)."""

    def render_state(self, state: State) -> str:
        """Return the text in which a person sees a state."""
        ...


def provider(env: gymnasium.Env, name: str) -> Any:
    """Return the environment, or the first one that it wraps, which has this method.

    Gymnasium's wrappers do not forward attributes, and `isinstance` with a runtime
    protocol sees forwarded ones in Python 3.11 and not in 3.12: so neither is used.
    """
    while not callable(getattr(env, name, None)):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env


def starter(env: gymnasium.Env, method: str) -> Callable[..., None] | None:
    """Return what begins a call in a worker (workers/env.py), or None.

    A wrapper is not looked through: it may change what the call is given.
    """
    return getattr(env, method) if hasattr(type(env), method) else None


def as_tasks(env: gymnasium.Env) -> HasTasks | None:
    """Return what lists the tasks of an environment, or None."""
    return provider(env, "tasks")


def as_expert(env: gymnasium.Env) -> HasExpert | None:
    """Return what knows an environment's winning actions, or None."""
    return provider(env, "expert")


def as_valid_actions(env: gymnasium.Env) -> HasValidActions | None:
    """Return what lists an environment's valid actions, or None."""
    return provider(env, "valid_actions")


def as_variations(env: gymnasium.Env) -> HasVariations | None:
    """Return what varies the tasks of an environment, or None."""
    return provider(env, "variations")


def as_render(env: gymnasium.Env) -> HasRender | None:
    """Return what shows the states of an environment to people, or None."""
    return provider(env, "render_state")


def as_forkable(env: gymnasium.Env) -> Forkable | None:
    """Return what forks an environment, its wrappers included, or None."""
    owner = provider(env, "fork")
    if owner is None or owner is env:
        return owner
    return _WrappedFork(env, owner)


@dataclasses.dataclass(frozen=True)
class _WrappedFork:
    """Forks an environment whose wrappers do not declare `fork` themselves."""

    env: gymnasium.Env
    provider: Forkable

    def fork(self) -> gymnasium.Env:
        """Fork the inner environment, and copy the wrappers around it."""
        fork = self.provider.fork()
        return copy.deepcopy(self.env, {id(self.provider): fork})


def can_vary(environment: type[gymnasium.Env]) -> bool:
    """Return whether environments of a class have variations, without making one."""
    return callable(getattr(environment, "variations", None))


def declared_determinism(env: gymnasium.Env) -> bool | None:
    """Return whether equal actions always lead to equal states; None: not known."""
    return declared_flag(env, "deterministic", default=True)


def is_deterministic(env: gymnasium.Env) -> bool:
    """Return whether equal actions are known to lead to equal states always."""
    return bool(declared_determinism(env))


def plans_from_any_state(env: gymnasium.Env) -> bool:
    """Return whether there is an expert that plans from the present state at any time.

    Others plan from the start of an episode only.
    """
    declared = declared_flag(env, "plans_from_any_state", default=False)
    return bool(declared) and as_expert(env) is not None


# --- tasks and steps ---------------------------------------------------------

LOW_CONFIDENCE = "low_confidence"
"""How the error of a step begins at which a dream was aborted."""


class Step(NamedTuple):
    """One step of one episode.

    `error` names why the episode broke off; such an episode is not scored. `invalid`
    and `reveals` are None where the environment does not say. `costs` are named like
    rewards, and are no part of them. `confidence` is the probability that a dream gave
    its answer, 1 where it does not say and in a real environment.
    """

    state: State
    rewards: dict[str, float]
    terminated: bool
    truncated: bool
    success: bool
    error: str | None = None
    invalid: bool | None = None
    reveals: bool | None = None
    costs: Mapping[str, float] = MappingProxyType({})
    confidence: float = 1.0

    def transition(
        self, state: State, action: str, thought: str | None = None
    ) -> Transition:
        """Return the record of this step: from `state`, by `action`."""
        return Transition(
            state=state,
            action=action,
            next_state=self.state,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            success=self.success,
            invalid=self.invalid,
            reveals=self.reveals,
            thought=thought,
            costs=dict(self.costs),
        )


def counts_as_invalid(t: Transition) -> bool:
    """Return the environment's flag `invalid`, or else whether nothing changed."""
    return t.next_state == t.state if t.invalid is None else t.invalid


def tasks_of(env: gymnasium.Env, name: str, split: str, count: int) -> list[Task]:
    """Return at most `count` tasks of a split.

    An environment that lists no tasks gets tasks that are seeds. Seeds of train, dev
    and test start at 0, 10 and 20 millions, so that they never meet.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    if (lister := as_tasks(env)) is not None:
        return list(lister.tasks(split))[:count]
    base = 10_000_000 * SPLITS.index(split)
    return [
        Task(
            id=f"{name}-{split}-{i}",
            instruction="",
            env=name,
            family=name,
            split=split,
            options={"seed": base + i},
        )
        for i in range(count)
    ]


def task_to_start(env: TextEnv, options: Mapping[str, Any] | None) -> Task:
    """Return `options["task"]` of a reset, or a train task drawn by the reset's seed.

    The environment lists its tasks, and its `np_random` is seeded.
    """
    if options and options.get("task") is not None:
        return options["task"]
    train = provider(env, "tasks").tasks("train")
    return train[int(env.np_random.integers(len(train)))]


def seed_of(task: Task) -> int | None:
    """Return the integer `seed` among a task's options, with which it is reset."""
    seed = task.options.get("seed")
    return int(seed) if isinstance(seed, numbers.Integral) else None


def seed_anew(env: gymnasium.Env, seed: int) -> None:
    """Seed every random generator that an environment holds, in the present state.

    After a reset with a task's seed it would draw again what it drew before, so that a
    second play could not tell what is random.
    """
    env = env.unwrapped
    if callable(seed_worker := getattr(env, "seed_anew", None)):
        seed_worker(seed)
        return
    for name, value in list(vars(env).items()):
        if isinstance(value, gymnasium.Env):
            seed_anew(value, seed)
        elif isinstance(value, np.random.Generator):
            setattr(env, name, np.random.default_rng(seed))
        elif isinstance(value, random.Random | np.random.RandomState):
            value.seed(seed)


def reset_arguments(task: Task, seed: int | None = None) -> dict[str, Any]:
    """Return the arguments with which an environment is reset to a task.

    A seed among the task's options counts more than `seed`.
    """
    own_seed = seed_of(task)
    return {
        "seed": seed if own_seed is None else own_seed,
        "options": {"task": with_own_options(task)},
    }


def begin(
    env: gymnasium.Env, task: Task, seed: int | None = None
) -> tuple[Task, State]:
    """Reset an environment to a task; return the task, now complete, and the state.

    Complete means with the instruction, the tools, the expected calls and the initial
    state of the environment. See `reset_arguments` for the seed.

    Raises:
      TypeError: the task's options cannot be written as JSON.
      ValueError: a text cannot be written as UTF-8, or is too long (TextTooLong); or
        tools or expected calls have another form (complete_options).
    """
    json.dumps(task.options)  # it must be possible to record them
    obs, info = env.reset(**reset_arguments(task, seed))
    instruction = task.instruction or str(info.get("instruction") or "")
    tools = str(info.get("tools") or "")
    if tools not in instruction:
        instruction = f"{instruction} {tools}".strip()
    _checked_text("an instruction", instruction)
    state = lines(_checked_text("an observation", obs))
    options = complete_options(task, info)
    json.dumps(options)
    return dataclasses.replace(
        task, instruction=instruction, initial_state=state, options=options
    ), state


def with_own_options(task: Task) -> Task:
    """Return the task with a copy of its options, which an episode may write to."""
    return dataclasses.replace(task, options=copy.deepcopy(dict(task.options)))


def begin_all(env: gymnasium.Env, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks as `begin` completes them.

    A task to which the environment cannot be reset stays as it is, with a message on
    stderr: whoever plays it later gets an episode without a score.

    Raises:
      ConnectionError: the environment cannot be reset to any of the tasks.
    """
    out, reasons = list(tasks), list[str]()
    for i, task in enumerate(tasks):
        result = guarded(env, lambda task=task: begin(env, task)[0])
        if isinstance(result, EnvironmentFailure):
            reasons.append(result.reason)
            print(f"task {task.id!r} cannot be begun: {reasons[-1]}", file=sys.stderr)
        else:
            out[i] = result
    if tasks and len(reasons) == len(tasks):
        number, reason = len(tasks), reasons[-1]
        raise ConnectionError(f"the environment began none of {number} tasks: {reason}")
    return out


def _checked_text(name: str, text: str) -> str:
    """Return the text; raise a ValueError if it is too long or UTF-8 cannot hold it."""
    # A tokenizer would work for minutes, and in silence, on a text of some megabytes.
    if len(text) > MAX_CHARACTERS:
        raise TextTooLong(
            f"{name} of {len(text):,} characters, expected at most {MAX_CHARACTERS:,}"
        )
    text.encode()
    return text


def _flag(value: Any) -> bool | None:
    """An environment's flag as a value that JSON can hold; None stays None."""
    return None if value is None else bool(value)


def _named_numbers(name: str, values: Any, action: str) -> dict[str, float]:
    """Return named rewards or costs as floats; see `take` for what is raised."""
    try:
        named = {k: float(v) for k, v in values.items()}
        "".join(named)  # a name must be a text
    except (AttributeError, OverflowError, TypeError, ValueError):
        message = f"info[{name!r}] must be a dict of numbers, got {values!r:.60}"
        raise TypeError(message) from None
    if not np.isfinite(sum(named.values())):
        raise FloatingPointError(f"{name} {named} after action {action!r}")
    return named


def take(env: gymnasium.Env, action: str, return_so_far: float = 0.0) -> Step:
    """Step a single environment; return named rewards and success.

    Where the environment does not report success, an episode that terminates with a
    positive return is one; `return_so_far` is the return before this step.

    Raises:
      TypeError: rewards or costs that are no dict of numbers.
      FloatingPointError: a reward or a cost that is not finite.
      ValueError: a text cannot be written as UTF-8, or is too long (TextTooLong).
    """
    obs, reward, terminated, truncated, info = env.step(action)
    rewards = _named_numbers("rewards", info.get("rewards", {"reward": reward}), action)
    costs = _named_numbers("costs", info.get("costs", {}), action)
    positive = return_so_far + float(reward) > 0
    success = terminated and positive if (flag := info.get("success")) is None else flag
    return Step(
        lines(_checked_text("an observation", obs)),
        rewards,
        bool(terminated),
        bool(truncated),
        bool(success),
        invalid=_flag(info.get("invalid")),
        reveals=_flag(info.get("reveals")),
        costs=costs,
    )
