"""Losses of next-token prediction, on arrays."""

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.layers import matmul
from worldmodel.backbone.model import DecoderOutput
from worldmodel.fitting.arrays import AnyArray, Ratio, masked_ratio


def token_logp(
    logits: Float[Array, "B T V"], ids: Int[AnyArray, "B T"]
) -> Float[Array, "B T"]:
    """Return log p(ids[t] | ids[<t]); the first column, which has no context, is 0."""
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape_prefix([logits, ids], 2)
    # The last column is scored needlessly, because a slice would copy the others.
    ids = jnp.asarray(ids)
    next_ids = jnp.concatenate([ids[:, 1:], ids[:, :1]], axis=1)
    return _shift_right(_pick_logp(logits, next_ids))


def _pick_logp(
    logits: Float[Array, "*B V"], ids: Int[Array, "*B"]
) -> Float[Array, "*B"]:
    """Return log p of one id a row."""
    target_logits = jnp.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]
    return target_logits - jax.nn.logsumexp(logits, axis=-1)


def _shift_right(logp: Float[Array, "B T"]) -> Float[Array, "B T"]:
    """Move each column from the token before to the token it predicts."""
    return jnp.pad(logp[:, :-1], ((0, 0), (1, 0)))


UNSPLIT_LOGITS = 1 << 25
"""Logits, B T V, up to which they are computed in one piece."""
PIECE_LOGITS = 1 << 24
"""Logits of a piece where there are more: 64 MiB of float32."""


def read_logp(output: DecoderOutput, ids: Int[AnyArray, "B T"]) -> Float[Array, "B T"]:
    """Return `token_logp` of a decoder's output, large logits computed piece by piece.

    A backward pass computes the pieces again.
    """
    (batch, steps, width), table = output.hidden.shape, output.table
    if batch * steps * table.shape[0] <= UNSPLIT_LOGITS:
        return token_logp(output.logits(), ids)
    size = max(PIECE_LOGITS // table.shape[0], 1)
    hidden = output.hidden[:, :-1].reshape(-1, width)
    targets = jnp.asarray(ids)[:, 1:].reshape(-1)
    padding = -hidden.shape[0] % size
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, size, width)
    targets = jnp.pad(targets, (0, padding)).reshape(-1, size)

    # Without checkpoint the backward pass would keep the logits of all pieces.
    @jax.checkpoint
    def piece(args: tuple[Array, Array]) -> Array:
        x, y = args
        return _pick_logp(matmul(x, table.T, True), y)

    logp = jax.lax.map(piece, (hidden, targets)).reshape(-1)
    logp = logp[: batch * (steps - 1)].reshape(batch, steps - 1)
    return jnp.pad(logp, ((0, 0), (1, 0)))


def cross_entropy(
    logp: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    weight: Float[AnyArray, "B T"],
) -> Ratio:
    """Return the weighted negative log-likelihood of the targets (DreamGym, Eq. 5)."""
    chex.assert_rank(logp, 2)
    chex.assert_equal_shape([logp, mask, weight])
    return masked_ratio(-logp, mask, weight)


def parts_cross_entropy(
    logp: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    part: Int[AnyArray, "B T"],
    parts: int,
) -> list[Ratio]:
    """Return the unweighted loss of each part (reasoning, state, reward, outcome)."""
    return [masked_ratio(-logp, mask & (part == i)) for i in range(parts)]
