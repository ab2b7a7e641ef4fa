"""Examples of token ids, packed into rows of one width.

Example (ids, which of them are trained on) -> first-fit packing -> Tokens [B, T], whose
segments never attend to each other. Packed rows and padded rows give the same losses.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Num

Rows = TypeVar("Rows")
"""Arrays whose first axis are rows: Tokens, or a tuple that holds them."""
Values = float | int | Sequence[float] | np.ndarray
"""One number for a whole example, or one for each of its ids."""


class Example(NamedTuple):
    """One context with its targets.

    `mask` is true on ids that are trained on. `token_type` says what each id belongs
    to: an index that the loss may use (a part of a reply, a phase of the grammar).
    `weight` is the weight in the loss. `columns` are further numbers by name, such as
    `advantage` or `sampler_logp`: what a loss reads beyond the ids. Weight and columns
    hold one number for the whole example or one for each id.
    """

    ids: Sequence[int]
    mask: Sequence[bool] | np.ndarray
    token_type: Sequence[int] | np.ndarray
    weight: Values = 1.0
    columns: Mapping[str, Values] = MappingProxyType({})

    def with_columns(self, **columns: Values) -> "Example":
        """Return the example with these columns added or replaced."""
        return self._replace(columns={**self.columns, **columns})


class Tokens(NamedTuple):
    """Packed rows. Segment 0 is padding; positions restart with each segment.

    `columns` are those of the examples, 0 in the padding: int32 where every example
    gave whole numbers, float32 otherwise.
    """

    ids: Int[np.ndarray, "B T"]
    position: Int[np.ndarray, "B T"]
    segment: Int[np.ndarray, "B T"]
    mask: Bool[np.ndarray, "B T"]
    token_type: Int[np.ndarray, "B T"]
    weight: Float[np.ndarray, "B T"]
    columns: dict[str, Num[np.ndarray, "B T"]]

    def with_columns(self, **columns: Num[np.ndarray, "B T"]) -> "Tokens":
        """Return the rows with these columns added or replaced."""
        return self._replace(columns=self.columns | columns)


def blank(
    rows: int, width: int, columns: Mapping[str, type[np.number]] | None = None
) -> Tokens:
    """Return rows of padding, with the named columns of the given number types."""

    def zeros(dtype: type[np.generic]) -> np.ndarray:
        return np.zeros((rows, width), dtype)

    return Tokens(
        ids=zeros(np.int32),
        position=zeros(np.int32),
        segment=zeros(np.int32),
        mask=zeros(np.bool_),
        token_type=zeros(np.int32),
        weight=zeros(np.float32),
        columns={name: zeros(dtype) for name, dtype in (columns or {}).items()},
    )


def pack(examples: Sequence[Example], width: int) -> Tokens:
    """Pack whole examples into rows of `width` by first fit, in order.

    An example longer than `width` loses its oldest context ids, never a target.

    Raises:
      ValueError: an example whose targets alone are longer than `width`, or examples
        with different columns.
    """
    columns = _column_types(examples)
    free: list[int] = []  # tokens of each row
    places: list[tuple[int, int]] = []  # row and first column of each example
    lengths = [min(len(e.ids), width) for e in examples]
    shortest = min(lengths, default=0)
    # Rows that no example fits any more are not looked at again: first fit over all of
    # them would take quadratic time.
    open_rows: list[int] = []
    for example, length in zip(examples, lengths, strict=True):
        cut = len(example.ids) - length
        if cut and any(example.mask[: cut + 1]):  # the first id has no context
            raise ValueError(f"targets do not fit a row of {width} tokens")
        row = next((r for r in open_rows if free[r] >= length), None)
        if row is None:
            row = len(free)
            free.append(width)
            open_rows.append(row)
        places.append((row, width - free[row]))
        free[row] -= length
        if free[row] < shortest:
            open_rows.remove(row)
    out = blank(max(len(free), 1), width, columns)
    segments = np.zeros(max(len(free), 1), np.int32)
    for example, length, (row, at) in zip(examples, lengths, places, strict=True):
        span = slice(at, at + length)
        segments[row] += 1
        out.ids[row, span] = example.ids[-length:]
        # From 0 in each segment, as when the text is generated alone.
        out.position[row, span] = np.arange(length)
        out.segment[row, span] = segments[row]
        out.mask[row, span] = example.mask[-length:]
        out.mask[row, at] = False  # the first id of a segment has no context
        out.token_type[row, span] = example.token_type[-length:]
        size = len(example.ids)
        out.weight[row, span] = np.broadcast_to(example.weight, size)[-length:]
        for name, values in example.columns.items():
            out.columns[name][row, span] = np.broadcast_to(values, size)[-length:]
    return out


def _column_types(examples: Sequence[Example]) -> dict[str, type[np.number]]:
    """Return the number type of each column, by its name.

    Raises:
      ValueError: examples with different columns.
    """
    names = sorted(examples[0].columns) if examples else []
    whole = dict.fromkeys(names, True)
    for e in examples:
        if sorted(e.columns) != names:
            raise ValueError(
                "examples of one batch must have the same columns, got "
                f"{names} and {sorted(e.columns)}"
            )
        for name, values in e.columns.items():
            whole[name] &= np.asarray(values).dtype.kind in "iu"
    return {name: np.int32 if whole[name] else np.float32 for name in names}


def rows_of(tokens: Rows, index: np.ndarray, rows: int) -> Rows:
    """Return the rows `index` of all arrays, padded with blank ones to `rows`."""
    return jax.tree.map(lambda values: _padded_rows(values, index, rows), tokens)


def _padded_rows(values: np.ndarray, index: np.ndarray, rows: int) -> np.ndarray:
    out = np.zeros((rows, *values.shape[1:]), values.dtype)
    out[: len(index)] = values[index]
    return out


def epochs(tokens: Tokens, rows: int, *, seed: int, start: int) -> Iterator[Tokens]:
    """Yield shuffled batches without end, from step `start` on.

    Equal arguments give equal batches, so a fit that resumes sees what it would have.
    """
    n = tokens.ids.shape[0]
    steps = max(-(-n // rows), 1)
    step = start
    while True:
        epoch, at = divmod(step, steps)
        # By epoch, not carried along: a fit that resumes in it shuffles as before.
        order = np.random.default_rng((seed, epoch)).permutation(n)
        yield rows_of(tokens, order[at * rows : (at + 1) * rows], rows)
        step += 1
