"""Batches of episodes: one small protocol for dream and real.

The curriculum chooses each slot's next task, so a batch is reset slot by slot, and
finished slots wait.
"""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium

from dreamgym.envs.base import Step, begin, take
from worldmodel.data.records import State, Task


class Snapshot(NamedTuple):
    """All there is of an episode at one moment, where it can go on from here again."""

    task: Task
    past: tuple[str, ...]
    state: State


class VectorEnv(abc.ABC):
    """Many episodes at once; the same type for dream and real.

    One that can go back has `restore(slot, snapshot)`: the dream.
    """

    size: int
    max_steps: int = 10**9
    """The step limit of episodes; a schedule may change it between them."""
    transitions: int = 0
    """Steps taken so far, over all slots."""

    @abc.abstractmethod
    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """Start `options["tasks"][i]` in every slot where `options["reset_mask"][i]`.

        The mask defaults to every slot; the others keep their state.
        """

    @abc.abstractmethod
    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """Step the slots that run; None for the finished ones."""

    def close(self) -> None:  # noqa: B027 - most batches hold nothing
        """Release what the environments hold."""


class RealVectorEnv(VectorEnv):
    """Several copies of one real environment, stepped in turn.

    A crash ends one trajectory with its reason and nothing else.
    """

    def __init__(self, envs: Sequence[gymnasium.Env], *, max_steps: int):
        self.envs, self.size, self.max_steps = list(envs), len(envs), max_steps
        self._earned = [0.0] * self.size
        self._steps = [0] * self.size
        self._live = [False] * self.size
        self._broken: list[str | None] = [None] * self.size
        self.transitions = 0

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv."""
        mask = options.get("reset_mask", [True] * self.size)
        out: list[State | None] = [None] * self.size
        for i, (task, chosen) in enumerate(zip(options["tasks"], mask, strict=True)):
            if not chosen or task is None:
                continue
            self._earned[i], self._steps[i], self._live[i] = 0.0, 0, True
            self._broken[i] = None
            try:
                out[i] = begin(self.envs[i], task)[1]
            except Exception as error:  # told by the next step
                self._broken[i] = f"{type(error).__name__}: {error}"
                out[i] = task.initial_state
        return out

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        out: list[Step | None] = [None] * self.size
        for i, action in enumerate(actions):
            if not self._live[i] or action is None:
                continue
            step = self._take(i, action)
            if self._steps[i] >= self.max_steps and not step.terminated:
                step = step._replace(truncated=True)
            self._earned[i] += sum(step.rewards.values())
            self._live[i] = not (step.terminated or step.truncated)
            out[i] = step
        return out

    def _take(self, i: int, action: str) -> Step:
        reason = self._broken[i]
        if reason is None:
            self._steps[i] += 1
            self.transitions += 1
            try:
                return take(self.envs[i], action, self._earned[i])
            except Exception as error:  # an environment may raise anything
                reason = f"{type(error).__name__}: {error}"
        return Step((), {}, False, True, False, reason)

    def close(self) -> None:
        """See VectorEnv."""
        for env in self.envs:
            env.close()
