"""One environment: Gymnasium's interface over text, and what may be beyond it.

It is a `gymnasium.Env` over text: `reset(seed=, options={"task": Task})`, five-value
`step`. What it can do beyond that is declared by having the method:

  tasks(split) -> sequence of Task      expert() -> actions that win from the start
  valid_actions() -> actions
  variations(task, rng) -> tasks of train like this one, in no split themselves
  fork() -> another environment that goes on from this moment

One that draws lots says `deterministic = False`.

`info` may hold `rewards` (named components), `success`, `invalid`, `reveals` and
`instruction` (records.Transition and Task say what they mean). Many at once are a batch
(vector.py); names of environments are in registry.py.
"""

import dataclasses
import json
import numbers
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

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
        """True for any string that is short enough."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A few letters: what an agent that knows nothing might type."""
        del mask, probability  # no set of characters to choose from
        length = int(self.np_random.integers(1, 12))
        return "".join(self.np_random.choice(list("abcdefghij klmno"), length))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash(("AnyText", self.max_length))


class TextEnv(gymnasium.Env[str, str]):
    """A base for text environments: spaces, and the default task."""

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self) -> None:
        self.observation_space = AnyText()
        self.action_space = AnyText(200)


UNTRUSTED = "untrusted"
"""How the error of a step begins that was cut because it is not to be trusted."""


class Step(NamedTuple):
    """One slot's step. `error` names why a trajectory broke; it is then not scored."""

    state: State
    rewards: dict[str, float]
    terminated: bool
    truncated: bool
    success: bool
    error: str | None = None
    invalid: bool | None = None
    reveals: bool | None = None


def counts_as_invalid(t: Transition) -> bool:
    """The environment's flag `invalid`; without one, whether the state is unchanged."""
    return t.next_state == t.state if t.invalid is None else t.invalid


def tasks_of(env: gymnasium.Env, name: str, split: str, count: int) -> list[Task]:
    """At most `count` tasks of a split: the environment's own, or seeds of it.

    Seeds of train, dev and test never meet: they start at 0, 10 and 20 millions.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    if hasattr(env, "tasks"):
        return list(env.tasks(split))[:count]  # type: ignore[attr-defined]
    base = 10_000_000 * SPLITS.index(split)
    return [
        Task(
            id=f"{name}-{split}-{i}", instruction="", env=name, family=name,
            split=split, options={"seed": base + i},
        )
        for i in range(count)
    ]  # fmt: skip


def begin(env: gymnasium.Env, task: Task) -> tuple[Task, State]:
    """Reset to a task; the task returns with what the environment told of it.

    Raises:
      TypeError: options that JSON cannot hold: the task could not be written.
      ValueError: text that UTF-8 cannot hold, for the same reason.
    """
    json.dumps(task.options)
    seed = task.options.get("seed")
    seed = int(seed) if isinstance(seed, numbers.Integral) else None
    obs, info = env.reset(seed=seed, options={"task": task})
    told = task.instruction or str(info.get("instruction", ""))
    state, _ = lines(_writable(obs)), _writable(told)
    return dataclasses.replace(task, instruction=told, initial_state=state), state


def begun(env: gymnasium.Env, tasks: Sequence[Task]) -> list[Task]:
    """Tasks with what the environment tells of them when it is reset to them.

    One that it cannot be reset to stays as it is, which is said: whoever plays it finds
    an episode that nobody can score.

    Raises:
      ConnectionError: it cannot be reset to any of them: it is down, not they.
    """
    out, failed, told = [], 0, ""
    for task in tasks:
        try:
            out.append(begin(env, task)[0])
        except Exception as error:  # an environment may raise anything
            told = f"{type(error).__name__}: {error}"
            print(f"task {task.id!r} cannot be begun: {told}", file=sys.stderr)
            out.append(task)
            failed += 1
    if tasks and failed == len(tasks):
        raise ConnectionError(f"the environment began none of {failed} tasks: {told}")
    return out


def _writable(text: str) -> str:
    """The text; raises ValueError (UnicodeEncodeError) where no file could hold it."""
    text.encode()
    return text


def _flag(value: Any) -> bool | None:
    """What an environment says, as JSON has it; None where it says nothing."""
    return None if value is None else bool(value)


def take(env: gymnasium.Env, action: str, earned: float = 0.0) -> Step:
    """One step of a single environment as named rewards and success.

    `earned` is the return so far: an environment that tells no success has one when it
    terminates with a positive return.

    Raises:
      FloatingPointError: a reward that is not finite.
      ValueError: text that UTF-8 cannot hold.
    """
    obs, reward, terminated, truncated, info = env.step(action)
    rewards = {k: float(v) for k, v in info.get("rewards", {"reward": reward}).items()}
    if not np.isfinite(sum(rewards.values())):
        raise FloatingPointError(f"rewards {rewards} after action {action!r}")
    won = info.get("success", terminated and earned + float(reward) > 0)
    return Step(
        lines(_writable(obs)), rewards, bool(terminated), bool(truncated), bool(won),
        invalid=_flag(info.get("invalid")), reveals=_flag(info.get("reveals")),
    )  # fmt: skip
