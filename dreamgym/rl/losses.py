"""Policy losses on arrays: the clipped surrogate and the KL divergence."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from worldmodel.fitting.arrays import AnyArray, Ratio, masked_ratio


def clipped_policy_loss(
    logp: Float[Array, "B T"],
    old_logp: Float[AnyArray, "B T"],
    adv: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
) -> Ratio:
    """Clipped surrogate (PPO, arXiv:1707.06347 eq. 7), summed over policy tokens.

    `weight` counts the times that a token was sampled at the same place.
    """
    ratio = jnp.exp(jnp.where(mask, logp - old_logp, 0.0))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    return masked_ratio(-jnp.minimum(ratio * adv, clipped * adv), mask, weight)


def clip_fraction(
    logp: Float[Array, "B T"],
    old_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
    *,
    clip_low: float,
    clip_high: float,
) -> Ratio:
    """Share of policy tokens whose probability ratio left the clip range."""
    ratio = jnp.exp(jnp.where(mask, logp - old_logp, 0.0))
    out = (ratio < 1.0 - clip_low) | (ratio > 1.0 + clip_high)
    return masked_ratio(out.astype(logp.dtype), mask, weight)


def kl_divergence(
    logp: Float[Array, "B T V"],
    ref_logp: Float[AnyArray, "B T V"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
) -> Ratio:
    """KL(policy || reference) over the vocabulary, at each sampled token.

    Exact where the usual estimators look at the sampled token alone; those grow with
    exp(ref - policy), and one unlikely token then decides the whole step. Tokens that
    may not be sampled are -inf in both and count for nothing.
    """
    real = jnp.isfinite(logp) & mask[..., None]
    known, told = jnp.where(real, logp, 0.0), jnp.where(real, ref_logp, 0.0)
    divergence = jnp.where(real, jnp.exp(known) * (known - told), 0.0).sum(-1)
    return masked_ratio(divergence, mask, weight)
