"""Batches of episodes: one small base class for the dream and real environments.

The curriculum chooses the next task of each slot, so a batch is reset slot by slot, and
finished slots wait. A batch that can return to an earlier moment is `Restorable`.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium

from dreamgym.envs.base import EnvironmentFailure, Step, begin, guarded, take
from worldmodel.data.records import State, Task


class Snapshot(NamedTuple):
    """One moment of an episode: all that is needed to continue from it."""

    task: Task
    past: tuple[str, ...]
    state: State


class VectorEnv(abc.ABC):
    """Many episodes at once; the same type for the dream and real environments."""

    size: int
    max_steps: int = 10**9
    """The step limit of an episode; a schedule may change it between episodes."""
    transitions: int = 0
    """The number of steps taken so far, over all slots."""

    @abc.abstractmethod
    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """Start `options["tasks"][i]` in each slot where `options["reset_mask"][i]`.

        Returns the first state of these slots, None for the others, which keep their
        episode. Without a mask every slot is reset.
        """

    @abc.abstractmethod
    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """Step the slots whose episode runs; None for the others."""

    def close(self) -> None:  # noqa: B027 - most batches hold nothing
        """Release what the environments hold."""


@runtime_checkable
class Restorable(Protocol):
    """A batch whose slots can return to an earlier moment, such as the dream."""

    def snapshot(self, slot: int) -> Snapshot:
        """Return the present moment of the episode in a slot."""
        ...

    def restore(self, slot: int, snapshot: Snapshot) -> State:
        """Let a slot continue from a snapshot; return the state there."""
        ...


def as_restorable(envs: VectorEnv) -> Restorable | None:
    """Return the batch if its slots can return to an earlier moment, or None."""
    return envs if isinstance(envs, Restorable) else None


class RealVectorEnv(VectorEnv):
    """Several copies of one real environment, stepped in turn.

    A copy that raises ends its own trajectory with the reason, and no other.
    """

    def __init__(self, envs: Sequence[gymnasium.Env], *, max_steps: int):
        self.envs, self.size, self.max_steps = list(envs), len(envs), max_steps
        self._returns = [0.0] * self.size
        self._steps = [0] * self.size
        self._running = [False] * self.size
        self._reset_failures: list[str | None] = [None] * self.size
        self.transitions = 0

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv."""
        mask = options.get("reset_mask", [True] * self.size)
        out: list[State | None] = [None] * self.size
        for i, (task, chosen) in enumerate(zip(options["tasks"], mask, strict=True)):
            if not chosen or task is None:
                continue
            self._returns[i], self._steps[i], self._running[i] = 0.0, 0, True
            env = self.envs[i]
            start = guarded(env, lambda env=env, task=task: begin(env, task)[1])
            if isinstance(start, EnvironmentFailure):  # the next step reports it
                self._reset_failures[i] = start.reason
                out[i] = task.initial_state
            else:
                self._reset_failures[i] = None
                out[i] = start
        return out

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        out: list[Step | None] = [None] * self.size
        for i, action in enumerate(actions):
            if not self._running[i] or action is None:
                continue
            step = self._take(i, action)
            if self._steps[i] >= self.max_steps and not step.terminated:
                step = step._replace(truncated=True)
            self._returns[i] += sum(step.rewards.values())
            self._running[i] = not (step.terminated or step.truncated)
            out[i] = step
        return out

    def _take(self, i: int, action: str) -> Step:
        reason = self._reset_failures[i]
        if reason is None:
            self._steps[i] += 1
            self.transitions += 1
            env = self.envs[i]
            step = guarded(env, lambda: take(env, action, self._returns[i]))
            if isinstance(step, Step):
                return step
            reason = step.reason
        return Step((), {}, False, True, False, reason)

    def close(self) -> None:
        """See VectorEnv."""
        for env in self.envs:
            env.close()
