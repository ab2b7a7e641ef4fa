"""Exact nearest neighbours by inner product, on the device.

vectors -> blocks of one shape -> for each block: products, the best groups, their
members -> running best k. An entry among the best k lies in one of the k groups with
the largest maximum, so that most of a block is read once and never sorted.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

BLOCK = 16_384
"""Entries of a block."""
GROUP = 32
"""Adjacent entries whose maximum is taken first."""
WRITE = 1_024
"""Entries written at a time."""
QUERIES = (1, 16, 64, 256)
"""Batch sizes that queries are padded to, so that few shapes compile."""


class Block(NamedTuple):
    """Vectors as columns and their owners; owner -1 marks a free column."""

    vectors: Float[Array, "D B"]
    owners: Int[Array, " B"]


class Best(NamedTuple):
    """The best entries of each query, best first; where none is left, score -inf."""

    score: Float[Array, "Q K"]
    slot: Int[Array, "Q K"]


@functools.partial(jax.jit, donate_argnums=0)
def _write_block(
    block: Block,
    at: Int[Array, " W"],
    vectors: Float[Array, "W D"],
    owners: Int[Array, " W"],
) -> Block:
    """Return the block with entries in columns `at`; others are dropped."""
    return Block(
        block.vectors.at[:, at].set(vectors.T, mode="drop"),
        block.owners.at[at].set(owners, mode="drop"),
    )


@jax.jit
def _merge_block(
    best: Best,
    block: Block,
    start: Int[Array, ""] | int,
    queries: Float[Array, "Q D"],
    excluded: Int[Array, " Q"],
) -> Best:
    """Return the best of the previous ones and a block; ties go to the lower slot."""
    size, k = block.owners.shape[0], best.score.shape[1]
    scores = queries @ block.vectors
    owners = block.owners[None]
    hidden = (owners == excluded[:, None]) | (owners < 0)
    scores = jnp.where(hidden, -jnp.inf, scores)
    groups = scores.reshape(-1, size // GROUP, GROUP)
    # An entry among the k best is below fewer than k entries, hence its group's maximum
    # below fewer than k other maxima: no result can lie outside these groups.
    _, chosen_groups = jax.lax.top_k(groups.max(-1), min(k, size // GROUP))
    # In the order of slots, behind the previous best: `top_k` keeps ties in order.
    chosen_groups = jnp.sort(chosen_groups, axis=1)[:, :, None]
    inside = jnp.take_along_axis(groups, chosen_groups, axis=1)
    slot = start + chosen_groups * GROUP + jnp.arange(GROUP)[None, None]
    scores = jnp.concatenate([best.score, inside.reshape(len(scores), -1)], 1)
    slots = jnp.concatenate([best.slot, slot.reshape(len(scores), -1)], 1)
    score, chosen = jax.lax.top_k(scores, k)
    return Best(score, jnp.take_along_axis(slots, chosen, axis=1))


class Index:
    """Vectors of one size in numbered slots, each with an owner."""

    def __init__(self, dimensions: int):
        self.dimensions, self._blocks = dimensions, []

    @property
    def slots(self) -> int:
        """The number of slots in the allocated blocks."""
        return len(self._blocks) * BLOCK

    def write(
        self,
        slots: Int[np.ndarray, " N"],
        vectors: Float[np.ndarray, "N D"],
        owners: Int[np.ndarray, " N"],
    ) -> None:
        """Put entries into slots, replacing what they held.

        Raises:
          ValueError: the vectors have another size, or an owner is negative.
        """
        if vectors.shape[1:] != (self.dimensions,):
            raise ValueError(
                f"vectors must be [N, {self.dimensions}], got {list(vectors.shape)}"
            )
        if len(owners) and owners.min() < 0:
            raise ValueError(f"owners must be >= 0, got {owners.min()}")
        while len(slots) and slots.max() >= self.slots:
            self._blocks.append(
                Block(
                    jnp.zeros((self.dimensions, BLOCK), jnp.float32),
                    jnp.full(BLOCK, -1, jnp.int32),
                )
            )
        for number in np.unique(slots // BLOCK):
            indices = np.flatnonzero(slots // BLOCK == number)
            for first in range(0, len(indices), WRITE):
                part = indices[first : first + WRITE]
                at = np.full(WRITE, BLOCK, np.int32)  # out of range, hence dropped
                at[: len(part)] = slots[part] % BLOCK
                rows = np.zeros((WRITE, self.dimensions), np.float32)
                rows[: len(part)] = vectors[part]
                owner_ids = np.zeros(WRITE, np.int32)
                owner_ids[: len(part)] = owners[part]
                self._blocks[number] = _write_block(
                    self._blocks[number], at, rows, owner_ids
                )

    def search(
        self,
        queries: Float[np.ndarray, "Q D"],
        exclude_owner: Int[np.ndarray, " Q"],
        k: int,
    ) -> tuple[Float[np.ndarray, "Q K"], Int[np.ndarray, "Q K"]]:
        """Return (scores, slots) of the k largest inner products.

        Entries of `exclude_owner` are left out; -1 leaves out nothing. The result is
        exact: scores are those of a full comparison in float32, and ties go to the
        lower slot. Where fewer than k entries are left, the score is -inf.

        Raises:
          ValueError: k is below 1.
        """
        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}")
        scores, slots = [], []
        for start in range(0, len(queries), QUERIES[-1]):
            part = queries[start : start + QUERIES[-1]]
            size = next(q for q in QUERIES if len(part) <= q)
            padded = np.zeros((size, self.dimensions), np.float32)
            padded[: len(part)] = part
            excluded = np.full(size, -1, np.int32)
            excluded[: len(part)] = exclude_owner[start : start + len(part)]
            best = Best(
                jnp.full((size, k), -jnp.inf, jnp.float32),
                jnp.full((size, k), np.iinfo(np.int32).max, jnp.int32),
            )
            for number, block in enumerate(self._blocks):
                best = _merge_block(best, block, number * BLOCK, padded, excluded)
            scores.append(np.asarray(best.score)[: len(part)])
            slots.append(np.asarray(best.slot)[: len(part)])
        if not scores:
            return np.zeros((0, k), np.float32), np.zeros((0, k), np.int32)
        return np.concatenate(scores), np.concatenate(slots)

    def vectors(self) -> Float[np.ndarray, "S D"]:
        """Return the vectors of all slots; those of free slots are zero."""
        if not self._blocks:
            return np.zeros((0, self.dimensions), np.float32)
        return np.concatenate([np.asarray(b.vectors).T for b in self._blocks])
