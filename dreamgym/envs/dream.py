"""The dream: an environment whose every answer comes from the experience model.

tasks with their initial states -> actions -> experience model -> next states, rewards
and outcomes. A batch of many episodes with a single-environment view; what is above
sees no difference from a real environment.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from dreamgym.envs.base import UNTRUSTED, Step, TextEnv
from dreamgym.envs.vector import Snapshot, VectorEnv
from worldmodel.data.invalid_actions import error_only_change
from worldmodel.data.records import State, Task
from worldmodel.experience.base import ExperienceModel, Prediction, Query


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trust:
    """How far answers are believed.

    A trajectory is cut at an answer whose confidence is below `threshold`; its outcome
    is not known, so it is not scored. `pessimism` times the missing confidence is taken
    off each reward, as a component `doubt` (MOReL and MOPO take such penalties).
    """

    threshold: float = 0.0
    pessimism: float = 0.0

    def __post_init__(self):
        if not 0 <= self.threshold <= 1 or self.pessimism < 0:
            raise ValueError(
                "threshold must be in [0, 1] and pessimism >= 0, got "
                f"{self.threshold} and {self.pessimism}"
            )


class DreamVectorEnv(VectorEnv):
    """Many dreamed episodes at once, each of which can be forked and revisited.

    A reply that makes no sense, or one that is not trusted, ends its trajectory with a
    reason, unscored. A step limit is a scored failure (`truncated`). Whether an action
    was refused is read from the answer (worldmodel.data.invalid_actions).
    """

    def __init__(
        self,
        model: ExperienceModel,
        size: int,
        *,
        max_steps: int,
        trust: Trust | None = None,
    ):
        if size < 1 or max_steps < 1:
            raise ValueError(
                f"size and max_steps must be >= 1, got {size}, {max_steps}"
            )
        self.size, self.model, self.max_steps = size, model, max_steps
        self._trust = Trust() if trust is None else trust
        self._tasks: list[Task | None] = [None] * size
        self._states: list[State] = [()] * size
        self._past: list[tuple[str, ...]] = [()] * size
        self._live = [False] * size
        self.transitions = 0

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv.

        Raises:
          ValueError: a task without an initial state; the dream cannot invent it here.
        """
        mask = options.get("reset_mask", [True] * self.size)
        out: list[State | None] = [None] * self.size
        for i, (task, chosen) in enumerate(zip(options["tasks"], mask, strict=True)):
            if not chosen or task is None:
                continue
            if not task.initial_state:
                raise ValueError(f"task {task.id!r} has no initial state to dream from")
            self._tasks[i], self._states[i] = task, task.initial_state
            self._past[i], self._live[i] = (), True
            out[i] = task.initial_state
        return out

    def snapshot(self, slot: int) -> Snapshot:
        """Where the episode of a slot stands.

        Raises:
          ValueError: no episode runs there.
        """
        task = self._tasks[slot]
        if task is None or not self._live[slot]:
            raise ValueError(f"no episode runs in slot {slot}: nothing to fork")
        return Snapshot(task, self._past[slot], self._states[slot])

    def restore(self, slot: int, snapshot: Snapshot) -> State:
        """Let a slot go on from a snapshot, of this slot or any other, of any batch.

        Whoever does the same there finds the same, as long as the model's memory stays:
        answers are a function of task, history, state and action.
        """
        self._tasks[slot], self._past[slot], self._states[slot] = snapshot
        self._live[slot] = True
        return snapshot.state

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        slots = [i for i, a in enumerate(actions) if self._live[i] and a is not None]
        queries = []
        for i in slots:
            task, action = self._tasks[i], actions[i]
            assert task is not None
            assert action is not None
            queries.append(Query(task, self._past[i], self._states[i], action))
        out: list[Step | None] = [None] * self.size
        for i, query, answer in zip(
            slots, queries, self.model.predict(queries), strict=True
        ):
            self._past[i] = (*self._past[i], query.action)
            self.transitions += 1
            out[i] = step = self._step(query, answer, len(self._past[i]))
            self._states[i] = step.state
            self._live[i] = not (step.terminated or step.truncated)
        return out

    def _step(self, query: Query, answer: Prediction, number: int) -> Step:
        trust, broken = self._trust, None
        # A backend may not know how sure it is: that is no confidence at all.
        sure = 0.0 if math.isnan(answer.confidence) else answer.confidence
        if answer.error is not None:
            broken = f"dream: {answer.error}"
        elif sure < trust.threshold:
            broken = f"{UNTRUSTED}: {sure:.3g} is below {trust.threshold:.3g}"
        if broken is not None:
            return Step(query.state, {}, False, True, False, broken)
        rewards = {"dream": answer.reward}
        if trust.pessimism:
            rewards["doubt"] = -trust.pessimism * (1 - sure)
        ended = answer.outcome != "go"
        late = not ended and number >= self.max_steps
        refused = not ended and answer.reward <= 0
        return Step(
            answer.next_state, rewards, ended, late, answer.outcome == "win",
            invalid=refused and error_only_change(query.state, answer.next_state),
        )  # fmt: skip


class DreamEnv(TextEnv):
    """The single view of the dream: a gymnasium.Env over the given tasks."""

    deterministic = True

    def __init__(
        self, model: ExperienceModel, tasks: Sequence[Task], *, max_steps: int
    ):
        super().__init__()
        if not tasks:
            raise ValueError("a dream needs at least one task with an initial state")
        self._all, self._max_steps = list(tasks), max_steps
        self._batch = DreamVectorEnv(model, 1, max_steps=max_steps)
        self._open = False

    def fork(self) -> "DreamEnv":
        """Another dream of the same model that goes on from here.

        Raises:
          ValueError: no episode runs.
        """
        other = DreamEnv(self._batch.model, self._all, max_steps=self._max_steps)
        other._batch.restore(0, self._batch.snapshot(0))
        other._open = True
        return other

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a task drawn by `seed`."""
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = self._all[int(self.np_random.integers(len(self._all)))]
        (state,) = self._batch.reset(options={"tasks": [task]})
        assert state is not None
        self._open = True
        return "\n".join(state), {"instruction": task.instruction, "success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One dreamed step. Raises RuntimeError where no episode runs."""
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        (step,) = self._batch.step([action])
        assert step is not None
        self._open = not (step.terminated or step.truncated)
        info = {
            "rewards": step.rewards, "success": step.success, "error": step.error,
            "invalid": step.invalid,
        }  # fmt: skip
        reward = float(sum(step.rewards.values()))
        return "\n".join(step.state), reward, step.terminated, step.truncated, info

    def tasks(self, split: str) -> list[Task]:
        """The tasks of a split among those given."""
        return [t for t in self._all if t.split == split]
