"""Micro-batches: rows that a device's memory holds, found by running out of it.

rows of a batch -> pieces that fit -> sums of gradients and of metrics. A gradient is a
sum over rows (learner.py), so smaller pieces change nothing but time and memory.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: of the host or of a device."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" in str(error)
    return isinstance(error, MemoryError)


class MicroBatches:
    """How many rows are computed at once; halved for good when memory runs out.

    At least `least` rows are, as many as devices share them between them.
    """

    def __init__(self, min_rows: int = 1):
        self._min_rows = min_rows
        self._max_rows: int | None = None
        self._fitting_shapes: set[tuple[int, int]] = set()

    def over(
        self,
        count: int,
        max_rows: int,
        width: int,
        compute: Callable[[int, int, int], T],
    ) -> Iterator[T]:
        """`compute(start, stop, size)` of consecutive pieces of `count` rows.

        A piece is rows `start` to `stop`, `most` at most; programs are compiled for
        `size` rows, to which a short last piece is to be padded. `width`, the tokens of
        a row, tells shapes apart. A piece that runs out of memory is begun again with
        half the rows, which is said on stderr: so it must use nothing up (no donation).

        Raises:
          MemoryError: one row, or the least number of rows, is too much.
        """
        at = 0
        while at < count:
            size = max_rows if self._max_rows is None else min(max_rows, self._max_rows)
            try:
                result = compute(at, min(at + size, count), size)
                if (
                    size,
                    width,
                ) not in self._fitting_shapes:  # memory is asked for when it runs
                    jax.block_until_ready(result)
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                # Hosts that share a step would have to agree on its pieces.
                if not out_of_memory(error) or jax.process_count() > 1:
                    raise
                self._halve(size, width, error)
                continue
            self._fitting_shapes.add((size, width))
            yield result
            at += size

    def _halve(self, size: int, width: int, error: BaseException) -> None:
        message = f"out of memory with {size} row{'s' * (size > 1)} of {width} tokens"
        if size <= self._min_rows:
            raise MemoryError(
                f"{message}, and fewer cannot be: a smaller --model or shorter rows "
                "need less; so do --remat, --dtype bfloat16 and --lora, of which updates of "
                "the policy take none"
            ) from error
        self._max_rows = max(size // 2 // self._min_rows, 1) * self._min_rows
        print(
            f"{message}: going on with micro-batches of {self._max_rows}",
            file=sys.stderr,
        )
