import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import helpers
from worldmodel.backbone.model import DecoderOutput
from worldmodel.fitting import losses
from worldmodel.fitting.arrays import Ratio, masked_ratio
from worldmodel.fitting.losses import cross_entropy, parts_cross_entropy, token_logp

ROWS, STEPS, V = 2, 5, 7


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=2.0, size=(ROWS, STEPS, V)).astype(np.float32)
    ids = rng.integers(0, V, (ROWS, STEPS)).astype(np.int32)
    mask = rng.random((ROWS, STEPS)) < 0.6
    mask[:, 0] = False
    weight = rng.random((ROWS, STEPS)).astype(np.float32)
    part = rng.integers(0, 3, (ROWS, STEPS)).astype(np.int32)
    return logits, ids, mask, weight, part


def test_token_logp_by_hand():
    # Column 0 gives 3/4 to token 1; the last column, that predicts nothing, is unused.
    logits = jnp.log(jnp.array([[[1.0, 3.0], [4.0, 1.0], [1.0, 99.0]]]))
    got = token_logp(logits, jnp.array([[0, 1, 0]]))
    np.testing.assert_allclose(got, np.log([[1.0, 3 / 4, 4 / 5]]), atol=1e-6)


def test_token_logp_matches_a_loop(arrays):
    logits, ids, *_ = arrays
    want = np.zeros(ids.shape)
    for b in range(ROWS):
        for t in range(1, STEPS):
            want[b, t] = helpers.log_softmax(logits[b, t - 1])[ids[b, t]]
    np.testing.assert_allclose(token_logp(jnp.asarray(logits), ids), want, atol=1e-5)


def test_cross_entropy_by_hand():
    # -(0.5 * -1 + 2 * -3) over 0.5 + 2; the middle -100 is masked.
    got = cross_entropy(
        jnp.array([[-1.0, -100.0, -3.0]]),
        jnp.array([[True, False, True]]),
        jnp.array([[0.5, 7.0, 2.0]]),
    )
    np.testing.assert_allclose([got.total, got.count], [6.5, 2.5], rtol=1e-6)
    np.testing.assert_allclose(got.value(), 2.6, rtol=1e-6)


def test_cross_entropy_matches_a_loop(arrays):
    logits, ids, mask, weight, _ = arrays
    logp = token_logp(jnp.asarray(logits), ids)
    total = count = 0.0
    for b, t in np.argwhere(mask):
        row = helpers.log_softmax(logits[b, t - 1])
        total, count = total - weight[b, t] * row[ids[b, t]], count + weight[b, t]
    got = cross_entropy(logp, mask, weight)
    np.testing.assert_allclose([got.total, got.count], [total, count], rtol=1e-5)


def test_parts_are_apart_and_add_up(arrays):
    logits, ids, mask, _, part = arrays
    logp = token_logp(jnp.asarray(logits), ids)
    got = parts_cross_entropy(logp, mask, part, 3)
    for i, ratio in enumerate(got):
        mine = mask & (part == i)
        want = [-np.asarray(logp)[mine].sum(), mine.sum()]
        np.testing.assert_allclose([ratio.total, ratio.count], want, rtol=1e-5)
    whole = cross_entropy(logp, mask, np.ones_like(mask, np.float32))
    np.testing.assert_allclose(sum(r.total for r in got), whole.total, rtol=1e-5)


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_padding_may_hold_anything(arrays, junk):
    logits, ids, mask, weight, part = arrays
    clean = token_logp(jnp.asarray(logits), ids)
    dirty = jnp.where(mask, clean, junk)

    def loss(logp):
        return cross_entropy(logp, mask, weight).total

    np.testing.assert_allclose(loss(dirty), loss(clean), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(loss)(dirty), -weight * mask, rtol=1e-6)
    for a, b in zip(
        parts_cross_entropy(dirty, mask, part, 3),
        parts_cross_entropy(clean, mask, part, 3),
        strict=True,
    ):
        np.testing.assert_allclose(a.total, b.total, rtol=1e-6)


def test_ratios_add_before_they_divide():
    # 10/1 and 2/3 are 12/4 = 3; the mean of the means would be 5.33.
    one = Ratio(jnp.array(10.0), jnp.array(1.0))
    two = masked_ratio(jnp.array([1.0, 1.0, 0.0, 9.0]), jnp.array([True] * 3 + [False]))
    np.testing.assert_allclose((one + two).value(), 3.0, rtol=1e-6)
    empty = masked_ratio(jnp.array([jnp.nan]), jnp.array([False]))
    assert float(empty.value()) == 0.0


@pytest.mark.medium
@pytest.mark.parametrize("rows", [1, 3])
def test_pieces_of_logits_are_all_of_them(monkeypatch, rows):
    rng = np.random.default_rng(0)
    hidden = jnp.asarray(rng.normal(size=(rows, 7, 4)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(11, 4)), jnp.float32)
    ids = rng.integers(0, 11, (rows, 7))

    def total(hidden, table):
        logp = losses.read_logp(DecoderOutput(hidden, table), ids)
        return (logp * jnp.cos(jnp.arange(7.0))[None]).sum(), logp

    run = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
    (_, want), grads = run(hidden, table)
    np.testing.assert_allclose(want, token_logp(hidden @ table.T, ids), atol=1e-5)
    assert (want[:, 0] == 0).all()
    monkeypatch.setattr(losses, "UNSPLIT_LOGITS", 10)
    monkeypatch.setattr(
        losses, "PIECE_LOGITS", 33
    )  # three tokens at a time, 6 do not fill
    (_, got), pieces = run(hidden, table)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for a, b in zip(pieces, grads, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_weights_that_add_up_to_less_than_one_still_make_a_mean():
    few = masked_ratio(jnp.full(3, 2.0), np.array([True, True, False]), 0.15)
    np.testing.assert_allclose(few.count, 0.3, rtol=1e-6)
    np.testing.assert_allclose(few.value(), 2.0, rtol=1e-6)
    assert float(Ratio(jnp.zeros(()), jnp.zeros(())).value()) == 0.0
