"""The clipped surrogate and the KL estimator: by hand, by loops, at the edges."""

import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl import losses
from worldmodel.fitting.arrays import masked_ratio

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def arrays(seed=0, shape=(3, 5)):
    rng = np.random.default_rng(seed)
    logp, old, ref, adv = rng.normal(size=(4, *shape)).astype(np.float32) * 0.4
    mask = rng.random(shape) < 0.6
    return jnp.asarray(logp), old, ref, adv, mask


def surrogate(logp, old, adv, mask, weight=1.0, **clip):
    ratio = losses.log_ratio(logp, old, mask)
    return losses.clipped_policy_loss(ratio, adv, mask, weight, **clip)


def divergence(logp, ref, mask, weight=1.0):
    return masked_ratio(losses.token_kl(logp, ref, mask), mask, weight)


def test_clip_by_hand():
    # Ratios 2, 2, 0.5, 0.5, 1.1. A good action is capped at 1.28 above but not below;
    # a bad one keeps 2 above and is capped at 0.8 below (a max in place of the min
    # gives 2, 1.28, 0.8, 0.5, 1.1).
    logp = jnp.log(jnp.array([[2.0, 2.0, 0.5, 0.5, 1.1]]))
    adv = jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0]])
    old, mask = jnp.zeros((1, 5)), jnp.ones((1, 5), bool)
    got = surrogate(logp, old, adv, mask, **CLIP)
    np.testing.assert_allclose(got.total, -(1.28 - 2.0 + 0.5 - 0.8 + 1.1), rtol=1e-5)
    np.testing.assert_allclose(got.count, 5.0, rtol=1e-6)
    share = losses.clip_fraction(losses.log_ratio(logp, old, mask), mask, **CLIP)
    np.testing.assert_allclose(share.value(), 4 / 5, rtol=1e-6)


def test_clipped_tokens_have_no_gradient_and_the_rest_push_the_right_way():
    logp = jnp.log(jnp.array([[2.0, 2.0, 0.5, 0.5, 1.0]]))
    adv = jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0]])
    old, mask = jnp.zeros((1, 5)), jnp.ones((1, 5), bool)

    def total(x):
        return surrogate(x, old, adv, mask, **CLIP).total

    # d/dlogp of -(ratio * adv) is -ratio * adv; descent raises what was good.
    np.testing.assert_allclose(
        jax.grad(total)(logp), [[0.0, 2.0, -0.5, 0.0, -1.0]], atol=1e-6
    )


def test_losses_are_those_of_a_loop():
    logp, old, _, adv, mask = arrays()
    loss = clipped = 0.0
    for i, j in zip(*np.nonzero(mask), strict=True):
        r = np.exp(logp[i, j] - old[i, j])
        bounded = min(max(r, 0.8), 1.28)
        loss -= min(r * adv[i, j], bounded * adv[i, j])
        clipped += bounded != r
    got = surrogate(logp, old, adv, mask, **CLIP)
    np.testing.assert_allclose(got.total, loss, rtol=1e-5)
    np.testing.assert_allclose(got.count, mask.sum(), rtol=1e-6)
    got = losses.clip_fraction(losses.log_ratio(logp, old, mask), mask, **CLIP)
    np.testing.assert_allclose(got.total, clipped, rtol=1e-5)


def distributions(*rows):
    """Log-probabilities [1, T, V] of rows of probabilities."""
    with np.errstate(divide="ignore"):
        return np.log(np.array([rows], np.float32))


def test_kl_by_hand_and_its_sign():
    # Policy (1/2, 1/2), reference (1/4, 3/4): half of log 2 + log 2/3. The other way
    # round it would be a quarter of log 1/2 and three of log 3/2.
    p, q = distributions((0.5, 0.5)), distributions((0.25, 0.75))
    one = jnp.ones((1, 1), bool)
    got = divergence(jnp.asarray(p), q, one)
    np.testing.assert_allclose(got.total, np.log(4 / 3) / 2, rtol=1e-6)
    back = divergence(jnp.asarray(q), p, one)
    np.testing.assert_allclose(back.total, np.log(0.5) / 4 + 0.75 * np.log(1.5), 1e-6)
    same = divergence(jnp.asarray(p), p, one)
    np.testing.assert_allclose(same.total, 0.0, atol=1e-7)


def test_kl_is_that_of_a_loop_over_what_may_be_sampled():
    rng = np.random.default_rng(1)
    allowed = rng.random((1, 5, 7)) < 0.6
    allowed[..., 0] = True
    p, q = (np.exp(rng.normal(size=(1, 5, 7)) * 2) * allowed for _ in range(2))
    p, q = (x / x.sum(-1, keepdims=True) for x in (p, q))
    mask, weight = np.array([[1, 1, 0, 1, 1]], bool), rng.random((1, 5)) + 1
    expected = sum(
        weight[0, t] * p[0, t, v] * np.log(p[0, t, v] / q[0, t, v])
        for t, v in zip(*np.nonzero(allowed[0] & mask[0][:, None]), strict=True)
    )
    logs = (jnp.asarray(distributions(*x[0])) for x in (p, q))
    got = divergence(*logs, mask, weight.astype(np.float32))
    np.testing.assert_allclose(got.total, expected, rtol=1e-4)
    np.testing.assert_allclose(got.count, weight[mask].sum(), rtol=1e-6)


def test_one_unlikely_token_does_not_decide_the_kl_gradient():
    # The policy gives the first token e^-8 of what the reference does.
    logits = jnp.array([[[-8.0, 0.0]]])
    ref = distributions((0.5, 0.5))

    def total(x):
        logp = jax.nn.log_softmax(x)
        return divergence(logp, ref, jnp.ones((1, 1), bool)).total

    assert float(jnp.abs(jax.grad(total)(logits)).max()) < 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_padding_may_hold_anything_in_value_and_gradient(bad):
    logp, old, ref, adv, mask = arrays()

    def total(x, old, ref, adv):
        loss = surrogate(x, old, adv, mask, **CLIP).total
        both = (jnp.stack([y, -2 * y], -1) for y in (x, jnp.asarray(ref)))
        return loss + divergence(*both, mask).total

    clean = jax.value_and_grad(total)(logp, old, ref, adv)
    dirty = [np.where(mask, x, np.float32(bad)) for x in (logp, old, ref, adv)]
    got = jax.value_and_grad(total)(jnp.asarray(dirty[0]), *dirty[1:])
    np.testing.assert_allclose(got[0], clean[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], clean[1], rtol=1e-6)
    assert (np.asarray(got[1])[~mask] == 0).all()


def test_the_whole_is_the_sum_of_its_parts():
    logp, old, _, adv, mask = arrays(shape=(4, 6))
    mask[0] = False  # a mean of means would weigh this row like the others
    whole = surrogate(logp, old, adv, mask, **CLIP)
    parts = [
        surrogate(logp[s], old[s], adv[s], mask[s], **CLIP)
        for s in (slice(0, 1), slice(1, 4))
    ]
    total = parts[0] + parts[1]
    np.testing.assert_allclose(total.value(), whole.value(), rtol=1e-6)


def test_eager_is_jitted():
    logp, old, _, adv, mask = arrays(2)
    jitted = jax.jit(lambda *x: surrogate(*x, **CLIP).value())(logp, old, adv, mask)
    eager = surrogate(logp, old, adv, mask, **CLIP).value()
    np.testing.assert_allclose(jitted, eager, rtol=1e-6)


# --- what may be chosen ------------------------------------------------------


def test_dual_clip_by_hand():
    # A bad token four times as likely costs 3 times its advantage, not 4; one twice as
    # likely costs 2 as before; a good one is clipped above as ever.
    logp = jnp.log(jnp.array([[4.0, 2.0, 4.0]]))
    adv, old = jnp.array([[-1.0, -1.0, 1.0]]), jnp.zeros((1, 3))
    mask = jnp.ones((1, 3), bool)
    got = surrogate(logp, old, adv, mask, **CLIP, dual_clip=3.0)
    np.testing.assert_allclose(got.total, 3.0 + 2.0 - 1.28, rtol=1e-5)
    plain = surrogate(logp, old, adv, mask, **CLIP)
    np.testing.assert_allclose(plain.total, 4.0 + 2.0 - 1.28, rtol=1e-5)
    slope = jax.grad(
        lambda x: surrogate(x, old, adv, mask, **CLIP, dual_clip=3.0).total
    )(logp)
    np.testing.assert_allclose(slope, [[0.0, 2.0, 0.0]], atol=1e-6)


def test_the_ratio_of_a_turn_is_the_mean_of_its_tokens_by_a_loop():
    rng = np.random.default_rng(0)
    segment = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 2, 3, 3]])
    mask = np.array([[0, 1, 1, 0, 1, 0], [0, 1, 1, 0, 0, 1]], bool)
    ratio = np.where(mask, rng.normal(size=(2, 6)), 0.0).astype(np.float32)
    got = np.asarray(losses.turn_log_ratio(jnp.asarray(ratio), mask, segment))
    for row, at in np.ndindex(2, 6):
        own = mask[row] & (segment[row] == segment[row, at])
        expected = ratio[row][own].mean() if mask[row, at] else 0.0
        np.testing.assert_allclose(got[row, at], expected, rtol=1e-5, atol=1e-7)
    # Padding and the packing of others change nothing.
    wider = np.pad(segment + 4, ((0, 0), (0, 3)))
    again = losses.turn_log_ratio(
        jnp.pad(ratio, ((0, 0), (0, 3)), constant_values=9.0),
        np.pad(mask, ((0, 0), (0, 3))),
        wider % 7,
    )
    np.testing.assert_allclose(again[:, :6], got, rtol=1e-5)


def test_every_token_of_a_turn_feels_the_same_gradient():
    # GSPO: the turn's ratio is clipped as a whole, and its tokens share the slope.
    segment = np.array([[1, 1, 1, 2, 2]])
    mask = np.array([[False, True, True, False, True]])
    adv = jnp.array([[0.0, 2.0, 2.0, 0.0, -1.0]])

    def total(x):
        ratio = losses.turn_log_ratio(jnp.where(mask, x, 0.0), mask, segment)
        return losses.clipped_policy_loss(ratio, adv, mask, **CLIP).total

    slope = np.asarray(jax.grad(total)(jnp.zeros((1, 5))))
    np.testing.assert_allclose(slope, [[0.0, -2.0, -2.0, 0.0, 1.0]], atol=1e-6)
    # One token far beyond the clip pulls its whole turn out.
    moved = jnp.array([[0.0, 3.0, 0.0, 0.0, 0.0]])
    slope = np.asarray(jax.grad(total)(moved))
    np.testing.assert_allclose(slope, [[0.0, 0.0, 0.0, 0.0, 1.0]], atol=1e-6)


def test_truncated_importance_by_hand():
    logp = np.log(np.array([[0.5, 0.9, 0.1]], np.float32))
    drawn = np.log(np.array([[0.25, 0.1, 0.5]], np.float32))
    mask = np.array([[True, True, False]])
    got = losses.truncated_importance_weight(logp, drawn, mask, 4.0)
    np.testing.assert_allclose(got, [[2.0, 4.0, 1.0]], rtol=1e-5)


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_the_estimators_agree_with_the_exact_kl_on_average(kind):
    # Tokens drawn from the policy p; q is the reference.
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    exact = (p * np.log(p / q)).sum()
    each = [
        losses.sampled_kl(
            jnp.log(p[None, i : i + 1]),
            np.log(q[None, i : i + 1]),
            np.ones((1, 1), bool),
            kind=kind,
        ).total
        for i in range(3)
    ]
    np.testing.assert_allclose(p @ np.array(each), exact, rtol=1e-5)
    assert bool(min(each) < 0) is (kind == "k1")


@pytest.mark.medium
def test_only_k3_pulls_to_the_reference_on_average():
    logits, ref = jnp.array([0.5, -0.5, 0.1]), jnp.log(jnp.array([0.2, 0.3, 0.5]))
    p = jax.nn.softmax(logits)

    def mean_slope(kind):
        def one(x, i):
            logp = jax.nn.log_softmax(x)[i][None, None]
            there, mask = ref[i][None, None], jnp.ones((1, 1), bool)
            return losses.sampled_kl(logp, there, mask, kind=kind).total

        return sum(p[i] * jax.grad(one)(logits, i) for i in range(3))

    exact = jax.grad(lambda x: jax.nn.softmax(x) @ (jax.nn.log_softmax(x) - ref))
    np.testing.assert_allclose(mean_slope("k1"), 0.0, atol=1e-6)
    # k3's is that of KL(reference || policy): the same way here, not the same size.
    assert float(mean_slope("k3") @ exact(logits)) > 0.1
    with pytest.raises(ValueError, match="got 'k2'"):
        mean_slope("k2")


def test_the_critics_loss_by_hand():
    value, old = jnp.array([[1.0, 3.0, 0.0]]), np.array([[0.5, 0.5, 0.0]])
    returns = np.array([[2.0, 2.0, np.nan]], np.float32)
    mask = np.array([[True, True, False]])
    got = losses.value_loss(value, old, returns, mask)
    np.testing.assert_allclose(got.total, 0.5 * (1.0 + 1.0), rtol=1e-6)
    # Within 0.2 of the old value: 0.7 in the place of 1 is worse, 0.7 of 3 too.
    clipped = losses.value_loss(value, old, returns, mask, clip=0.2)
    np.testing.assert_allclose(clipped.total, 0.5 * 2 * 1.3**2, rtol=1e-6)
    slope = jax.grad(lambda v: losses.value_loss(v, old, returns, mask, clip=0.2).total)
    np.testing.assert_allclose(slope(value), [[0.0, 0.0, 0.0]], atol=1e-6)
    # Nothing holds back a step towards the return from the wrong side of the old value.
    np.testing.assert_allclose(slope(jnp.array([[0.0, 0.4, 0.0]])), [[-2.0, -1.6, 0.0]])


# --- against a library (peers) -----------------------------------------------


@pytest.mark.medium
@pytest.mark.peer
def test_the_surrogate_and_the_divergence_are_those_of_rlax():
    rlax = pytest.importorskip("rlax")
    rng = np.random.default_rng(0)
    logits, other = rng.normal(size=(2, 1, 6, 5)).astype(np.float32)
    logp, ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
    ids = rng.integers(5, size=(1, 6))
    adv = rng.normal(size=(1, 6)).astype(np.float32)
    mask = np.ones((1, 6), bool)
    new = jnp.take_along_axis(logp, ids[..., None], -1)[..., 0]
    old = jnp.take_along_axis(ref, ids[..., None], -1)[..., 0]
    ratio = losses.log_ratio(new, old, mask)
    got = losses.clipped_policy_loss(ratio, adv, mask, clip_low=0.2, clip_high=0.2)
    want = rlax.clipped_surrogate_pg_loss(jnp.exp(ratio)[0], adv[0], 0.2)
    np.testing.assert_allclose(got.value(), want, rtol=1e-5)
    each = losses.token_kl(logp, ref, mask)
    want = rlax.categorical_kl_divergence(logits[0], other[0])
    np.testing.assert_allclose(each[0], want, rtol=1e-4, atol=1e-6)
    # Its k1 and k3 have that divergence as their mean under the policy.
    for kind in ("k1", "k3"):
        total = 0.0
        for token in range(5):
            chosen = np.full((1, 6), token)
            a, b = (
                jnp.take_along_axis(x, chosen[..., None], -1)[..., 0]
                for x in (logp, ref)
            )
            for t in range(6):
                only = np.zeros((1, 6), bool)
                only[0, t] = True
                result = losses.sampled_kl(a, b, only, kind=kind)
                total += float(jnp.exp(a)[0, t] * result.total)
        np.testing.assert_allclose(total, want.sum(), rtol=1e-4)


# --- shapes, with and without a compiler ------------------------------------


class TestVariants(chex.TestCase):
    """The losses are the same numbers compiled or not, on either side of a device."""

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    def test_the_surrogate_by_hand(self):
        def loss(ratios, adv, mask):
            return losses.clipped_policy_loss(jnp.log(ratios), adv, mask, **CLIP)

        ratios = np.array([[2.0, 2.0, 0.5]], np.float32)
        adv = np.array([[1.0, -1.0, 1.0]], np.float32)
        got = self.variant(loss)(ratios, adv, np.ones((1, 3), bool))  # type: ignore
        np.testing.assert_allclose(got.total, -(1.28 - 2.0 + 0.5), rtol=1e-6)

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    def test_the_kl_over_the_vocabulary_by_hand(self):
        logp = jnp.log(jnp.array([[[0.5, 0.5], [0.9, 0.1]]]))
        ref = np.log(np.array([[[0.25, 0.75], [0.5, 0.5]]], np.float32))
        mask = np.array([[True, False]])
        got = self.variant(losses.token_kl)(logp, ref, mask)  # type: ignore
        first = 0.5 * np.log(2.0) + 0.5 * np.log(2 / 3)
        np.testing.assert_allclose(got, [[first, 0.0]], rtol=1e-6)


SHAPES = """
import numpy as np
from dreamgym.rl import advantages, losses
from worldmodel.fitting.arrays import masked_ratio
from worldmodel.fitting.losses import cross_entropy, token_logp

x, column = np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)
mask, segment = x > 0, np.ones((2, 1), int)
group, clip = np.ones((1, 2, 3)), {"clip_low": 0.2, "clip_high": 0.2}
gae = {"discount": 1.0, "gae_lambda": 1.0}
how = {"discount": 1.0, "divide_by_std": False}
for function, args, options in (
    (masked_ratio, (x, mask[:, :1]), {}),
    (cross_entropy, (x, mask, column), {}),
    (token_logp, (np.ones((2, 3, 5)), segment), {}),
    (losses.log_ratio, (x, column, mask), {}),
    (losses.turn_sums, (x, mask, segment), {}),
    (losses.clipped_policy_loss, (x, column, mask), clip),
    (losses.token_kl, (x, x, mask), {}),
    (losses.value_loss, (x, x, column, mask), {}),
    (advantages.gae, (x, column, np.ones(2), mask), gae),
    (advantages.gae, (x, x, np.ones(1), mask), gae),
    (advantages.turn_advantages, (group, group[..., :1] > 0), how),
    (advantages.group_advantages, (group, group > 0, np.ones((1, 2, 1), int)), how),
    (advantages.dpo_weights, (x, mask, mask[:1]), {"beta": 0.1}),
    (advantages.whiten, (column, mask), {}),
    (advantages.unit_rms, (x, mask[:, :1]), {}),
):
    try:
        function(*args, **options)
    except AssertionError as error:
        assert "shape" in str(error) or "rank" in str(error), error
    else:
        raise SystemExit(f"{function.__name__} takes {[a.shape for a in args]}")
"""


@pytest.mark.medium
def test_arrays_of_other_shapes_are_refused_without_a_type_checker():
    """In a process of its own: the tests' type checker would refuse them first."""
    command = [sys.executable, "-c", SHAPES]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
