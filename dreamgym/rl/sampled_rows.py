"""Packed rows of turns reduced to the tokens that the policy sampled.

rows [B, T] -> their sampled tokens [B, S] and the columns that predict them. A turn has
a few sampled tokens behind a long context: whatever is computed over a vocabulary
(logits, distributions, divergences), and the last layer, is computed at these alone.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from worldmodel.backbone.streams import SAMPLE_BUCKET, bucket
from worldmodel.fitting.batches import Tokens, blank


class SampledRows(NamedTuple):
    """Rows without their contexts, and where the predictions of their tokens stand.

    `tokens` has the sampled tokens of each row behind one blank column, so that, as in
    whole rows, a column's logits predict the token of the next one. `position` is the
    column of a whole row whose hidden state gives these logits.
    """

    tokens: Tokens
    position: Int[np.ndarray, "B S"]


def sampled_rows(rows: Tokens) -> SampledRows:
    """Return the sampled tokens of packed rows; segments are numbered anew from 1."""
    # The first column has no context, so it is no prediction (batches.pack).
    mask = rows.mask & (np.arange(rows.mask.shape[1]) > 0)
    counts = mask.sum(axis=1)
    row, column = np.nonzero(mask)
    starts = counts.cumsum() - counts
    place = 1 + np.arange(len(row)) - np.repeat(starts, counts)
    size = 1 + bucket(int(counts.max(initial=0)), SAMPLE_BUCKET)
    types = {name: x.dtype.type for name, x in rows.columns.items()}
    out = blank(len(mask), size, types)

    def fill(target: np.ndarray, source: np.ndarray) -> None:
        target[row, place] = source[row, column]

    for name in ("ids", "position", "mask", "token_type", "weight"):
        fill(getattr(out, name), getattr(rows, name))
    for name, source in rows.columns.items():
        fill(out.columns[name], source)
    # Numbered anew, because sums over turns expect no more segments than columns.
    segment = rows.segment[row, column]
    begins = (np.diff(segment, prepend=-1) != 0) | (place == 1)
    number = begins.cumsum()
    out.segment[row, place] = 1 + number - number[starts[row]]
    position = np.zeros(out.ids.shape, np.int32)
    position[row, place - 1] = column - 1
    return SampledRows(out, position)
