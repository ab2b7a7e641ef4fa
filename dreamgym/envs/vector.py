"""Batches of episodes: one small base class for the dream and real environments.

The curriculum chooses the next task of each slot, so a batch is reset slot by slot, and
finished slots wait. A batch that can return to an earlier moment is `Restorable`.
"""

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gymnasium
import numpy as np

from dreamgym.envs.actions import as_list
from dreamgym.envs.base import (
    Step,
    as_expert,
    as_valid_actions,
    begin,
    plans_from_any_state,
    reset_arguments,
    take,
)
from dreamgym.envs.counting import BudgetSpent
from dreamgym.envs.failures import (
    EnvironmentDown,
    EnvironmentFailure,
    declared_copies,
    guarded,
)
from worldmodel.data.processes import from_first_process
from worldmodel.data.records import State, Task


class Snapshot(NamedTuple):
    """One moment of an episode: all that is needed to continue from it.

    `past_states` are the states in which the past actions were taken.
    """

    task: Task
    past: tuple[str, ...]
    state: State
    past_states: tuple[State, ...] = ()


class VectorEnv(abc.ABC):
    """Many episodes at once; the same type for the dream and real environments."""

    size: int
    max_steps: int = 10**9
    """The step limit of an episode; a schedule may change it between episodes."""
    transitions: int = 0
    """The number of steps taken so far, over all slots."""

    @property
    def knows_plans(self) -> bool:
        """Whether `plan_length` is known."""
        return False

    @abc.abstractmethod
    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """Start `options["tasks"][i]` in each slot where `options["reset_mask"][i]`.

        Returns the first state of these slots, None for the others, which keep their
        episode. Without a mask every slot is reset. `options["seeds"][i]`, where given,
        seeds what a real environment draws in the slot's episode.
        """

    @abc.abstractmethod
    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """Step the slots whose episode runs; None for the others."""

    def valid_actions(self, slot: int) -> Sequence[str] | None:
        """Return the actions that a slot would take now, None where nobody says."""
        del slot  # the dream knows none

    def plan_length(self, slot: int) -> int | None:
        """Return how many actions the expert needs to win from here, None if unknown.

        None is also where it has no plan that wins.
        """
        del slot  # the dream has no expert

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


def episode_seed(seed: int, index: int) -> int:
    """Return the seed with which the episode of a number is reset."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0])


START_SECONDS = 20.0
"""Seconds that may pass until all copies of an environment are made."""

MIN_COPIES = 4
"""Copies of an environment that are worth the time, however slowly they start."""

MAX_BROKEN_IN_A_ROW = 24
"""Episodes of a batch that break in a row before the environment is down."""


def copies_that_pay(seconds: float, limit: int) -> int:
    """Return how many copies are made where one takes so many seconds to start.

    All of them start within START_SECONDS, but MIN_COPIES are made in any case. More
    copies only make a batch of the policy larger.
    """
    affordable = limit if seconds <= 0 else int(START_SECONDS / seconds)
    return max(min(limit, max(affordable, MIN_COPIES)), 1)


def _start(
    env: gymnasium.Env, method: str, arguments: Callable[[], dict[str, Any]]
) -> None:
    """Begin a call of an environment, if it runs in a worker process.

    A wrapper that may change the arguments begins nothing, unless it says how.
    """
    if hasattr(type(env), method):
        guarded(env, lambda: getattr(env, method)(**arguments()))


class RealVectorEnv(VectorEnv):
    """Several copies of one real environment, stepped in turn.

    Copies in worker processes work at the same time: all begin their steps before the
    first is waited for. Results are the same.

    A copy that raises ends its own trajectory with the reason, and no other. A slot's
    copy is made when its first episode begins.
    """

    def __init__(
        self,
        envs: Sequence[gymnasium.Env],
        *,
        max_steps: int,
        make: Callable[[], gymnasium.Env] | None = None,
        size: int = 0,
    ):
        """See the class; `make` makes the copies of `size` slots beyond the first."""
        self.envs, self.size, self.max_steps = list(envs), len(envs), max_steps
        self._make, self._broken_in_a_row = make, 0
        if make is not None:
            self.size = max(size, self.size)
        self._returns = [0.0] * self.size
        self._steps = [0] * self.size
        self._running = [False] * self.size
        self._reset_failures: list[str | None] = [None] * self.size
        self.transitions = 0

    @classmethod
    def growing(
        cls, make: Callable[[], gymnasium.Env], *, limit: int, max_steps: int
    ) -> "RealVectorEnv":
        """Return a batch of as many slots as pay, one of which has its copy now.

        Args:
          limit: slots at most; an environment whose copies are dear declares fewer in
            its attribute `max_copies`.
        """
        first, start = make(), time.monotonic()
        declared = declared_copies(first) or limit
        envs, limit = [first], max(min(limit, declared), 1)
        if limit > 1:  # the first one also imported and compiled what all share
            envs.append(make())
            seconds = repr(time.monotonic() - start).encode()
            # Of several processes the first decides: their clocks differ.
            limit = copies_that_pay(float(from_first_process(seconds)), limit)
        return cls(envs, max_steps=max_steps, make=make, size=limit)

    def _copy(self, slot: int) -> gymnasium.Env:
        """Return the copy of a slot."""
        while len(self.envs) <= slot:
            assert self._make is not None, "there are no slots without a copy"
            self.envs.append(self._make())
        return self.envs[slot]

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv."""
        mask = options.get("reset_mask", [True] * self.size)
        seeds = options.get("seeds", [None] * self.size)
        out: list[State | None] = [None] * self.size
        tasks = {
            i: task
            for i, (task, resets) in enumerate(zip(options["tasks"], mask, strict=True))
            if resets and task is not None
        }
        for i, task in tasks.items():
            _start(
                self._copy(i),
                "start_reset",
                lambda task=task, seed=seeds[i]: reset_arguments(task, seed),
            )
        for i, task in tasks.items():
            seed = seeds[i]
            self._returns[i], self._steps[i], self._running[i] = 0.0, 0, True
            env = self._copy(i)
            start = guarded(
                env, lambda env=env, task=task, seed=seed: begin(env, task, seed)[1]
            )
            if isinstance(start, EnvironmentFailure):  # the next step reports it
                self._reset_failures[i] = start.reason
                # The recorded first state, so that the policy has something to act on;
                # its action is never taken.
                out[i] = task.initial_state
            else:
                self._reset_failures[i] = None
                out[i] = start
        return out

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        out: list[Step | None] = [None] * self.size
        actions_by_slot = {
            i: action
            for i, action in enumerate(actions)
            if self._running[i] and action is not None
        }
        for i, action in actions_by_slot.items():
            if self._reset_failures[i] is None:
                _start(
                    self.envs[i], "start_step", lambda action=action: {"action": action}
                )
        for i, action in actions_by_slot.items():
            step = self._take(i, action)
            # An end at the last step is an end: Gymnasium keeps the two flags apart.
            if self._steps[i] >= self.max_steps and not step.terminated:
                step = step._replace(truncated=True)
            self._returns[i] += sum(step.rewards.values())
            self._running[i] = not (step.terminated or step.truncated)
            out[i] = step
        return out

    def valid_actions(self, slot: int) -> Sequence[str] | None:
        """See VectorEnv."""
        env = self._copy(slot)
        lister = as_valid_actions(env)
        if lister is None or not self._running[slot] or self._reset_failures[slot]:
            return None
        valid = guarded(env, lambda: as_list(lister.valid_actions()))
        return None if isinstance(valid, EnvironmentFailure) else valid

    @property
    def knows_plans(self) -> bool:
        """See VectorEnv."""
        return plans_from_any_state(self._copy(0))

    def plan_length(self, slot: int) -> int | None:
        """See VectorEnv."""
        env = self._copy(slot)
        expert = as_expert(env)
        if expert is None or not self._running[slot] or self._reset_failures[slot]:
            return None
        plan = guarded(env, lambda: as_list(expert.expert()))
        return None if isinstance(plan, EnvironmentFailure) else len(plan or ()) or None

    def _take(self, i: int, action: str) -> Step:
        reason = self._reset_failures[i]
        if reason is None:
            self._steps[i] += 1
            self.transitions += 1
            env = self.envs[i]
            step = guarded(env, lambda: take(env, action, self._returns[i]))
            if isinstance(step, Step):
                self._broken_in_a_row = 0
                return step
            reason = step.reason
            if isinstance(step.error, BudgetSpent):  # the environment is sound
                return Step((), {}, False, True, False, reason)
        self._broken_in_a_row += 1
        if self._broken_in_a_row >= MAX_BROKEN_IN_A_ROW:
            name = type(self.envs[i].unwrapped).__name__
            raise EnvironmentDown(
                f"{name} broke {MAX_BROKEN_IN_A_ROW} episodes in a row: {reason}"
            )
        return Step((), {}, False, True, False, reason)

    def close(self) -> None:
        """See VectorEnv."""
        for env in self.envs:
            guarded(env, env.close)
