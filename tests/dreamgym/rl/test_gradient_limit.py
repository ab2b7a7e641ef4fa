"""The cap on the gradient of a token's loss with respect to its logits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl import losses
from dreamgym.rl.config import KLPenaltyConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.policy_loss import policy_loss
from tests import helpers
from tests.dreamgym.rl import updates as base
from worldmodel.fitting.batches import blank

VOCAB = 6


def test_the_norm_of_the_gradient_by_hand():
    # Probabilities (0.7, 0.2, 0.1); the second token was sampled. The gradient of its
    # log p is (0, 1, 0) - p = (-0.7, 0.8, -0.1), whose squares sum to 1.14.
    p = np.array([[[0.7, 0.2, 0.1]]], np.float32)
    norm = losses.logit_gradient_norm(jnp.log(p), jnp.log(p[..., 1]))
    np.testing.assert_allclose(norm, [[1.14**0.5]], rtol=1e-6)


def test_the_norm_is_that_of_autodiff_where_tokens_are_forbidden_or_certain():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(4, 1, VOCAB)) * 3, jnp.float32)
    logits = logits.at[:, :, 4].set(-jnp.inf).at[0, 0, 1].set(40.0)
    each = jax.jacobian(lambda x: jax.nn.log_softmax(x)[:, 0, 1])(logits)
    want = [np.linalg.norm(each[i, i]) for i in range(4)]
    log_probs = jax.nn.log_softmax(logits)
    got = losses.logit_gradient_norm(log_probs, log_probs[..., 1])[:, 0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert float(got[0]) < 1e-6  # a certain token


def test_a_gradient_is_scaled_down_to_the_bound_and_the_value_stays():
    x, bound = jnp.array([[2.0, 2.0]]), jnp.array([[3.0, 3.0]])
    # Slope times scale is 4 and 2: the first is above its bound of 3.
    slope, scale = jnp.array([[-4.0, 1.0]]), jnp.array([[1.0, 2.0]])

    def total(x):
        limited, exceeds = losses.limited_gradient(x, slope, scale, bound)
        return (slope * limited).sum(), (limited, exceeds)

    gradient, (value, exceeds) = jax.grad(total, has_aux=True)(x)
    np.testing.assert_allclose(gradient, [[-3.0, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(value, x)
    np.testing.assert_array_equal(exceeds, [[True, False]])


def rows(seed=0):
    """Two rows of five tokens, of which the last three are sampled."""
    rng = np.random.default_rng(seed)
    tokens = blank(2, 5, base.COLUMNS)
    tokens.ids[:] = rng.integers(0, VOCAB, (2, 5))
    tokens.mask[:, 2:] = True
    tokens.segment[:, :], tokens.weight[:] = 1, rng.integers(1, 4, (2, 5))
    tokens.columns["advantage"][:] = rng.normal(size=(2, 1))
    logits = rng.normal(size=(2, 5, VOCAB)).astype(np.float32) * 3
    logp = jax.nn.log_softmax(logits[:, :-1])
    own = np.take_along_axis(np.asarray(logp), tokens.ids[:, 1:, None], -1)[..., 0]
    tokens.columns["sampler_logp"][:, 1:] = own + rng.normal(size=own.shape) * 0.1
    return tokens, jnp.asarray(logits)


@functools.partial(jax.jit, static_argnames="config")
@functools.partial(jax.grad, has_aux=True)
def compiled_gradient(logits, tokens, kl_weight, *, config):
    reference = jax.nn.log_softmax(jnp.roll(jax.lax.stop_gradient(logits), 1, -1))
    loss, metrics = policy_loss(
        logits,
        tokens,
        ref_logp=reference[:, :-1],
        masks=np.ones((1, VOCAB), bool),
        kl_weight=kl_weight,
        entropy_weight=0.0,
        config=config,
    )
    return loss.total, (loss, metrics)


def gradient(tokens, logits, *, kl_weight=0.0, kl_penalty=None, **surrogate):
    """Return the gradient of the loss with respect to the logits, and its metrics."""
    config = UpdateConfig(
        surrogate=SurrogateConfig(**surrogate),
        kl_penalty=kl_penalty or KLPenaltyConfig(),
    )
    slope, (loss, metrics) = compiled_gradient(logits, tokens, kl_weight, config=config)
    return np.asarray(slope), float(loss.value()), metrics


def clipped_rows(slope, tokens, cap):
    """Scale the gradient of each column down to cap times its token's weight."""
    size = np.linalg.norm(slope[:, :-1], axis=-1)
    bound = cap * tokens.weight[:, 1:]
    factor = np.minimum(1.0, bound / np.maximum(size, 1e-12))
    return slope[:, :-1] * factor[..., None], (size > bound)[tokens.mask[:, 1:]]


@pytest.mark.parametrize("level", ["token", "turn", "none"])
@pytest.mark.parametrize("penalty", [None, KLPenaltyConfig(estimator="k3")])
def test_the_cap_is_that_of_clipping_each_row_of_the_gradient(level, penalty):
    tokens, logits = rows()
    settings = {
        "importance_level": level,
        "kl_penalty": penalty,
        "kl_weight": 0.5 if penalty else 0.0,
    }
    plain, loss, metrics = gradient(tokens, logits, **settings)
    assert "limited_token_share" not in metrics
    got, same, metrics = gradient(tokens, logits, **settings, logit_gradient_cap=0.3)
    want, limited = clipped_rows(plain, tokens, 0.3)
    assert 0 < limited.sum() < limited.size
    np.testing.assert_allclose(got[:, :-1], want, rtol=1e-4, atol=1e-6)
    assert same == pytest.approx(loss, rel=1e-6)
    weight = tokens.weight[:, 1:][tokens.mask[:, 1:]]
    share = float(metrics["limited_token_share"].value())
    assert share == pytest.approx((weight * limited).sum() / weight.sum(), rel=1e-5)


def test_a_cap_that_nothing_reaches_changes_nothing():
    tokens, logits = rows()
    plain, loss, _ = gradient(tokens, logits)
    got, same, metrics = gradient(tokens, logits, logit_gradient_cap=1e6)
    np.testing.assert_array_equal(got, plain)
    assert same == loss
    assert float(metrics["limited_token_share"].value()) == 0.0


@pytest.mark.medium
def test_a_token_of_probability_1e_6_no_longer_dominates():
    # Two tokens of a lost turn: one of probability 0.9 as when it was sampled, and one
    # of 1e-6 that the sampler gave 1e-8, so that its ratio is 100.
    p = np.array([[[0.9, 0.1 - 1e-6, 1e-6]] * 3], np.float32)
    tokens = blank(1, 3, base.COLUMNS)
    tokens.ids[0], tokens.mask[0, 1:] = [0, 0, 2], True
    tokens.segment[0], tokens.weight[0] = 1, 1.0
    tokens.columns["advantage"][0] = -1.0
    tokens.columns["sampler_logp"][0] = [0.0, np.log(0.9), np.log(1e-8)]

    def share(**surrogate):
        """Return the share of the unlikely token in the sum of both norms."""
        config = UpdateConfig(
            surrogate=SurrogateConfig(**surrogate),
            kl_penalty=KLPenaltyConfig(coefficient=0.0),
        )
        masks = np.ones((1, 3), bool)
        slope = jax.grad(
            lambda x: (
                policy_loss(
                    x,
                    tokens,
                    ref_logp=jnp.log(p)[:, :-1],
                    masks=masks,
                    kl_weight=0.0,
                    entropy_weight=0.0,
                    config=config,
                )[0].total
            )
        )(jnp.log(p))
        common, unlikely = np.linalg.norm(slope[0, :2], axis=-1)
        return unlikely / (common + unlikely)

    assert share() > 0.99
    assert share(dual_clip=3.0) < 1e-6  # a clip of the loss has no gradient at all
    # The gradient of the common token is (0.1, -0.1): below the cap, and unchanged.
    want = 0.2 / (0.2 + 0.02**0.5)
    np.testing.assert_allclose(share(logit_gradient_cap=0.2), want, rtol=1e-5)


@pytest.mark.medium
def test_an_update_reports_the_share_and_moves_less():
    given = base.examples()
    steps = {}
    for cap in (0.0, 0.05):
        learner = base.updater(learning_rate=1e-2, logit_gradient_cap=cap)
        grads, metrics = base.gradient(given=given, logit_gradient_cap=cap)
        assert ("limited_token_share" in metrics) == (cap > 0)
        size = sum(float((x**2).sum()) for x in jax.tree.leaves(grads))
        _, info = learner.update(learner.learner.init(), given, seed=0)
        steps[cap] = size, info.get("limited_token_share", 0.0)
    assert steps[0.05][0] < 0.5 * steps[0.0][0]
    assert 0.5 < steps[0.05][1] <= 1.0
    assert steps[0.0][1] == 0.0


def test_a_negative_cap_is_refused_by_name():
    with pytest.raises(
        ValueError, match="logit_gradient_cap must be >= 0 and finite, got -1"
    ):
        SurrogateConfig(logit_gradient_cap=-1.0)


@pytest.mark.medium
def test_the_cap_of_a_batch_in_pieces_is_that_of_the_whole():
    grads = []
    for most in (None, 1):
        learner = base.updater(learning_rate=1e-2, logit_gradient_cap=0.1)
        before = learner.learner.microbatches._max_rows
        learner.learner.microbatches._max_rows = most
        try:
            state, _ = learner.update(learner.learner.init(), base.examples(), seed=0)
        finally:
            learner.learner.microbatches._max_rows = before
        grads.append(state.params)
    assert helpers.distance(*grads) < 2e-4
