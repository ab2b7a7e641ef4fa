"""Microbatches: as many rows at once as memory holds, halved when it runs out.

rows of a batch -> pieces that fit -> sums of gradients and of metrics. A gradient is a
sum over rows (learner.py), so that smaller pieces change only time and memory.
"""

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax

T = TypeVar("T")


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the host or a device ran out of memory."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "RESOURCE_EXHAUSTED" in str(error)
    return isinstance(error, MemoryError)


class MicroBatches:
    """The number of rows computed at once; halved for good when memory runs out.

    It never falls below `min_rows`, the number of devices that share the rows.
    """

    def __init__(self, min_rows: int = 1):
        self._min_rows = min_rows
        self._max_rows: int | None = None
        self._fitting_shapes: set[tuple[int, int]] = set()

    def run(
        self,
        count: int,
        max_rows: int,
        width: int,
        compute: Callable[[int, int, int], T],
    ) -> Iterator[T]:
        """Yield `compute(start, stop, size)` of consecutive pieces of `count` rows.

        A piece is rows `start` to `stop`, at most `max_rows`. Programs are compiled for
        `size` rows, and a short last piece is to be padded to them. `width`, the tokens
        of a row, tells shapes apart. A piece that runs out of memory is started again
        with half the rows, and a line on stderr says so; `compute` must therefore
        donate nothing.

        Raises:
          MemoryError: the smallest number of rows is too much.
        """
        at = 0
        while at < count:
            size = max_rows if self._max_rows is None else min(max_rows, self._max_rows)
            try:
                result = compute(at, min(at + size, count), size)
                # Memory is allocated when the program first runs.
                if (size, width) not in self._fitting_shapes:
                    jax.block_until_ready(result)
            except (MemoryError, jax.errors.JaxRuntimeError) as error:
                # Several hosts would have to agree on the size of pieces.
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
                f"{message}, and fewer are not possible: use a smaller --model or "
                "shorter rows; fits (not updates of the policy) also need less with "
                "--remat, --dtype bfloat16 or --lora"
            ) from error
        self._max_rows = max(size // 2 // self._min_rows, 1) * self._min_rows
        print(
            f"{message}: continuing with microbatches of {self._max_rows}",
            file=sys.stderr,
        )
