"""Policy losses on arrays: the clipped surrogate and KL estimators."""

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


def kl_k3(
    logp: Float[Array, "B T"],
    ref_logp: Float[AnyArray, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"] | float = 1.0,
) -> Ratio:
    """KL(policy || reference), the k3 estimator: r - 1 - log r with r = ref / policy.

    Non-negative token by token and unbiased under samples of the policy
    (J. Schulman, "Approximating KL divergence", 2020).
    """
    log_r = jnp.where(mask, ref_logp - logp, 0.0)
    return masked_ratio(jnp.exp(log_r) - 1.0 - log_r, mask, weight)
