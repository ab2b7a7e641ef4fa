"""Clusters of similar tasks, whose outcomes are informative about each other.

tasks -> instruction and initial state as hashed trigrams -> spherical k-means -> a
name. The DreamGym paper clusters tasks with a semantic embedder; ours is lexical.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from curriculum.config import POOLINGS
from worldmodel.data.records import Task
from worldmodel.text.ngrams import HashedNgrams, unit
from worldmodel.text.task_variations import task_text

DIMENSIONS = 256
RESTARTS = 4
ROUNDS = 50
"""The maximal number of rounds; k-means ends when no row changes its cluster."""


def spherical_kmeans(
    rows: Float[np.ndarray, "N D"], count: int, *, seed: int
) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, "K D"]]:
    """Return the cluster of each unit row, and the clusters' unit means.

    K is at most `count`. The sum of cosines to the cluster means does not fall from
    round to round (Dhillon and Modha, 2001). The best of RESTARTS starts is returned,
    each spread out as in k-means++.

    Raises:
      ValueError: there are no rows, or the count is below 1.
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
    """Return at most `count` initial centres as k-means++ draws them.

    Each is a row, drawn with a probability proportional to its distance 1 - cos from
    the nearest centre so far.
    """
    selection = [int(rng.integers(len(rows)))]
    while len(selection) < count:
        distance = np.maximum(1.0 - (rows @ rows[selection].T).max(axis=1), 0.0)
        distance[selection] = 0.0
        distance = distance.astype(np.float64)
        if not distance.sum():  # rows that differ by less than float precision
            break
        selection.append(int(rng.choice(len(rows), p=distance / distance.sum())))
    return rows[selection]


def _lloyd(rows: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels = np.argmax(rows @ centres.T, axis=1)
    for _ in range(ROUNDS):
        sums = np.zeros_like(centres)
        np.add.at(sums, labels, rows)
        # A cluster without rows keeps its centre: a mean of none is NaN.
        empty = np.bincount(labels, minlength=len(centres)) == 0
        centres = np.where(empty[:, None], centres, unit(sums))
        new_labels = np.argmax(rows @ centres.T, axis=1)
        if np.array_equal(new_labels, labels):
            break
        labels = new_labels
    return labels, centres


class Lexical:
    """Clusters of tasks by instruction and initial state; new tasks join the nearest.

    They depend on the tasks and the seed only, not on the tasks' order.
    """

    def __init__(self, tasks: Sequence[Task], count: int, *, seed: int):
        self._hashed = HashedNgrams(DIMENSIONS)
        texts = sorted({task_text(t) for t in tasks})
        rows = np.stack([self._hashed.vector(t) for t in texts])
        _, self._centres = spherical_kmeans(rows, count, seed=seed)

    def __call__(self, task: Task) -> str:
        """Return the name of a task's cluster."""
        cosines = self._centres @ self._hashed.vector(task_text(task))
        return f"lexical-{int(np.argmax(cosines))}"


def namer(
    kind: str, tasks: Sequence[Task], count: int, *, seed: int
) -> Callable[[Task], str]:
    """Return the function that names a task's cluster, by one of POOLINGS."""
    if kind == "lexical":
        return Lexical(tasks, count, seed=seed)
    if kind == "family":
        return lambda task: task.family
    if kind == "task":
        return lambda task: task.id
    raise ValueError(f"pooling must be one of {POOLINGS}, got {kind!r}")
