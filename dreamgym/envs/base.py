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
`deterministic = False`.

`info` may hold `rewards` (named components), `success`, `invalid`, `reveals` and
`instruction` (see worldmodel.data.records). Environments may raise anything: `guarded`
is the one place that catches it.
"""

import copy
import dataclasses
import json
import numbers
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import gymnasium
import numpy as np
from gymnasium import spaces

from worldmodel.data.records import State, Task, Transition, lines

SPLITS = ("train", "dev", "test")


class AnyText(spaces.Text):
    """Text of any Unicode; Gymnasium's own `Text` rejects what is not in a charset."""

    def __init__(self, max_length: int = 100_000, seed: int | None = None):
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a string of at most `max_length` characters."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Return 1 to 11 random letters and spaces."""
        del mask, probability  # no set of characters to choose from
        length = int(self.np_random.integers(1, 12))
        return "".join(self.np_random.choice(list("abcdefghij klmno"), length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash(("AnyText", self.max_length))


class TextEnv(gymnasium.Env[str, str]):
    """A base class for text environments that sets their two spaces."""

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText(200)


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


def _provider(env: gymnasium.Env, name: str) -> Any:
    """The environment, or the first one that it wraps, which has this method.

    Gymnasium's wrappers do not forward attributes, and `isinstance` with a runtime
    protocol sees forwarded ones in Python 3.11 and not in 3.12: so neither is used.
    """
    while not callable(getattr(env, name, None)):
        if not isinstance(env, gymnasium.Wrapper):
            return None
        env = env.env
    return env


def as_tasks(env: gymnasium.Env) -> HasTasks | None:
    """Return what lists the tasks of an environment, or None."""
    return _provider(env, "tasks")


def as_expert(env: gymnasium.Env) -> HasExpert | None:
    """Return what knows an environment's winning actions, or None."""
    return _provider(env, "expert")


def as_valid_actions(env: gymnasium.Env) -> HasValidActions | None:
    """Return what lists an environment's valid actions, or None."""
    return _provider(env, "valid_actions")


def as_variations(env: gymnasium.Env) -> HasVariations | None:
    """Return what varies the tasks of an environment, or None."""
    return _provider(env, "variations")


def as_render(env: gymnasium.Env) -> HasRender | None:
    """Return what shows the states of an environment to people, or None."""
    return _provider(env, "render_state")


def as_forkable(env: gymnasium.Env) -> Forkable | None:
    """Return what forks an environment, its wrappers included, or None."""
    provider = _provider(env, "fork")
    if provider is None or provider is env:
        return provider
    return _WrappedFork(env, provider)


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


def is_deterministic(env: gymnasium.Env) -> bool:
    """Return whether equal actions always lead to equal states."""
    try:
        return bool(env.get_wrapper_attr("deterministic"))
    except AttributeError:  # nothing is declared
        return True


# --- failures ----------------------------------------------------------------

Value = TypeVar("Value")


class EnvironmentFailure(NamedTuple):
    """The reason why a call into an environment's code returned nothing.

    `environment` is the name of its class, `place` the file and line in which its code
    raised `error`.
    """

    environment: str
    error: Exception
    place: str

    @property
    def reason(self) -> str:
        """The type and message of the error."""
        return f"{type(self.error).__name__}: {self.error}"


def guarded(
    env: gymnasium.Env, call: Callable[[], Value]
) -> Value | EnvironmentFailure:
    """Return what a call into an environment's code returns, or why it failed.

    An environment is foreign code: it may raise any exception, and the caller counts or
    reports the failure. KeyboardInterrupt and SystemExit are not caught.
    """
    try:
        return call()
    except Exception as error:
        return EnvironmentFailure(type(env.unwrapped).__name__, error, _place(error))


def _place(error: Exception) -> str:
    """File and line of the last frame that is not in Python's standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        inside = Path(frame.filename).is_relative_to(library)
        if "site-packages" in frame.filename or not (
            inside or frame.filename.startswith("<")
        ):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"


# --- tasks and steps ---------------------------------------------------------

UNTRUSTED = "untrusted"
"""The start of the error of a step at which a dream was aborted: low confidence."""


class Step(NamedTuple):
    """One step of one episode.

    `error` names why the episode broke off; such an episode is not scored. `invalid`
    and `reveals` are None where the environment does not say.
    """

    state: State
    rewards: dict[str, float]
    terminated: bool
    truncated: bool
    success: bool
    error: str | None = None
    invalid: bool | None = None
    reveals: bool | None = None

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


def begin(env: gymnasium.Env, task: Task) -> tuple[Task, State]:
    """Reset an environment to a task; return the task, now complete, and the state.

    Complete means with the instruction and the initial state of the environment.

    Raises:
      TypeError: the task's options cannot be written as JSON.
      ValueError: a text cannot be written as UTF-8.
    """
    json.dumps(task.options)
    seed = task.options.get("seed")
    seed = int(seed) if isinstance(seed, numbers.Integral) else None
    obs, info = env.reset(seed=seed, options={"task": task})
    instruction = task.instruction or str(info.get("instruction", ""))
    state, _ = lines(_writable(obs)), _writable(instruction)
    return dataclasses.replace(
        task, instruction=instruction, initial_state=state
    ), state


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


def _writable(text: str) -> str:
    """The text; raises UnicodeEncodeError, a ValueError, where UTF-8 has no such."""
    text.encode()
    return text


def _flag(value: Any) -> bool | None:
    """An environment's flag as a value that JSON can hold; None stays None."""
    return None if value is None else bool(value)


def take(env: gymnasium.Env, action: str, return_so_far: float = 0.0) -> Step:
    """Step a single environment; return named rewards and success.

    Where the environment does not report success, an episode that terminates with a
    positive return is one; `return_so_far` is the return before this step.

    Raises:
      FloatingPointError: a reward that is not finite.
      ValueError: a text cannot be written as UTF-8.
    """
    obs, reward, terminated, truncated, info = env.step(action)
    rewards = {k: float(v) for k, v in info.get("rewards", {"reward": reward}).items()}
    if not np.isfinite(sum(rewards.values())):
        raise FloatingPointError(f"rewards {rewards} after action {action!r}")
    positive = return_so_far + float(reward) > 0
    success = info.get("success", terminated and positive)
    return Step(
        lines(_writable(obs)),
        rewards,
        bool(terminated),
        bool(truncated),
        bool(success),
        invalid=_flag(info.get("invalid")),
        reveals=_flag(info.get("reveals")),
    )
