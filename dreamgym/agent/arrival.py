"""Arrival: an environment brought to the state of a step of an expert's episode.

episode, step -> a fork of the walk so far, or a verified replay from a reset -> the
environment in that state, in which an alternative action is taken.
"""

import contextlib
import sys
from typing import NamedTuple

import gymnasium

from dreamgym.envs.base import begin, take
from worldmodel.data.records import Branch, Episode, State, Transition


class StateNotReached(Exception):
    """The state of a step was not reached."""


class Arrival(NamedTuple):
    """An environment in the state of a step, and the return so far."""

    step: int
    env: gymnasium.Env
    earned: float


class BranchPoint:
    """An environment and an expert's episode; `spent` counts real transitions.

    An arrival is kept until an alternative is taken there: by replay it costs a prefix.
    """

    def __init__(self, env: gymnasium.Env, episode: Episode):
        self.env, self.episode, self.spent = env, episode, 0
        self._there: Arrival | None = None

    def valid(self, step: int) -> list[str] | None:
        """The valid actions in the state of the step; None where none are declared.

        Raises:
          StateNotReached: the state was not reached.
        """
        there = self._at(step)
        try:
            valid = getattr(there.env, "valid_actions", None)
            return None if valid is None else list(valid())
        except Exception as error:  # an environment may raise anything
            raise self._lost(step, error) from error

    def tried(self, step: int, action: str) -> Branch | None:
        """What an action leads to in the state of the step; None where that raised.

        Raises:
          StateNotReached: the state was not reached.
        """
        there, state = self._at(step), self.episode.transitions[step].state
        try:
            found = self._take(there.env, there.earned, state, action)
            return Branch(episode=self.episode.id, step=step, transition=found)
        except Exception as error:  # an environment may raise anything
            self._say(step, f"{action!r}: {type(error).__name__}: {error}")
            return None
        finally:
            self.leave()

    def leave(self) -> None:
        """Let go of where it stands: what was acted in is not used again."""
        self._there = None

    def _at(self, step: int) -> Arrival:
        if self._there is not None and self._there.step == step:
            return self._there
        self.leave()
        try:
            there = self._arrived(step)
        except Exception as error:  # an environment may raise anything
            raise self._lost(step, error) from error
        if there is None:
            raise StateNotReached
        self._there = there
        return there

    def _arrived(self, step: int) -> Arrival | None:
        raise NotImplementedError

    def _lost(self, step: int, error: Exception) -> StateNotReached:
        self._say(step, f"not reached: {type(error).__name__}: {error}")
        return StateNotReached()

    def _say(self, step: int, told: str) -> None:
        print(f"branch: {self.episode.id}, step {step}, {told}", file=sys.stderr)

    def _take(
        self, env: gymnasium.Env, earned: float, state: State, action: str
    ) -> Transition:
        self.spent += 1  # one that raises was asked for, too
        result = take(env, action, earned)
        return Transition(
            state=state, action=action, next_state=result.state,
            rewards=result.rewards, terminated=result.terminated,
            truncated=result.truncated, success=result.success,
            invalid=result.invalid, reveals=result.reveals,
        )  # fmt: skip


class ReplayPoint(BranchPoint):
    """Arrives by a reset and the expert's actions, each time anew."""

    def _arrived(self, step: int) -> Arrival | None:
        rows = self.episode.transitions
        _, state = begin(self.env, self.episode.task)
        earned = 0.0
        for t in rows[:step]:
            result = self._take(self.env, earned, state, t.action)
            state = result.next_state
            earned += result.reward
            if result.terminated or result.truncated:
                return None
        arrived = state == rows[step].state
        return Arrival(step, self.env, earned) if arrived else None


class ForkPoint(BranchPoint):
    """Walks the episode once and hands out forks of where it stands."""

    def __init__(self, env: gymnasium.Env, episode: Episode):
        super().__init__(env, episode)
        self._state: State | None = None
        self._earned, self._step, self._over = 0.0, 0, False

    def _arrived(self, step: int) -> Arrival | None:
        rows = self.episode.transitions
        if self._state is None:
            _, self._state = begin(self.env, self.episode.task)
        while self._step < step and not self._over:
            t = rows[self._step]
            result = self._take(self.env, self._earned, self._state, t.action)
            self._state, self._step = result.next_state, self._step + 1
            self._earned += result.reward
            self._over = result.terminated or result.truncated
        if self._over or self._state != rows[step].state:
            return None
        return Arrival(step, self.env.fork(), self._earned)  # type: ignore[attr-defined]

    def leave(self) -> None:
        """Close the fork, if it lets itself be closed. See BranchPoint."""
        if self._there is not None:
            with contextlib.suppress(Exception):
                self._there.env.close()
        super().leave()


def branch_point(env: gymnasium.Env, episode: Episode) -> BranchPoint:
    """A point that forks where the environment can, and replays elsewhere."""
    forks = getattr(env, "fork", None) is not None
    return ForkPoint(env, episode) if forks else ReplayPoint(env, episode)
