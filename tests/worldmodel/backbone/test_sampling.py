"""Drawing a token: cuts by hand and by sorting, draws by their frequencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.backbone.sampling import draw, shaped_logits

ALL = jnp.ones((1, 5), bool)


def probabilities(logits, **cuts):
    """What is sampled from at temperature 1, as probabilities of one row."""
    logits = jnp.asarray(logits, jnp.float32)[None]
    allowed = jnp.ones(logits.shape, bool)
    cuts = {k: np.array([v]) for k, v in cuts.items()}
    min_p = cuts.pop("min_p", np.zeros(1, np.float32)).astype(np.float32)
    got = shaped_logits(logits, allowed, np.ones(1, np.float32), min_p, **cuts)
    return np.exp(helpers.log_softmax(got))[0]


@pytest.mark.medium
def test_cuts_by_hand():
    # Probabilities 0.4, 0.3, 0.2, 0.1.
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    close = dict(atol=1e-6)
    np.testing.assert_allclose(
        probabilities(logits, top_k=2), [4 / 7, 3 / 7, 0, 0], **close
    )
    np.testing.assert_allclose(probabilities(logits, top_k=0), np.exp(logits), **close)
    np.testing.assert_allclose(probabilities(logits, top_k=9), np.exp(logits), **close)
    # 0.4 + 0.3 is not yet 0.75: the third is kept too.
    want = np.array([4, 3, 2, 0]) / 9
    np.testing.assert_allclose(
        probabilities(logits, top_p=np.float32(0.75)), want, **close
    )
    np.testing.assert_allclose(
        probabilities(logits, top_p=np.float32(0.01)), [1, 0, 0, 0], **close
    )
    np.testing.assert_allclose(
        probabilities(logits, top_p=np.float32(1.0)), np.exp(logits), **close
    )
    # min-p 0.6 of 0.4 is 0.24.
    np.testing.assert_allclose(
        probabilities(logits, min_p=0.6), [4 / 7, 3 / 7, 0, 0], **close
    )
    # In order: the two best, of which 0.57 of the mass is not 0.6, so both.
    got = probabilities(logits, top_k=2, top_p=np.float32(0.6))
    np.testing.assert_allclose(got, [4 / 7, 3 / 7, 0, 0], **close)


def sorted_cut(logits, k, p):
    """Top-k then top-p by sorting; ties at the cut stay."""
    order = np.sort(logits)[::-1]
    kept = logits >= order[k - 1]
    mass = np.where(kept, np.exp(logits - logits.max()), 0.0).astype(np.float64)
    mass /= mass.sum()
    best = np.argsort(-mass, kind="stable")
    reached = np.cumsum(mass[best])
    least = mass[best[min(int(np.searchsorted(reached, p)), len(best) - 1)]]
    return kept & (mass >= least)


@pytest.mark.medium
@given(st.integers(0, 10**6), st.integers(1, 40), st.floats(0.05, 0.95))
def test_cuts_are_those_of_a_sorted_row(seed, k, p):
    logits = np.random.default_rng(seed).normal(size=40).astype(np.float32) * 2
    got = probabilities(logits, top_k=k, top_p=np.float32(p)) > 0
    want = sorted_cut(logits, k, p)
    # A sum within rounding of p may go either way, by one token.
    assert np.abs(got.astype(int) - want).sum() <= 1
    assert np.mean(got == want) > 0.95


def test_the_upper_neighbours_of_a_cut_are_exact():
    # Values one float apart, of either sign, and minus zero.
    row = np.float32([1.0, np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, 0.0])
    for k, want in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 5)):
        assert (probabilities(row, top_k=k) > 0).sum() == want


@pytest.mark.medium
@pytest.mark.parametrize("size", [5, 300])
def test_draws_have_the_distribution(size):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=size).astype(np.float32) * 2
    logits[rng.random(size) < 0.3] = -np.inf
    n = 20_000
    uniform = jax.random.uniform(jax.random.key(0), (n, 2))
    got = np.asarray(draw(jnp.broadcast_to(jnp.asarray(logits), (n, size)), uniform))
    p = np.exp(logits - logits.max())
    p /= p.sum()
    share = np.bincount(got, minlength=size) / n
    assert (share[p == 0] == 0).all()
    # Five standard errors of each share.
    assert (np.abs(share - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all()


def test_the_edges_of_a_draw():
    # The first allowed token at 0, the last at just below 1, wherever they stand.
    row = np.full(300, -np.inf, np.float32)
    row[[7, 140, 260]] = 0.0
    top = np.nextafter(np.float32(1), np.float32(0))
    uniform = jnp.array([[0.0, 0.0], [top, top], [0.5, 0.99]])
    got = draw(jnp.broadcast_to(jnp.asarray(row), (3, 300)), uniform)
    assert np.asarray(got).tolist() == [7, 260, 140]
