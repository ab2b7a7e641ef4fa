"""Examples of tokens, packed into rows of one width.

Example (ids, which of them are trained on) -> first-fit packing -> Tokens [B, T] whose
segments never attend to each other. Packed and padded rows give the same losses.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int


class Example(NamedTuple):
    """One context with its targets.

    `mask` is true on ids that are trained on, `part` names what each target id
    belongs to (an index the loss may use), `logp` is the sampler's log-probability of
    each id (0 where there is none), `adv` and `weight` the advantage and the weight in
    the loss, of the example or of each id.
    """

    ids: Sequence[int]
    mask: Sequence[bool] | np.ndarray
    part: Sequence[int] | np.ndarray
    logp: Sequence[float] | np.ndarray | None = None
    adv: float | Sequence[float] | np.ndarray = 0.0
    weight: float | Sequence[float] = 1.0


class Tokens(NamedTuple):
    """Packed rows. Segment 0 is padding; positions restart with each segment."""

    ids: Int[np.ndarray, "B T"]
    position: Int[np.ndarray, "B T"]
    segment: Int[np.ndarray, "B T"]
    mask: Bool[np.ndarray, "B T"]
    part: Int[np.ndarray, "B T"]
    logp: Float[np.ndarray, "B T"]
    adv: Float[np.ndarray, "B T"]
    weight: Float[np.ndarray, "B T"]


def blank(rows: int, width: int) -> Tokens:
    """All padding."""
    whole = np.zeros((rows, width), np.int32)
    real = np.zeros((rows, width), np.float32)
    return Tokens(
        whole, whole.copy(), whole.copy(), whole.astype(bool), whole.copy(),
        real, real.copy(), real.copy(),
    )  # fmt: skip


def pack(examples: Sequence[Example], width: int) -> Tokens:
    """First-fit packing of whole examples, in order, into rows of `width`.

    An example longer than `width` loses its oldest context ids, never a target.

    Raises:
      ValueError: an example whose targets alone are longer than `width`.
    """
    room: list[int] = []
    place: list[tuple[int, int]] = []
    lengths = [min(len(e.ids), width) for e in examples]
    least = min(lengths, default=0)
    # Rows that no example fits any more are not looked at again: first fit over all of
    # them would take quadratic time.
    open_rows: list[int] = []
    for example, length in zip(examples, lengths, strict=True):
        cut = len(example.ids) - length
        if cut and any(example.mask[: cut + 1]):  # the first id has no context
            raise ValueError(f"targets do not fit a row of {width} tokens")
        row = next((r for r in open_rows if room[r] >= length), None)
        if row is None:
            row = len(room)
            room.append(width)
            open_rows.append(row)
        place.append((row, width - room[row]))
        room[row] -= length
        if room[row] < least:
            open_rows.remove(row)
    out = blank(max(len(room), 1), width)
    segments = np.zeros(max(len(room), 1), np.int32)
    for example, length, (row, at) in zip(examples, lengths, place, strict=True):
        span = slice(at, at + length)
        segments[row] += 1
        out.ids[row, span] = example.ids[-length:]
        out.position[row, span] = np.arange(length)
        out.segment[row, span] = segments[row]
        out.mask[row, span] = example.mask[-length:]
        out.mask[row, at] = False  # the first id of a segment has no context
        out.part[row, span] = example.part[-length:]
        if example.logp is not None:
            out.logp[row, span] = example.logp[-length:]
        adv = np.broadcast_to(example.adv, len(example.ids))
        out.adv[row, span] = adv[-length:]
        weight = np.broadcast_to(example.weight, len(example.ids))
        out.weight[row, span] = weight[-length:]
    return out


def rows_of(tokens: Tokens, index: np.ndarray, rows: int) -> Tokens:
    """The rows `index`, padded with blank ones to `rows`."""
    out = blank(rows, tokens.ids.shape[1])
    for target, source in zip(out, tokens, strict=True):
        target[: len(index)] = source[index]
    return out


def epochs(tokens: Tokens, rows: int, *, seed: int, start: int) -> Iterator[Tokens]:
    """Endless shuffled batches from step `start` on: the same whoever asks again."""
    n = tokens.ids.shape[0]
    steps = max(-(-n // rows), 1)
    step = start
    while True:
        epoch, at = divmod(step, steps)
        order = np.random.default_rng((seed, epoch)).permutation(n)
        yield rows_of(tokens, order[at * rows : (at + 1) * rows], rows)
        step += 1
