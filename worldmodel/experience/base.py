"""What an experience model is: (task, history, state, action) -> what happens next.

Here stands what everything above reads: questions, answers, the interface, and what
its backends share. `local` answers by a decoder of our own, `prompted` by a chat
server.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax

from worldmodel.data.hashing import content_seed
from worldmodel.data.records import State, Task, Transition
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.state_format import StateFormat

SIGNALS = ("token", "nearest", "agreement", "ensemble")
"""What an answer may be trusted by: the probability of what was written; the similarity
of the nearest stored transition of another task; the share of SAMPLES replies under
other noise that say the same; the least probability that a member of an ensemble gives
to it. The last is of fitted models alone (local.py)."""
SAMPLES = 3
SAMPLED = 1000
"""Attempts from here on are samples beside the answer, under noise of their own."""


class Query(NamedTuple):
    """What the agent did where. `past` holds its earlier actions, oldest first."""

    task: Task
    past: tuple[str, ...]
    state: State
    action: str


class Prediction(NamedTuple):
    """The model's answer. `problem` is None unless the reply made no sense.

    `confidence` is the probability the model gave to the state, reward and outcome
    it wrote, `earns` that of a reward other than 0, `ends` that of the episode's end
    (each for what was written before it); NaN where a backend cannot tell.
    """

    next_state: State
    reward: float
    outcome: str
    reasoning: str
    confidence: float
    error: str | None
    p_reward: float = math.nan
    p_terminal: float = math.nan


@runtime_checkable
class ExperienceModel(Protocol):
    """Anything that answers queries and proposes tasks: local, prompted, a double."""

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """One prediction a query."""
        ...

    def vary(self, tasks: Sequence[Task], *, key: jax.Array) -> list[Task | None]:
        """One variation a task, with its initial state; None where it is malformed."""
        ...


@runtime_checkable
class Sampling(Protocol):
    """An experience model that can be asked again, under noise of its own."""

    def sample(self, queries: Sequence[Query], number: int) -> list[Prediction]:
        """Reply `number` to each query, taken as it comes; none is `predict`'s."""
        ...


def agreement(
    model: Sampling, queries: Sequence[Query], answers: Sequence[Prediction]
) -> list[float]:
    """The share of SAMPLES more replies to each query that say what the answer says.

    A reply with a problem says nothing, whatever stands in its place.
    """
    counts = [0] * len(queries)
    for number in range(SAMPLES):
        replies = model.sample(queries, number)
        counts = [
            n + (b.error is None and a[:3] == b[:3])
            for n, a, b in zip(counts, answers, replies, strict=True)
        ]
    return [n / SAMPLES for n in counts]


def same_reward(predicted: float, real: float) -> bool:
    """Whether a reward is told to the digits that replies write."""
    return prompts.number_text(predicted) == prompts.number_text(real)


def is_correct(answer: Prediction, transition: Transition) -> bool:
    """Next state, reward and outcome are the real ones."""
    return (
        answer.error is None
        and answer.next_state == transition.next_state
        and same_reward(answer.reward, transition.reward)
        and answer.outcome == prompts.outcome_of(transition)
    )


def failed_prediction(query: Query, error: str) -> Prediction:
    """No answer, and why; its state and reward mean nothing."""
    return Prediction(query.state, 0.0, "go", "", math.nan, error)


def variation(task: Task, instruction: str, state: State) -> Task:
    """A generated task of this wording and start, named by its content."""
    return dataclasses.replace(
        task, id=f"dream-{content_seed(instruction, state):08x}",
        instruction=instruction, initial_state=state, options={}, split="generated",
        lineage=(*task.lineage, task.id),
    )  # fmt: skip


class CachingExperienceModel(ExperienceModel):
    """What backends share: a replay memory, and answers remembered until it changes.

    So a group of rollouts that walks the same way pays once, and whoever comes back to
    a state and does the same there finds the same.
    """

    def __init__(
        self,
        memory: ReplayMemory,
        *,
        history: int,
        seed: int = 0,
        state_formats: Mapping[str, StateFormat] | None = None,
    ):
        """`history`: how many past actions are read.

        `forms`: of the states of a family, by its name; others are not checked.
        """
        self.memory, self._history = memory, history
        self._seed, self._state_formats = seed, state_formats or {}
        self._answers: dict[tuple, Prediction] = {}
        self.queried = self.computed = 0

    def add_to_memory(
        self, task_ids: Sequence[str] = (), transitions: Sequence[Transition] = ()
    ) -> None:
        """Enrich the memory between rollouts; earlier answers are forgotten."""
        self.memory.add(task_ids, transitions)
        self._answers.clear()

    def neighbor_similarity(self, queries: Sequence[Query]) -> list[float]:
        """The similarity of the nearest transition of another task; 0 without one."""
        keys = [(q.task.id, q.state, q.action) for q in queries]
        nearest = self.memory.nearest(keys, 1)
        return [float(neighbors[-1][0]) if neighbors else 0.0 for neighbors in nearest]

    def _key(self, query: Query) -> tuple:
        """The part of a query that the model reads."""
        past = prompts.last_actions(query.past, self._history)
        return (
            query.task.id, query.task.instruction, past, query.state, query.action,
        )  # fmt: skip

    def _unanswered(
        self, queries: Sequence[Query]
    ) -> tuple[list[tuple], dict[tuple, Query]]:
        """The key of each query, and those not answered yet, equal ones once."""
        keys = [self._key(q) for q in queries]
        todo = {
            k: q for k, q in zip(keys, queries, strict=True) if k not in self._answers
        }
        self.queried, self.computed = (
            self.queried + len(keys),
            self.computed + len(todo),
        )
        return keys, todo
