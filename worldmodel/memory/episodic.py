"""Episodic memory: what a policy did in similar situations of other tasks.

episodes -> remembered steps -> phi(state, instruction) -> unit vector; situation ->
exact cosine top-k -> ids that stand before a policy's context: pi(a | s, Retrieve(M,
s)), as in retrieval-augmented reinforcement learning (arXiv:2202.08417). All steps of
the situation's own task are left out, and of the task that it is a variation of: they
would reveal the answer, in training alone.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from worldmodel.data import outcomes
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode, State, Task
from worldmodel.memory.encoders import Encoder, Lexical
from worldmodel.memory.index import Index
from worldmodel.text import prompts
from worldmodel.text.references import AnyTokenizer

CAPACITY = 50_000
"""Steps that are kept, the newest."""
CACHE_SIZE = 20_000
"""Situations whose steps are cached; the cache is cleared when there are more."""


class RememberedStep(NamedTuple):
    """A step of an episode, and what came of it.

    `success` is that of the whole episode, None where it was not scored.
    """

    instruction: str
    state: State
    action: str
    invalid: bool
    reward: float
    success: bool | None

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that names something."""
        return (self.action, *self.state, self.instruction)

    def __str__(self) -> str:
        """Return the action, what came of it, and where it was, for people."""
        parts = ["refused"] * self.invalid
        if (reward := outcomes.number_text(self.reward)) != "0":
            parts.append(f"reward {reward}")
        if self.success is not None:
            parts.append("won" if self.success else "not won")
        where = " / ".join((self.instruction, *self.state))
        return f"{self.action}: {', '.join(parts) or 'not scored'} (in: {where})"


@runtime_checkable
class StepMemory(Protocol):
    """What finds steps for situations."""

    def search(
        self, situations: Sequence[tuple[Task, State]], k: int
    ) -> list[tuple[RememberedStep, ...]]:
        """Return at most k steps for each situation, the most similar last."""
        ...


class SameSteps(NamedTuple):
    """A memory that finds the same steps in every situation, however many."""

    steps: tuple[RememberedStep, ...]

    def search(
        self, situations: Sequence[tuple[Task, State]], k: int
    ) -> list[tuple[RememberedStep, ...]]:
        """See StepMemory."""
        return [self.steps[-k:]] * len(situations)


def remembered_steps(episode: Episode) -> list[RememberedStep]:
    """Return the steps of an episode; one at which the environment failed is none."""
    steps = episode.transitions
    if episode.error is not None:
        steps = steps[:-1]
    return [
        RememberedStep(
            episode.task.instruction,
            t.state,
            t.action,
            is_invalid(t),
            t.reward,
            episode.success,
        )
        for t in steps
    ]


class EpisodicMemory:
    """Steps of episodes, found by state and instruction; it never changes."""

    def __init__(
        self,
        episodes: Sequence[Episode],
        *,
        encoder: Encoder | None = None,
        capacity: int = CAPACITY,
    ):
        """Remember the newest steps of these episodes, of which the last is the newest.

        Raises:
          ValueError: capacity is below 1.
        """
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._encoder = Lexical() if encoder is None else encoder
        self._steps: list[RememberedStep] = []
        self._owners: dict[str, int] = {}
        owners: list[int] = []
        copies: dict[RememberedStep, set[int]] = {}
        newest_first = (
            (self._owners.setdefault(_origin(e.task), len(self._owners)), step)
            for e in reversed(episodes)
            for step in reversed(remembered_steps(e))
        )
        for owner, step in newest_first:
            of_step = copies.setdefault(step, set())
            # One of two tasks is never left out: more copies would find nothing more.
            if owner in of_step or len(of_step) == 2:
                continue
            of_step.add(owner)
            self._steps.append(step)
            owners.append(owner)
            if len(self._steps) == capacity:
                break
        self._index = Index(self._encoder.dimensions)
        keys = [(s.state, s.instruction) for s in self._steps]
        slots = np.arange(len(keys))
        self._index.write(slots, self._vectors(keys), np.array(owners, np.int64))
        self._cache: dict[tuple, tuple[RememberedStep, ...]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def search(
        self, situations: Sequence[tuple[Task, State]], k: int
    ) -> list[tuple[RememberedStep, ...]]:
        """Return the k most similar steps of other tasks, the most similar last.

        They are distinct; of equally similar ones the newest come last. Similarity is
        that of state and instruction, both with the same weight.

        Raises:
          ValueError: k is below 1.
        """
        keys = [(_origin(t), t.instruction, state, k) for t, state in situations]
        results = {key: self._cache[key] for key in keys if key in self._cache}
        if missing := list(dict.fromkeys(x for x in keys if x not in results)):
            vectors = self._vectors([(state, text) for _, text, state, _ in missing])
            # -1 is the owner of no step: an unknown task leaves out nothing.
            excluded = np.array([self._owners.get(x[0], -1) for x in missing])
            # There are at most two copies of a step.
            scores, slots = self._index.search(vectors, excluded, 2 * k)
            for key, score, slot in zip(missing, scores, slots, strict=True):
                steps = [self._steps[i] for i in slot[score > -np.inf].tolist()]
                results[key] = tuple(list(dict.fromkeys(steps))[:k][::-1])
            if len(self._cache) + len(missing) > CACHE_SIZE:
                self._cache.clear()
            self._cache.update((key, results[key]) for key in missing)
        return [results[key] for key in keys]

    def _vectors(self, keys: Sequence[tuple[State, str]]) -> np.ndarray:
        positions = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        vectors = self._encoder.encode(list(positions))
        return vectors[[positions[key] for key in keys]]


def _origin(task: Task) -> str:
    """Return the id of the task that a task descends from, by default its own."""
    return task.lineage[0] if task.lineage else task.id


def remembered_ids(
    tok: AnyTokenizer,
    steps: Sequence[RememberedStep],
    task: Task,
    state: State,
    *,
    budget: int,
) -> list[int]:
    """Return what a policy reads of remembered steps in a situation, before its task.

    Of each that is its action, the lines of its state that the present one does not
    have, its instruction where it is another one, and what came of it. Steps that do
    not fit the `budget` of ids are left out whole, the least similar (the first) first.
    """
    tok = tok.context_view
    segments = [_step_ids(tok, step, task, state) for step in steps]
    return prompts.newest_fitting(segments, budget)


def _step_ids(
    tok: AnyTokenizer, step: RememberedStep, task: Task, state: State
) -> list[int]:
    # Control tokens that there are already: another one would change the vocabulary.
    out = [tok.control("demo"), *tok.encode(step.action)]
    if lines := [line for line in step.state if line not in state]:
        out += [tok.control("state"), *tok.encode("\n".join(lines))]
    if step.instruction != task.instruction:
        out += [tok.control("task"), *tok.encode(step.instruction)]
    if step.invalid:
        out.append(tok.control("same"))
    if (reward := outcomes.number_text(step.reward)) != "0":
        out += [tok.control("reward"), *tok.encode(reward)]
    if step.success is not None:
        out.append(tok.control("win" if step.success else "lose"))
    return out
