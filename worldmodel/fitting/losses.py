"""Losses of next-token prediction, on arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from worldmodel.fitting.arrays import AnyArray, Ratio, masked_ratio


def token_logp(
    logits: Float[Array, "B T V"], ids: Int[AnyArray, "B T"]
) -> Float[Array, "B T"]:
    """log p(ids[t] | ids[<t]); the first column, which has no context, is 0."""
    logp = jax.nn.log_softmax(logits[:, :-1])
    picked = jnp.take_along_axis(logp, ids[:, 1:, None], axis=-1)[..., 0]
    return jnp.pad(picked, ((0, 0), (1, 0)))


def cross_entropy(
    logp: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"],
) -> Ratio:
    """Weighted negative log-likelihood of the target tokens (papers.md Eq. 5)."""
    return masked_ratio(-logp, mask, weight)


def parts_cross_entropy(
    logp: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    part: Int[AnyArray, "B T"],
    parts: int,
) -> list[Ratio]:
    """The unweighted loss of each part (reasoning, state, reward, outcome) apart."""
    return [masked_ratio(-logp, mask & (part == i)) for i in range(parts)]
