"""Clusters: spherical k-means against brute force, and tasks that are worded alike."""

import dataclasses
import itertools

import numpy as np
import pytest

from curriculum import clusters
from curriculum.clusters import spherical_kmeans
from tests import doubles
from worldmodel.text.ngrams import HashedNgrams, ngrams, unit


def fit(rows, labels, count):
    """The sum of cosines to the best centres for these labels: lengths of the sums."""
    return sum(np.linalg.norm(rows[labels == k].sum(axis=0)) for k in range(count))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("count", [2, 3])
def test_the_best_of_all_partitions_is_found(seed, count):
    rng = np.random.default_rng(seed)
    directions = unit(rng.normal(size=(count, 4)))
    near = directions[np.arange(8) % count]
    rows = unit(near + 0.25 * rng.normal(size=(8, 4)))
    best = max(
        fit(rows, np.array(labels), count)
        for labels in itertools.product(range(count), repeat=8)
    )
    labels, centres = spherical_kmeans(rows, count, seed=0)
    assert fit(rows, labels, count) == pytest.approx(best)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(labels, np.argmax(rows @ centres.T, axis=1))


def test_no_more_clusters_than_rows_that_differ():
    rows = unit(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    labels, centres = spherical_kmeans(rows, 5, seed=3)
    assert len(centres) == 2
    assert labels[0] == labels[1] != labels[2]


def test_rows_that_no_cosine_tells_apart_share_a_cluster():
    texts = [("x" * n,) for n in (50_000, 50_001, 50_002)] + [("y",)]
    base = doubles.task(0, 1, 2)
    tasks = [
        dataclasses.replace(base, id=str(i), instruction="", initial_state=text)
        for i, text in enumerate(texts)
    ]
    for seed in range(4):
        named = clusters.Lexical(tasks, 4, seed=seed)
        names = [named(t) for t in tasks]
        assert names[0] != names[3]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="got 0 and 2"):
        spherical_kmeans(np.zeros((0, 3)), 2, seed=0)
    with pytest.raises(ValueError, match="got 1 and 0"):
        spherical_kmeans(np.ones((1, 3)), 0, seed=0)
    with pytest.raises(ValueError, match="semantic"):
        clusters.namer("semantic", doubles.tasks("train"), 2, seed=0)


def worded(family, count):
    """Tasks of one wording each, told apart by a number."""
    texts = {"fetch": "fetch the wooden bucket", "sing": "sing an old sailor song"}
    base = doubles.task(0, 1, 2)
    return [
        dataclasses.replace(
            base,
            id=f"{family}{i}",
            instruction=f"{texts[family]} {i}",
            initial_state=(f"{family} {i}",),
        )
        for i in range(count)
    ]


def test_tasks_of_one_wording_share_a_cluster_in_any_order():
    tasks = worded("fetch", 6) + worded("sing", 6)
    first = clusters.Lexical(tasks, 2, seed=1)
    other = clusters.Lexical(tasks[::-1], 2, seed=1)
    names = [first(t) for t in tasks]
    assert len(set(names[:6])) == len(set(names[6:])) == 1
    assert names[0] != names[6]
    assert [other(t) for t in tasks] == names
    (new,) = worded("sing", 9)[8:]
    assert first(new) == names[6]


def test_hashed_trigrams_by_hand():
    assert ngrams("ab") == [" ab", "ab "]
    assert ngrams("") == ["  "]
    hashed = HashedNgrams(32)
    np.testing.assert_allclose(hashed.vector("Coin"), hashed.vector("coin"), rtol=1e-12)
    assert np.linalg.norm(hashed.vector("coin")) == pytest.approx(1.0)
    assert not np.allclose(hashed.vector("coin", "s"), hashed.vector("coin", "a"))
    with pytest.raises(ValueError, match="dimensions must be >= 1, got 0"):
        HashedNgrams(0)
