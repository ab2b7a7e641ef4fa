"""The dream: an environment whose answers come from the experience model.

tasks with their initial states -> actions -> experience model -> next states, rewards
and outcomes. There are a batch of episodes and a view of a single one; both have the
interfaces of real environments.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from dreamgym.envs.base import LOW_CONFIDENCE, Step, TextEnv
from dreamgym.envs.spaces import require_text
from dreamgym.envs.vector import Snapshot, VectorEnv
from worldmodel.data.invalid_actions import error_only_change
from worldmodel.data.outcomes import OUTCOMES
from worldmodel.data.records import State, Task
from worldmodel.experience.base import ExperienceModel, Prediction, Query


@dataclasses.dataclass(frozen=True, kw_only=True)
class UncertaintyGate:
    """What the dream does about predictions of low confidence.

    A rollout is aborted at a prediction whose confidence is below `threshold`: it has
    no outcome and is not scored (compare the halting states of MOReL,
    arXiv:2005.05951). `penalty` times (1 - confidence) is subtracted from each reward,
    as the reward component `uncertainty_penalty` (MOPO, arXiv:2005.13239).
    """

    threshold: float = 0.0
    penalty: float = 0.0

    def __post_init__(self):
        if not 0 <= self.threshold <= 1 or self.penalty < 0:
            raise ValueError(
                "threshold must be in [0, 1] and penalty >= 0, got "
                f"{self.threshold} and {self.penalty}"
            )


class Exchange(NamedTuple):
    """A query, and what the experience model answered."""

    query: Query
    answer: Prediction


class DreamVectorEnv(VectorEnv):
    """A batch of dreamed episodes, which can return to any earlier moment.

    A malformed answer, or one of low confidence, ends its episode with an error, and
    the episode is not scored. The step limit truncates an episode: a scored failure.
    Whether an action is invalid is read from the answer
    (worldmodel.data.invalid_actions).
    """

    def __init__(
        self,
        model: ExperienceModel,
        size: int,
        *,
        max_steps: int,
        uncertainty: UncertaintyGate | None = None,
        lasting_wins: bool = False,
    ):
        if size < 1 or max_steps < 1:
            raise ValueError(
                f"size and max_steps must be >= 1, got {size}, {max_steps}"
            )
        self.size, self.model, self.max_steps = size, model, max_steps
        self._lasting = max_steps  # also where a lesson has a shorter limit
        self.uncertainty = UncertaintyGate() if uncertainty is None else uncertainty
        self.lasting_wins = lasting_wins
        """Whether an episode that lasts until the step limit is won, as a game is in
        which one has to survive. No answer of the model tells that."""
        self._tasks: list[Task | None] = [None] * size
        self._states: list[State] = [()] * size
        self._past: list[tuple[str, ...]] = [()] * size
        self._past_states: list[tuple[State, ...]] = [()] * size
        self._running = [False] * size
        self.transitions = 0
        self.exchanges: list[Exchange | None] = [None] * size
        """What the model was asked in the last step of each slot, and its answer."""

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv.

        Raises:
          ValueError: a task has no initial state; the dream cannot invent one.
        """
        mask = options.get("reset_mask", [True] * self.size)
        out: list[State | None] = [None] * self.size
        for i, (task, resets) in enumerate(zip(options["tasks"], mask, strict=True)):
            if not resets or task is None:
                continue
            if not task.initial_state:
                raise ValueError(f"task {task.id!r} has no initial state to dream from")
            self._tasks[i], self._states[i] = task, task.initial_state
            self._past[i], self._past_states[i], self._running[i] = (), (), True
            out[i] = task.initial_state
        return out

    def snapshot(self, slot: int) -> Snapshot:
        """Return the present moment of the episode in a slot.

        Raises:
          ValueError: no episode runs in the slot.
        """
        task = self._tasks[slot]
        if task is None or not self._running[slot]:
            raise ValueError(f"no episode runs in slot {slot}: nothing to fork")
        past = self._past[slot], self._past_states[slot]
        return Snapshot(task, past[0], self._states[slot], past[1])

    def restore(self, slot: int, snapshot: Snapshot) -> State:
        """Let a slot continue from a snapshot of any slot of any batch.

        Equal actions then have equal answers, as long as the memory of the model does
        not change: an answer is a function of task, history, state and action.
        """
        self._tasks[slot], self._states[slot] = snapshot.task, snapshot.state
        self._past[slot], self._past_states[slot] = snapshot.past, snapshot.past_states
        self._running[slot] = True
        return snapshot.state

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        slots = [i for i, a in enumerate(actions) if self._running[i] and a is not None]
        queries = []
        for i in slots:
            task, action = self._tasks[i], actions[i]
            assert task is not None
            assert action is not None
            past, state = self._past[i], self._states[i]
            queries.append(Query(task, past, state, action, self._past_states[i]))
        out: list[Step | None] = [None] * self.size
        answers = self.model.predict(queries)
        if len(answers) != len(queries):
            raise ValueError(
                f"predict must return one prediction for each of {len(queries)} "
                f"queries, got {len(answers)}"
            )
        for i, query, answer in zip(slots, queries, answers, strict=True):
            if answer.error is None and answer.outcome not in OUTCOMES:
                raise ValueError(
                    f"a prediction's outcome must be one of {OUTCOMES}, got "
                    f"{answer.outcome!r}"
                )
            self._past[i] = (*self._past[i], query.action)
            self._past_states[i] = (*self._past_states[i], query.state)
            self.transitions += 1
            self.exchanges[i] = Exchange(query, answer)
            out[i] = step = self._step(query, answer, len(self._past[i]))
            self._states[i] = step.state
            self._running[i] = not (step.terminated or step.truncated)
        return out

    def _step(self, query: Query, answer: Prediction, number: int) -> Step:
        gate, error = self.uncertainty, None
        # An unknown confidence counts as none.
        confidence = 0.0 if math.isnan(answer.confidence) else answer.confidence
        if answer.error is not None:
            error = f"dream: {answer.error}"
        elif confidence < gate.threshold:
            error = f"{LOW_CONFIDENCE}: {confidence:.3g} is below {gate.threshold:.3g}"
        if error is not None:
            return Step(query.state, {}, False, True, False, error)
        rewards = {"dream": answer.reward}
        if gate.penalty:
            rewards["uncertainty_penalty"] = -gate.penalty * (1 - confidence)
        ended = answer.outcome != "go"
        truncated = not ended and number >= self.max_steps
        may_be_invalid = not ended and answer.reward <= 0
        return Step(
            answer.next_state,
            rewards,
            ended,
            truncated,
            answer.outcome == "win"
            or (truncated and self.lasting_wins and number >= self._lasting),
            invalid=may_be_invalid
            and error_only_change(query.state, answer.next_state),
            confidence=1.0 if math.isnan(answer.confidence) else confidence,
        )


class DreamEnv(TextEnv):
    """The dream of a single episode: a gymnasium.Env over the given tasks.

    `info` of a step also holds the model's `reasoning`, and its `confidence` where the
    model knows one.
    """

    deterministic = True

    def __init__(
        self,
        model: ExperienceModel,
        tasks: Sequence[Task],
        *,
        max_steps: int,
        uncertainty: UncertaintyGate | None = None,
        lasting_wins: bool = False,
    ):
        super().__init__()
        if not tasks:
            raise ValueError("a dream needs at least one task with an initial state")
        self._all, self.max_episode_steps = list(tasks), max_steps
        self._uncertainty = uncertainty
        self._batch = DreamVectorEnv(
            model,
            1,
            max_steps=max_steps,
            uncertainty=uncertainty,
            lasting_wins=lasting_wins,
        )
        self._open = False
        self.exchange: Exchange | None = None
        """What the model was asked in the last step, and its answer."""
        self.error: str | None = None
        """Why the last step broke the episode off, if it did."""

    def fork(self) -> "DreamEnv":
        """Return another dream of the same model that continues from this moment.

        Raises:
          ValueError: no episode runs.
        """
        other = DreamEnv(
            self._batch.model,
            self._all,
            max_steps=self.max_episode_steps,
            uncertainty=self._uncertainty,
            lasting_wins=self._batch.lasting_wins,
        )
        other._batch.restore(0, self._batch.snapshot(0))
        other._open = True
        return other

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start `options["task"]`, or a task drawn by `seed`.

        The task is a Task, or the id of one of the dream's tasks.

        Raises:
          ValueError: the dream has no task of this id.
        """
        super().reset(seed=seed)
        task = (options or {}).get("task")
        if task is None:
            task = self._all[int(self.np_random.integers(len(self._all)))]
        elif isinstance(task, str):
            task = task_by_id(self._all, task)
        (state,) = self._batch.reset(options={"tasks": [task]})
        assert state is not None
        self._open, self.exchange, self.error = True, None, None
        return "\n".join(state), first_info(task)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one dreamed step.

        Raises:
          RuntimeError: no episode runs.
          TypeError: the action is no text.
        """
        if not self._open:
            raise RuntimeError("step() needs a running episode: call reset() first")
        (step,) = self._batch.step([require_text(action)])
        assert step is not None
        self._open = not (step.terminated or step.truncated)
        self.exchange, self.error = self._batch.exchanges[0], step.error
        reward = float(sum(step.rewards.values()))
        info = step_info(step, self.exchange)
        return "\n".join(step.state), reward, step.terminated, step.truncated, info

    def tasks(self, split: str) -> list[Task]:
        """Return those of the given tasks that are of a split."""
        return [t for t in self._all if t.split == split]


def task_by_id(tasks: Sequence[Task], name: str) -> Task:
    """Return the task of this id.

    Raises:
      ValueError: there is none; the message lists some that there are.
    """
    for task in tasks:
        if task.id == name:
            return task
    examples = [t.id for t in tasks[:5]]
    raise ValueError(
        f"no task {name!r} in this dream, or in the split that it draws from; it "
        f"has {len(tasks)}: {examples} ..."
    )


def first_info(task: Task) -> dict[str, Any]:
    """Return the `info` with which an episode of a dream begins."""
    return {
        "instruction": task.instruction,
        "task": task.id,
        "split": task.split,
        "success": False,
    }


def step_info(step: Step, exchange: Exchange | None) -> dict[str, Any]:
    """Return the `info` of a dreamed step: its outcome, and what the model thought.

    A confidence that the model does not know is left out.
    """
    info: dict[str, Any] = {
        "rewards": step.rewards,
        "success": step.success,
        "error": step.error,
        "invalid": step.invalid,
    }
    return info | thoughts(exchange)


def thoughts(exchange: Exchange | None) -> dict[str, Any]:
    """Return the `reasoning` of an answer, and its `confidence` where it has one."""
    if exchange is None:
        return {}
    reasoning, confidence = exchange.answer.reasoning, exchange.answer.confidence
    sure = {} if math.isnan(confidence) else {"confidence": float(confidence)}
    return {"reasoning": reasoning} | sure
