"""The clipped surrogate and the KL estimator: by hand, by loops, at the edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl import losses

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def arrays(seed=0, shape=(3, 5)):
    rng = np.random.default_rng(seed)
    logp, old, ref, adv = rng.normal(size=(4, *shape)).astype(np.float32) * 0.4
    mask = rng.random(shape) < 0.6
    return jnp.asarray(logp), old, ref, adv, mask


def test_clip_by_hand():
    # Ratios 2, 2, 0.5, 0.5, 1.1. A good action is capped at 1.28 above but not below;
    # a bad one keeps 2 above and is capped at 0.8 below (a max in place of the min
    # gives 2, 1.28, 0.8, 0.5, 1.1).
    logp = jnp.log(jnp.array([[2.0, 2.0, 0.5, 0.5, 1.1]]))
    adv = jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0]])
    old, mask = jnp.zeros((1, 5)), jnp.ones((1, 5), bool)
    got = losses.clipped_policy_loss(logp, old, adv, mask, **CLIP)
    np.testing.assert_allclose(got.total, -(1.28 - 2.0 + 0.5 - 0.8 + 1.1), rtol=1e-5)
    np.testing.assert_allclose(got.count, 5.0, rtol=1e-6)
    share = losses.clip_fraction(logp, old, mask, **CLIP)
    np.testing.assert_allclose(share.value(), 4 / 5, rtol=1e-6)


def test_clipped_tokens_have_no_gradient_and_the_rest_push_the_right_way():
    logp = jnp.log(jnp.array([[2.0, 2.0, 0.5, 0.5, 1.0]]))
    adv = jnp.array([[1.0, -1.0, 1.0, -1.0, 1.0]])
    old, mask = jnp.zeros((1, 5)), jnp.ones((1, 5), bool)

    def total(x):
        return losses.clipped_policy_loss(x, old, adv, mask, **CLIP).total

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
    got = losses.clipped_policy_loss(logp, old, adv, mask, **CLIP)
    np.testing.assert_allclose(got.total, loss, rtol=1e-5)
    np.testing.assert_allclose(got.count, mask.sum(), rtol=1e-6)
    got = losses.clip_fraction(logp, old, mask, **CLIP)
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
    got = losses.kl_divergence(jnp.asarray(p), q, one)
    np.testing.assert_allclose(got.total, np.log(4 / 3) / 2, rtol=1e-6)
    back = losses.kl_divergence(jnp.asarray(q), p, one)
    np.testing.assert_allclose(back.total, np.log(0.5) / 4 + 0.75 * np.log(1.5), 1e-6)
    same = losses.kl_divergence(jnp.asarray(p), p, one)
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
    got = losses.kl_divergence(*logs, mask, weight.astype(np.float32))
    np.testing.assert_allclose(got.total, expected, rtol=1e-4)
    np.testing.assert_allclose(got.count, weight[mask].sum(), rtol=1e-6)


def test_one_unlikely_token_does_not_decide_the_kl_gradient():
    # The policy gives the first token e^-8 of what the reference does.
    logits = jnp.array([[[-8.0, 0.0]]])
    ref = distributions((0.5, 0.5))

    def divergence(x):
        logp = jax.nn.log_softmax(x)
        return losses.kl_divergence(logp, ref, jnp.ones((1, 1), bool)).total

    assert float(jnp.abs(jax.grad(divergence)(logits)).max()) < 0.01


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_padding_may_hold_anything_in_value_and_gradient(bad):
    logp, old, ref, adv, mask = arrays()

    def total(x, old, ref, adv):
        loss = losses.clipped_policy_loss(x, old, adv, mask, **CLIP).total
        both = (jnp.stack([y, -2 * y], -1) for y in (x, jnp.asarray(ref)))
        return loss + losses.kl_divergence(*both, mask).total

    clean = jax.value_and_grad(total)(logp, old, ref, adv)
    dirty = [np.where(mask, x, np.float32(bad)) for x in (logp, old, ref, adv)]
    got = jax.value_and_grad(total)(jnp.asarray(dirty[0]), *dirty[1:])
    np.testing.assert_allclose(got[0], clean[0], rtol=1e-6)
    np.testing.assert_allclose(got[1], clean[1], rtol=1e-6)
    assert (np.asarray(got[1])[~mask] == 0).all()


def test_the_whole_is_the_sum_of_its_parts():
    logp, old, _, adv, mask = arrays(shape=(4, 6))
    mask[0] = False  # a mean of means would weigh this row like the others
    whole = losses.clipped_policy_loss(logp, old, adv, mask, **CLIP)
    parts = [
        losses.clipped_policy_loss(logp[s], old[s], adv[s], mask[s], **CLIP)
        for s in (slice(0, 1), slice(1, 4))
    ]
    total = parts[0] + parts[1]
    np.testing.assert_allclose(total.value(), whole.value(), rtol=1e-6)


def test_eager_is_jitted():
    logp, old, _, adv, mask = arrays(2)
    jitted = jax.jit(
        lambda *x: losses.clipped_policy_loss(*x, **CLIP).value()
    )(logp, old, adv, mask)  # fmt: skip
    eager = losses.clipped_policy_loss(logp, old, adv, mask, **CLIP).value()
    np.testing.assert_allclose(jitted, eager, rtol=1e-6)
