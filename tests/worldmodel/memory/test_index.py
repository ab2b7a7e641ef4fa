import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.memory import index as search
from worldmodel.memory.index import Index


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of 64, so that a hundred entries are several."""
    monkeypatch.setattr(search, "BLOCK", 64)
    monkeypatch.setattr(search, "GROUP", 8)
    monkeypatch.setattr(search, "WRITE", 16)


def by_hand(vectors, owners, queries, own, k):
    """Sorted by score, then slot; entries of the own and free slots left out."""
    out = []
    for q, mine in zip(queries, own, strict=True):
        scores = vectors @ q
        rows = [i for i, o in enumerate(owners) if o >= 0 and o != mine]
        out.append(sorted(rows, key=lambda i: (-scores[i], i))[:k])
    return out


def filled(vectors, owners) -> Index:
    index = Index(vectors.shape[1])
    index.write(np.arange(len(vectors)), vectors, np.asarray(owners))
    return index


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 150), k=st.sampled_from([1, 5, 20])
)
def test_search_is_a_full_comparison(seed, n, k):
    # Whole numbers: scores are exact and most of them tie.
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-1, 2, (n, 4)).astype(np.float32)
    owners, own = rng.integers(0, 3, n), rng.integers(-1, 4, 5)
    queries = rng.integers(-1, 2, (5, 4)).astype(np.float32)
    scores, slots = filled(vectors, owners).search(queries, own, k)
    want = by_hand(vectors, owners, queries, own, k)
    for q, score, slot, rows in zip(queries, scores, slots, want, strict=True):
        assert slot[: len(rows)].tolist() == rows
        np.testing.assert_array_equal(score[: len(rows)], vectors[rows] @ q)
        assert (score[len(rows) :] == -np.inf).all()


def test_real_numbers_over_many_queries():
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((500, 16), dtype=np.float32)
    queries = rng.standard_normal((300, 16), dtype=np.float32)  # more than a batch
    owners, own = np.arange(500), np.full(300, -1)
    scores, slots = filled(vectors, owners).search(queries, own, 3)
    exact = np.sort(queries @ vectors.T, axis=1)[:, ::-1][:, :3]
    np.testing.assert_allclose(scores, exact, atol=1e-5)
    np.testing.assert_allclose(
        np.einsum("qd,qkd->qk", queries, vectors[slots]), exact, atol=1e-5
    )


def test_a_slot_is_written_over():
    index = filled(np.eye(4, dtype=np.float32), [0, 0, 0, 0])
    index.write(np.array([1]), np.full((1, 4), 9, np.float32), np.array([5]))
    query, whole = np.ones((1, 4), np.float32), np.array([-1])
    scores, slots = index.search(query, whole, 2)
    assert slots[0].tolist() == [1, 0]
    assert scores[0].tolist() == [36.0, 1.0]
    assert index.search(query, np.array([5]), 1)[1].tolist() == [[0]]
    assert index.vectors()[:4].tolist() == [
        [1, 0, 0, 0],
        [9, 9, 9, 9],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]


def test_nothing_there():
    index = Index(4)
    scores, slots = index.search(np.ones((2, 4), np.float32), np.array([-1, 0]), 3)
    assert scores.shape == slots.shape == (2, 3)
    assert (scores == -np.inf).all()
    assert index.search(np.zeros((0, 4), np.float32), np.zeros(0, int), 3)[0].size == 0
    assert index.vectors().shape == (0, 4)


def test_errors():
    index = Index(4)
    with pytest.raises(ValueError, match=r"vectors must be \[N, 4\], got \[2, 3\]"):
        index.write(np.arange(2), np.ones((2, 3), np.float32), np.zeros(2, int))
    with pytest.raises(ValueError, match="owners must be >= 0, got -1"):
        index.write(np.arange(1), np.ones((1, 4), np.float32), np.array([-1]))
    with pytest.raises(ValueError, match="k must be >= 1, got 0"):
        index.search(np.ones((1, 4), np.float32), np.array([0]), 0)
