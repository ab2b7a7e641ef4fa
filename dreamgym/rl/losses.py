"""Policy losses on arrays: surrogates, KL divergences, the value's loss.

All are sums over the policy's own tokens with their count (Ratio), so that microbatches
add exactly. `weight` counts how often a token was sampled at the same place, and
carries how turns are averaged (update.py).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from worldmodel.fitting.arrays import AnyArray, Ratio, masked_ratio


def log_ratio(
    logp: Float[Array, "B T"],
    old_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """log of new over old probability of each policy token, 0 elsewhere."""
    return jnp.where(mask, logp - old_logp, 0.0)


def turn_sums(
    x: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    segment: Int[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Each policy token gets the sum over its turn, a segment of a packed row."""
    batch, steps = x.shape
    own = jnp.asarray(segment) + (steps + 1) * jnp.arange(batch)[:, None]
    kept = jnp.where(mask, x, 0.0)
    total = jax.ops.segment_sum(kept.ravel(), own.ravel(), batch * (steps + 1))
    return jnp.where(mask, total[own], 0.0)


def turn_log_ratio(
    ratio: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    segment: Int[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """Each policy token gets the mean log ratio of its turn (GSPO, arXiv:2507.18071).

    That is the log of eq. 7's ratio, with the length of the turn taken out of it.
    """
    count = turn_sums(jnp.ones_like(ratio), mask, segment)
    return turn_sums(ratio, mask, segment) / jnp.maximum(count, 1.0)


def truncated_weight(
    logp: Float[AnyArray, "B T"],
    sampled_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    most: float,
) -> Float[Array, "B T"]:
    """Importance of a token that another program sampled, at most `most` (TIS).

    The sampler may compute in another precision than the learner: `logp` is what the
    learner gives the token before the update, `sampled_logp` what the sampler did.
    """
    return jnp.minimum(jnp.exp(log_ratio(jnp.asarray(logp), sampled_logp, mask)), most)


def clipped_policy_loss(
    ratio: Float[Array, "B T"],
    adv: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Ratio:
    """Clipped surrogate (PPO, arXiv:1707.06347 eq. 7) of log ratios.

    With a `dual_clip` above 1 a bad token costs at most that many times its advantage,
    however likely it has become (arXiv:1912.09729 eq. 5).
    """
    r = jnp.exp(ratio)
    gain = jnp.minimum(r * adv, jnp.clip(r, 1.0 - clip_low, 1.0 + clip_high) * adv)
    if dual_clip:
        bounded = jnp.maximum(gain, dual_clip * jnp.asarray(adv))
        gain = jnp.where(jnp.asarray(adv) < 0, bounded, gain)
    return masked_ratio(-gain, mask, weight)


def clip_fraction(
    ratio: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
) -> Ratio:
    """Share of policy tokens whose probability ratio left the clip range."""
    r = jnp.exp(ratio)
    out = (r < 1.0 - clip_low) | (r > 1.0 + clip_high)
    return masked_ratio(out.astype(ratio.dtype), mask, weight)


def kl_each(
    logp: Float[Array, "B T V"],
    ref_logp: Float[AnyArray, "B T V"],
    mask: Bool[AnyArray, "B T"],
) -> Float[Array, "B T"]:
    """KL(policy || reference) over the vocabulary, at each sampled token.

    Exact where the usual estimators look at the sampled token alone; those grow with
    exp(ref - policy), and one unlikely token then decides the whole step. Tokens that
    may not be sampled are -inf in both and count for nothing.
    """
    real = jnp.isfinite(logp) & jnp.asarray(mask)[..., None]
    known, told = jnp.where(real, logp, 0.0), jnp.where(real, ref_logp, 0.0)
    return jnp.where(real, jnp.exp(known) * (known - told), 0.0).sum(-1)


def sampled_kl(
    logp: Float[Array, "B T"],
    ref_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    kind: str,
) -> Ratio:
    """KL(policy || reference) from the sampled tokens alone (J. Schulman, 2020).

    k1 is log(policy / reference): unbiased, of either sign, and as a loss without any
    gradient on average, so it belongs into a reward. k3 adds reference / policy - 1:
    still unbiased, never negative, and with a gradient towards the reference.

    Raises:
      ValueError: neither k1 nor k3.
    """
    if kind not in ("k1", "k3"):
        raise ValueError(f"kind must be 'k1' or 'k3', got {kind!r}")
    gap = log_ratio(logp, ref_logp, mask)
    found = gap if kind == "k1" else jnp.expm1(-gap) + gap
    return masked_ratio(found, mask, weight)


def value_loss(
    value: Float[Array, "B T"],
    old_value: Float[AnyArray, "B T"],
    returns: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip: float = 0.0,
) -> Ratio:
    """Half the squared error of the critic; with `clip` the worse of two (PPO).

    The other one is that of a value no further than `clip` from the one before the
    update: a step that would lead beyond it has no gradient, unless it is needed.
    """
    value, returns = jnp.where(mask, value, 0.0), jnp.where(mask, returns, 0.0)
    error = (value - returns) ** 2
    if clip:
        old = jnp.where(mask, old_value, 0.0)
        near = old + jnp.clip(value - old, -clip, clip)
        error = jnp.maximum(error, (near - returns) ** 2)
    return masked_ratio(0.5 * error, mask, weight)
