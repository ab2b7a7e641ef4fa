"""Arrival: an environment brought to the state of a step of an expert's episode.

episode, step -> a fork of the walk so far, or a verified replay from a reset -> the
environment in that state, in which an alternative action is taken.
"""

import sys
from typing import NamedTuple

import gymnasium

from dreamgym.envs.actions import as_list
from dreamgym.envs.base import (
    EnvironmentFailure,
    Forkable,
    as_forkable,
    as_valid_actions,
    begin,
    guarded,
    take,
)
from dreamgym.envs.failures import deadlines_of
from worldmodel.data.records import Branch, Episode, State, Transition


class StateNotReached(Exception):
    """The environment did not come to a state; with a reason where it raised."""


class Arrival(NamedTuple):
    """An environment in the state of a step, and the return so far."""

    step: int
    env: gymnasium.Env
    return_so_far: float


class BranchPoint:
    """An environment and an expert's episode, to be brought to the state of any step.

    `transitions` counts the real transitions that this takes. An arrival is kept until
    an action is taken there, because a replay costs the whole prefix.
    """

    def __init__(self, env: gymnasium.Env, episode: Episode):
        self.env, self.episode, self.transitions = env, episode, 0
        self._arrival: Arrival | None = None

    def valid_actions(self, step: int) -> list[str] | None:
        """Return the valid actions in the state of a step; None if none are declared.

        Raises:
          StateNotReached: the environment did not come to the state.
        """
        env = self._arrival_at(step).env
        lister = as_valid_actions(env)
        if lister is None:
            return None
        actions = guarded(
            env,
            lambda: as_list(lister.valid_actions()),
            seconds=deadlines_of(env).other if self._is_fork(env) else 0.0,
            method="valid_actions",
        )
        if isinstance(actions, EnvironmentFailure):
            raise self._not_reached(step, actions)
        return actions

    def _is_fork(self, env: gymnasium.Env) -> bool:
        """Return whether it is a fork, which keeps no deadline of its own."""
        return env is not self.env

    def branch(self, step: int, action: str) -> Branch | None:
        """Take an action in the state of a step; return the branch, None if it raised.

        Raises:
          StateNotReached: the environment did not come to the state.
        """
        arrival, state = self._arrival_at(step), self.episode.transitions[step].state
        result = guarded(
            arrival.env,
            lambda: self._take(arrival.env, arrival.return_so_far, state, action),
            seconds=(
                deadlines_of(arrival.env).step if self._is_fork(arrival.env) else 0.0
            ),
        )
        if isinstance(result, EnvironmentFailure):
            self._report(step, f"{action!r}: {result.reason}")
        self.leave()
        if isinstance(result, EnvironmentFailure):
            return None
        return Branch(episode=self.episode.id, step=step, transition=result)

    def cost(self, step: int, alternatives: int) -> int:
        """Return the real transitions that alternatives in a state cost at most."""
        return (step + 1) * max(alternatives, 1)

    def leave(self) -> None:
        """Forget the arrival: an action was taken in it, so it is not used again."""
        self._arrival = None

    def _arrival_at(self, step: int) -> Arrival:
        if self._arrival is not None and self._arrival.step == step:
            return self._arrival
        self.leave()
        arrival = guarded(self.env, lambda: self._arrive(step))
        if isinstance(arrival, EnvironmentFailure):
            raise self._not_reached(step, arrival)
        if arrival is None:
            raise StateNotReached
        self._arrival = arrival
        return arrival

    def _arrive(self, step: int) -> Arrival | None:
        """Return the environment in the state of a step; None if it comes elsewhere."""
        raise NotImplementedError

    def _not_reached(self, step: int, failure: EnvironmentFailure) -> StateNotReached:
        self._report(step, f"not reached: {failure.reason}")
        return StateNotReached(failure.reason)

    def _report(self, step: int, message: str) -> None:
        print(f"branch: {self.episode.id}, step {step}, {message}", file=sys.stderr)

    def _take(
        self, env: gymnasium.Env, return_so_far: float, state: State, action: str
    ) -> Transition:
        self.transitions += 1  # counted before the step: one that raises costs, too
        return take(env, action, return_so_far).transition(state, action)


class ReplayPoint(BranchPoint):
    """Arrives by a reset and the expert's actions, each time anew."""

    def _arrive(self, step: int) -> Arrival | None:
        steps = self.episode.transitions
        _, state = begin(self.env, self.episode.task)
        return_so_far = 0.0
        for t in steps[:step]:
            result = self._take(self.env, return_so_far, state, t.action)
            state = result.next_state
            return_so_far += result.reward
            if result.terminated or result.truncated:
                return None
        if state != steps[step].state:
            return None
        return Arrival(step, self.env, return_so_far)


class ForkPoint(BranchPoint):
    """Walks through the episode once, and arrives by forks of this walk."""

    def __init__(self, env: gymnasium.Env, episode: Episode, forkable: Forkable):
        super().__init__(env, episode)
        self._forkable = forkable
        self._state: State | None = None
        self._return_so_far, self._step, self._ended = 0.0, 0, False

    def cost(self, step: int, alternatives: int) -> int:
        """See BranchPoint: the steps that are left to walk, and the alternatives."""
        return max(step - self._step, 0) + alternatives

    def _arrive(self, step: int) -> Arrival | None:
        steps = self.episode.transitions
        if self._state is None:
            _, self._state = begin(self.env, self.episode.task)
        while self._step < step and not self._ended:
            t = steps[self._step]
            result = self._take(self.env, self._return_so_far, self._state, t.action)
            self._state, self._step = result.next_state, self._step + 1
            self._return_so_far += result.reward
            self._ended = result.terminated or result.truncated
        if self._ended or self._state != steps[step].state:
            return None
        return Arrival(step, self._forkable.fork(), self._return_so_far)

    def leave(self) -> None:
        """Close the fork and forget it; a fork that cannot be closed is reported."""
        arrival = self._arrival
        super().leave()
        if arrival is not None:
            result = guarded(arrival.env, arrival.env.close)
            if isinstance(result, EnvironmentFailure):
                self._report(arrival.step, f"fork not closed: {result.reason}")


def branch_point(env: gymnasium.Env, episode: Episode) -> BranchPoint:
    """Return arrivals by fork where the environment can fork, by replay elsewhere."""
    forkable = as_forkable(env)
    if forkable is None:
        return ReplayPoint(env, episode)
    return ForkPoint(env, episode, forkable)
