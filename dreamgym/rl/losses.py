"""Losses of policy and critic, on arrays: surrogates, KL divergences, value loss.

Means are Ratios of a sum over the policy's own tokens and their count, so that
microbatches add exactly. `weight` multiplies tokens: it counts how often an equal turn
was sampled, and makes tokens, turns or episodes count equally (update.py).
"""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from worldmodel.fitting.arrays import AnyArray, Ratio, masked_ratio


def log_ratio(
    logp: Float[Array, "B T"],
    old_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Return log(new / old probability) of each policy token, 0 elsewhere."""
    chex.assert_equal_shape([logp, old_logp, mask])
    # Masked before the exponential that follows: exp of what stands in padding may
    # overflow, and its gradient would be NaN even where the loss is masked later.
    return jnp.where(mask, logp - old_logp, 0.0)


def turn_sums(
    x: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    segment: Int[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Return, at each policy token, the sum over its turn (a segment of a row)."""
    chex.assert_rank(x, 2)
    chex.assert_equal_shape([x, mask, segment])
    # Segments are numbered from 0 to T in each row; an offset keeps rows apart.
    batch, steps = x.shape
    turn = jnp.asarray(segment) + (steps + 1) * jnp.arange(batch)[:, None]
    masked = jnp.where(mask, x, 0.0)
    total = jax.ops.segment_sum(masked.ravel(), turn.ravel(), batch * (steps + 1))
    return jnp.where(mask, total[turn], 0.0)


def turn_log_ratio(
    log_ratios: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    segment: Int[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Return, at each policy token, the mean log ratio of its turn.

    This is the logarithm of GSPO's sequence ratio (arXiv:2507.18071, eq. 7), which does
    not depend on the length of the turn.
    """
    count = turn_sums(jnp.ones_like(log_ratios), mask, segment)
    return turn_sums(log_ratios, mask, segment) / jnp.maximum(count, 1.0)


def truncated_importance_weight(
    logp: Float[AnyArray, "B T"],
    sampled_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    cap: float,
) -> Float[Array, "B T"]:
    """Return the importance weight of sampler to learner, at most `cap`.

    The sampler may compute in another precision than the learner: `logp` is the
    learner's log-probability of the token before the update, `sampled_logp` the
    sampler's (truncated importance sampling).
    """
    return jnp.minimum(jnp.exp(log_ratio(jnp.asarray(logp), sampled_logp, mask)), cap)


def clipped_policy_loss(
    log_ratios: Float[Array, "B T"],
    adv: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Ratio:
    """Return the clipped surrogate loss (PPO, arXiv:1707.06347, eq. 7) of log ratios.

    With a `dual_clip` above 1 the loss of a token with a negative advantage is bounded
    by that many times the advantage, however likely the token has become
    (arXiv:1912.09729, eq. 5).
    """
    chex.assert_rank(log_ratios, 2)
    chex.assert_equal_shape([log_ratios, adv, mask])
    ratio = jnp.exp(log_ratios)
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    # The minimum is a pessimistic bound: clipping removes what makes the objective look
    # better, never what makes it look worse.
    gain = jnp.minimum(ratio * adv, clipped * adv)
    if dual_clip:
        bounded = jnp.maximum(gain, dual_clip * jnp.asarray(adv))
        gain = jnp.where(jnp.asarray(adv) < 0, bounded, gain)
    return masked_ratio(-gain, mask, weight)


def clip_fraction(
    log_ratios: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
) -> Ratio:
    """Return the share of policy tokens whose probability ratio left the clip range."""
    ratio = jnp.exp(log_ratios)
    outside = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
    return masked_ratio(outside.astype(log_ratios.dtype), mask, weight)


def token_entropy(
    log_probs: Float[Array, "B T V"],
) -> Float[Array, "B T"]:
    """Return the entropy of each token's distribution, in nats.

    Tokens that may not be sampled are -inf and do not count.
    """
    # Set to 0 before they are multiplied: 0 * -inf is NaN, in the gradient as well.
    safe = jnp.where(jnp.isfinite(log_probs), log_probs, 0.0)
    terms = jnp.where(jnp.isfinite(log_probs), jnp.exp(safe) * safe, 0.0)
    return -terms.sum(-1)


def logit_gradient_norm(
    log_probs: Float[Array, "B T V"], logp: Float[Array, "B T"]
) -> Float[Array, "B T"]:
    """Return the norm of the gradient of a token's log p with respect to its logits.

    `log_probs` are those of the vocabulary, and `logp` is that of the sampled token. It
    is sqrt(1 - 2 p + sum_j p_j^2) (SimpleTIR, arXiv:2509.02479, proposition 3.1): 0 for
    a certain token, and sqrt(2) for an impossible one where another one is certain.
    """
    chex.assert_equal_shape_prefix([log_probs, logp], 2)
    others = jnp.exp(2 * log_probs).sum(-1) - jnp.exp(2 * logp)
    # (1 - p)^2 + sum over the other tokens, because 1 - 2 p + p^2 rounds near p = 1.
    return jnp.sqrt(jnp.expm1(logp) ** 2 + jnp.maximum(others, 0.0))


def limited_gradient(
    x: Float[Array, "B T"],
    slope: Float[Array, "B T"],
    scale: Float[Array, "B T"],
    bound: Float[AnyArray, "B T"],
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
    """Return (x with a bounded gradient, where it was too large).

    `slope` is the derivative of a loss by `x`, and `scale` the norm of the derivative
    of `x` by what is before it: the gradient is scaled down where their product exceeds
    `bound` in size.
    """
    chex.assert_equal_shape([x, slope, scale, bound])
    size = jnp.abs(slope) * scale
    exceeds = size > bound
    factor = jnp.where(exceeds, bound / jnp.where(exceeds, size, 1.0), 1.0)
    return _scaled_gradient(x, jax.lax.stop_gradient(factor)), exceeds


@jax.custom_vjp
def _scaled_gradient(x: jax.Array, factor: jax.Array) -> jax.Array:
    """Return x; its gradient is multiplied by the factor."""
    del factor
    return x


def _scaled_gradient_forward(x: jax.Array, factor: jax.Array):
    return x, factor


def _scaled_gradient_backward(factor: jax.Array, gradient: jax.Array):
    return gradient * factor, jnp.zeros_like(factor)


_scaled_gradient.defvjp(_scaled_gradient_forward, _scaled_gradient_backward)


def token_kl(
    logp: Float[Array, "B T V"],
    ref_logp: Float[AnyArray, "B T V"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Return KL(policy || reference) over the vocabulary, at each sampled token.

    It is exact, while the usual estimators use the sampled token alone: they grow with
    exp(ref - policy), and a single unlikely token can then dominate a step. Tokens that
    may not be sampled are -inf in both distributions and do not count.
    """
    chex.assert_rank(logp, 3)
    chex.assert_equal_shape([logp, ref_logp])
    chex.assert_equal_shape_prefix([logp, mask], 2)
    # Set to 0 before they are multiplied: 0 * -inf is NaN, in the gradient as well.
    allowed = jnp.isfinite(logp) & jnp.asarray(mask)[..., None]
    policy, reference = (jnp.where(allowed, x, 0.0) for x in (logp, ref_logp))
    return jnp.where(allowed, jnp.exp(policy) * (policy - reference), 0.0).sum(-1)


def sampled_kl(
    logp: Float[Array, "B T"],
    ref_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    kind: str,
) -> Ratio:
    """Estimate KL(policy || reference) from the sampled tokens (J. Schulman, 2020).

    `kind` "k1" is log(policy / reference): unbiased, of either sign. As a loss its
    expected gradient is 0, so it belongs in a reward. "k3" adds reference / policy - 1:
    it is unbiased as well, never negative, and its gradient points to the reference.

    Raises:
      ValueError: an unknown kind.
    """
    if kind not in ("k1", "k3"):
        raise ValueError(f"kind must be 'k1' or 'k3', got {kind!r}")
    k1 = log_ratio(logp, ref_logp, mask)
    # expm1: near the reference both terms are tiny, and 1 would absorb them.
    estimate = k1 if kind == "k1" else jnp.expm1(-k1) + k1
    return masked_ratio(estimate, mask, weight)


def value_loss(
    value: Float[Array, "B T"],
    old_value: Float[AnyArray, "B T"],
    returns: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip: float = 0.0,
) -> Ratio:
    """Return half the squared error of the critic, with PPO's clipping of values.

    With a `clip` above 0 the loss is the larger of two errors: that of the value, and
    that of the value clipped to within `clip` of `old_value`, the one before the
    update. Values that moved further towards the returns then have no gradient.
    """
    chex.assert_rank(value, 2)
    chex.assert_equal_shape([value, old_value, returns, mask])
    value, returns = jnp.where(mask, value, 0.0), jnp.where(mask, returns, 0.0)
    error = (value - returns) ** 2
    if clip:
        old = jnp.where(mask, old_value, 0.0)
        clipped = old + jnp.clip(value - old, -clip, clip)
        error = jnp.maximum(error, (clipped - returns) ** 2)
    return masked_ratio(0.5 * error, mask, weight)
