"""Groups of alike tasks: those whose outcomes say something of each other.

tasks -> their wording and start as hashed trigrams -> spherical k-means -> a name.
The paper clusters tasks "with a semantic embedder" (papers.md 1.2); ours is lexical.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from curriculum.value import CLUSTERS
from worldmodel.data.records import Task
from worldmodel.text.ngrams import HashedNgrams, unit

DIMENSIONS = 256
RESTARTS = 4
ROUNDS = 50
"""At most; it ends when no row changes its cluster."""


def spherical_kmeans(
    rows: Float[np.ndarray, "N D"], count: int, *, seed: int
) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, "K D"]]:
    """Cluster of each unit row, and the clusters' unit means; K is at most `count`.

    Dhillon and Modha (2001): the sum of cosines to the own centre does not fall from
    round to round. The best of a few starts, each spread out as k-means++ does.

    Raises:
      ValueError: no rows, or a count below 1.
    """
    if len(rows) < 1 or count < 1:
        raise ValueError(f"rows and count must be >= 1, got {len(rows)} and {count}")
    count = min(count, len(np.unique(rows, axis=0)))
    rng = np.random.default_rng(seed)
    runs = [_lloyd(rows, _spread(rows, count, rng)) for _ in range(RESTARTS)]
    return max(runs, key=lambda run: _fit(rows, *run))


def _fit(rows: np.ndarray, labels: np.ndarray, centres: np.ndarray) -> float:
    return float((rows * centres[labels]).sum())


def _spread(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """At most `count` starts, each drawn by its distance 1 - cos to the nearest."""
    chosen = [int(rng.integers(len(rows)))]
    while len(chosen) < count:
        distance = np.maximum(1.0 - (rows @ rows[chosen].T).max(axis=1), 0.0)
        distance[chosen] = 0.0
        distance = distance.astype(np.float64)
        if not distance.sum():  # rows that differ, but by less than a cosine can tell
            break
        chosen.append(int(rng.choice(len(rows), p=distance / distance.sum())))
    return rows[chosen]


def _lloyd(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels = np.argmax(rows @ centres.T, axis=1)
    for _ in range(ROUNDS):
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, rows)
        # One that lost all its rows keeps its place.
        empty = np.bincount(labels, minlength=len(centres)) == 0
        centres = np.where(empty[:, None], centres, unit(sums))
        new_labels = np.argmax(rows @ centres.T, axis=1)
        if np.array_equal(new_labels, labels):
            break
        labels = new_labels
    return labels, centres


class Lexical:
    """Clusters of tasks by instruction and initial state; new tasks join the nearest.

    A function of the tasks and the seed alone: their order does not matter.
    """

    def __init__(self, tasks: Sequence[Task], count: int, *, seed: int):
        self._hashed = HashedNgrams(DIMENSIONS)
        texts = sorted({_text(t) for t in tasks})
        rows = np.stack([self._hashed.vector(t) for t in texts])
        _, self._centres = spherical_kmeans(rows, count, seed=seed)

    def __call__(self, task: Task) -> str:
        """The name of a task's cluster."""
        cosines = self._centres @ self._hashed.vector(_text(task))
        return f"lexical-{int(np.argmax(cosines))}"


def _text(task: Task) -> str:
    return "\n".join((task.instruction, *task.initial_state))


def namer(
    kind: str, tasks: Sequence[Task], count: int, *, seed: int
) -> Callable[[Task], str]:
    """What names a task's cluster, by one of value.CLUSTERS."""
    if kind == "lexical":
        return Lexical(tasks, count, seed=seed)
    if kind == "family":
        return lambda task: task.family
    if kind == "task":
        return lambda task: task.id
    raise ValueError(f"cluster must be one of {CLUSTERS}, got {kind!r}")
