"""The interface of experience models: (task, history, state, action) -> what follows.

Queries, answers, the protocol and the parts that both backends share. `local` answers
with a decoder of our own, `prompted` with a chat server.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax

from worldmodel.data import outcomes
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import State, Task, Transition, check_lines
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.state_format import StateFormat
from worldmodel.text.task_options import renamed_words, with_renamed_words

SAMPLES = 3
SAMPLED = 1000
"""Attempts from this number on are further samples, each under its own noise."""


class Query(NamedTuple):
    """An action in a state of a task; `past` holds earlier actions, oldest first.

    `past_states` holds the states in which these were taken. A model that reads them
    needs one for each past action. A state is a tuple of lines, as
    `worldmodel.data.records.lines` makes of a text.
    """

    task: Task
    past: tuple[str, ...]
    state: State
    action: str
    past_states: tuple[State, ...] = ()


def query_after(
    task: Task, steps: Sequence[Transition], state: State, action: str
) -> Query:
    """Return the query of an action in a state to which the steps have led."""
    past = tuple(t.action for t in steps)
    return Query(task, past, state, action, tuple(t.state for t in steps))


class Prediction(NamedTuple):
    """The model's answer to a query; `error` is None unless the reply was malformed.

    `outcome` says how the episode goes on: "go", or "win" or "lose" where it ends.
    `confidence` is the probability that the model gave to the state, reward and outcome
    of its reply. `p_reward` says how likely a reward other than 0 is, and `p_terminal`
    the episode's end, each given the reply before it: 1 minus the probability of 0 or
    "go" where that is the answer, else that of the very reward or end, which is less
    where others were possible. All are NaN where a backend does not know them.
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
    """Anything that answers queries and proposes tasks."""

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction a query."""
        ...

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """Return a new task with its initial state from each group, or None.

        A group holds similar tasks with their success; the first is varied.
        """
        ...


@runtime_checkable
class Sampling(Protocol):
    """An experience model that gives further replies, each under noise of its own."""

    def sample(self, queries: Sequence[Query], number: int) -> list[Prediction]:
        """Return reply `number` to each query; none of them is `predict`'s."""
        ...


def agreement(
    model: Sampling, queries: Sequence[Query], answers: Sequence[Prediction]
) -> list[float]:
    """Return the share of SAMPLES further replies to a query that equal its answer.

    A malformed reply equals nothing.
    """
    counts = [0] * len(queries)
    for number in range(SAMPLES):
        replies = model.sample(queries, number)
        counts = [
            n + (b.error is None and a[:3] == b[:3])
            for n, a, b in zip(counts, answers, replies, strict=True)
        ]
    return [n / SAMPLES for n in counts]


def states_read(model: ExperienceModel) -> int:
    """Return how many past states of a query a model reads; 0 if it does not say."""
    return getattr(model, "states_read", 0)


def same_reward(predicted: float, real: float) -> bool:
    """Return whether two rewards are equal to the digits that replies have."""
    return outcomes.number_text(predicted) == outcomes.number_text(real)


def is_correct(answer: Prediction, transition: Transition) -> bool:
    """Return whether next state, reward and outcome are the real ones."""
    return (
        answer.error is None
        and answer.next_state == transition.next_state
        and same_reward(answer.reward, transition.reward)
        and answer.outcome == outcomes.outcome_of(transition)
    )


def failed_prediction(query: Query, error: str) -> Prediction:
    """Return a prediction without an answer; only its `error` means anything."""
    return Prediction(query.state, 0.0, "go", "", math.nan, error)


def variation(group: Sequence[SeedTask], instruction: str, state: State) -> Task:
    """Return a generated task with this instruction and start; they make up its id.

    It keeps the options of the first seed, with the words that the instruction
    replaces. Where it says something else, nobody knows which calls are expected. The
    lineage names the first seed, then the others.
    """
    task = group[0].task
    others = [seed.task.id for seed in group[1:]]
    renames = renamed_words(task.instruction, instruction)
    options = with_renamed_words(task.options, renames or {})
    if renames is None:
        options.pop("calls", None)
    return dataclasses.replace(
        task,
        id=f"dream-{content_seed(instruction, state):08x}",
        instruction=instruction,
        initial_state=state,
        options=options,
        split="generated",
        lineage=(*task.lineage, task.id, *others),
    )


class CachingExperienceModel(ExperienceModel):
    """What both backends share: a replay memory, and a cache of answers.

    The cache is cleared when the memory changes. So a group of rollouts that takes the
    same actions pays once, and the same action in the same state has the same answer.
    """

    def __init__(
        self,
        memory: ReplayMemory,
        *,
        history: int,
        history_states: bool = False,
        seed: int = 0,
        state_formats: Mapping[str, StateFormat] | None = None,
    ):
        """Build the cache around a memory.

        Args:
          history: the number of past actions that the model reads.
          history_states: whether it reads the states in which they were taken.
          state_formats: the format of a family's states by its name; states of other
            families are not checked.
        """
        self.memory, self._history = memory, history
        self._history_states = history_states
        self._seed, self._state_formats = seed, state_formats or {}
        self._answers: dict[tuple, Prediction] = {}
        self.queried = self.computed = 0

    @property
    def states_read(self) -> int:
        """How many of the past states of a query the model reads, the last ones."""
        return self._history if self._history_states else 0

    def add_to_memory(
        self, task_ids: Sequence[str] = (), transitions: Sequence[Transition] = ()
    ) -> None:
        """Add transitions to the memory between rollouts and clear the cache."""
        self.memory.add(task_ids, transitions)
        self._answers.clear()

    def trim_cache(self, limit: int) -> None:
        """Clear the cache where it holds more answers than this.

        Only time is lost: the same query has the same answer again.
        """
        if len(self._answers) > limit:
            self._answers.clear()

    def neighbor_similarity(self, queries: Sequence[Query]) -> list[float]:
        """Return the similarity of the nearest transition of another task, or 0."""
        keys = [(q.task.id, q.state, q.action) for q in queries]
        nearest = self.memory.nearest(keys, 1)
        return [float(neighbors[-1][0]) if neighbors else 0.0 for neighbors in nearest]

    def _key(self, query: Query) -> tuple:
        """Return the part of a query that the model reads."""
        past = prompts.last_actions(query.past, self._history)
        return (
            query.task.id,
            query.task.instruction,
            past,
            self._past_states(query),
            query.state,
            query.action,
        )

    def _past_states(self, query: Query) -> tuple[State, ...] | None:
        """Return the past states that the model reads; None if it reads actions alone.

        Raises:
          ValueError: the query does not hold one for each past action.
        """
        if not self._history_states:
            return None
        if len(query.past_states) != len(query.past):
            raise ValueError(
                "experience.history_states needs a past state for each past action, "
                f"got {len(query.past_states)} for {len(query.past)}"
            )
        return query.past_states[-self._history :] if self._history else ()

    def _unanswered(
        self, queries: Sequence[Query]
    ) -> tuple[list[tuple], dict[tuple, Query]]:
        """Return the key of each query, and the distinct queries not in the cache."""
        for query in queries:
            check_lines("the state of a query", query.state)
        keys = [self._key(q) for q in queries]
        todo = {
            k: q for k, q in zip(keys, queries, strict=True) if k not in self._answers
        }
        self.queried += len(keys)
        self.computed += len(todo)
        return keys, todo
