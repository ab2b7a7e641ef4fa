"""Sampling a token: logits -> the distribution sampled from -> one token.

The cuts follow Transformers' order: temperature, top-k, top-p, min-p; tokens tied at a
cut stay. A draw takes two uniform numbers, one for a block of the vocabulary and one
within it: noise for every token would cost more than a small model's step.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_WIDTH = 128


def shaped_logits(
    logits: Float[Array, "*B V"],
    allowed: Bool[Array, "*B V"],
    temperature: Float[Array | np.ndarray, "*B"],
    min_p: Float[Array | np.ndarray, "*B"],
    *,
    top_k: Int[Array | np.ndarray, "*B"] | None = None,
    top_p: Float[Array | np.ndarray, "*B"] | None = None,
) -> Float[Array, "*B V"]:
    """Return logits of the distribution sampled from; the learner uses the same.

    Temperature 0 leaves the logits as they are (the caller takes the largest). `top_k`
    0 and `top_p` 1 cut nothing; `min_p` cuts tokens less probable than that share of
    the most probable one.
    """
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)[..., None]
    scaled = jnp.where(allowed, scaled, -jnp.inf)
    if top_k is not None:
        size = logits.shape[-1]
        limit = jnp.where(jnp.asarray(top_k) > 0, top_k, size)
        scaled = _cut(scaled, lambda keep: keep.sum(-1) >= jnp.minimum(limit, size))
    if top_p is not None:
        mass = jax.nn.softmax(scaled)
        # Because of rounding the probabilities may sum to less than 1.
        share = jnp.minimum(jnp.asarray(top_p), mass.sum(-1))
        scaled = _cut(scaled, lambda keep: jnp.where(keep, mass, 0.0).sum(-1) >= share)
    floor = (
        scaled.max(-1, keepdims=True) + jnp.log(jnp.maximum(min_p, 1e-30))[..., None]
    )
    return jnp.where(scaled >= floor, scaled, -jnp.inf)


def _cut(
    x: Float[Array, "*B V"], enough: Callable[[Array], Array]
) -> Float[Array, "*B V"]:
    """Keep x >= t for the largest t that keeps enough; exact, without sorting."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    # Integers in the order of the floats: 32 halvings then reach the exact threshold.
    order = jnp.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    low, high = order.min(-1), order.max(-1)  # low always keeps enough

    def halve(_: Array, span: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = span
        # The mean of both, rounded up, without overflow.
        middle = (low | high) - ((low ^ high) >> 1)
        keeps = enough(order >= middle[..., None])
        return jnp.where(keeps, middle, low), jnp.where(keeps, high, middle - 1)

    threshold, _ = jax.lax.fori_loop(0, 32, halve, (low, high))
    return jnp.where(order >= threshold[..., None], x, -jnp.inf)


def draw(shaped: Float[Array, "B V"], uniform: Float[Array, "B 2"]) -> Int[Array, " B"]:
    """Return one token a row by inverse sampling, from uniform numbers in [0, 1)."""
    batch, size = shaped.shape
    # In two stages, a block and a token within it: short cumulative sums lose less to
    # rounding than one over the whole vocabulary.
    # Not normalised: `_inverse` multiplies the uniform number by the sum instead.
    weights = jnp.exp(shaped - shaped.max(-1, keepdims=True))
    short = -size % _WIDTH
    blocks = jnp.pad(weights, ((0, 0), (0, short))).reshape(batch, -1, _WIDTH)
    block = _inverse(blocks.sum(-1), uniform[:, 0])
    inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    return block * _WIDTH + _inverse(inside, uniform[:, 1])


def _inverse(weights: Float[Array, "B N"], u: Float[Array, " B"]) -> Int[Array, " B"]:
    """Return the first index whose cumulative weight exceeds u times the sum."""
    cumulative = jnp.cumsum(weights, axis=-1)
    exceeds = cumulative > (u * cumulative[:, -1])[:, None]
    # Where rounding leaves no such index, take the last with a weight.
    last = weights.shape[1] - 1 - jnp.argmax(weights[:, ::-1] > 0, axis=-1)
    index = jnp.where(exceeds.any(-1), jnp.argmax(exceeds, axis=-1), last)
    return index.astype(jnp.int32)
