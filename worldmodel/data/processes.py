"""Coordination of several processes that run one program: file writes and waiting.

With `jax.distributed` each process (a host, as a rule) runs the same program on its
part of the devices. All of them see one directory: the first process writes, the others
wait until it has. What only one process knows, such as the answer of an environment,
goes to all of them as bytes.

A program of one process is not slowed down: JAX is not even imported here.
"""

import contextlib
import contextvars
import io
import sys
from collections.abc import Iterator
from typing import Any

FRAME_BYTES = 1 << 12
"""Bytes of a first message; the rest follows in a second one, if there is any."""

_in_block = contextvars.ContextVar("in_block", default=False)
"""Whether the first process writes in a block of `first_process_writes` already."""


def process_count() -> int:
    """Return the number of processes that run this program together."""
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return 1
    return jax.process_count()


def is_first_process() -> bool:
    """Return whether this process is the one that writes files."""
    return process_count() == 1 or sys.modules["jax"].process_index() == 0


def wait_for_all(name: str) -> None:
    """Wait until every process is here; `name` must be the same in all of them."""
    if process_count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def first_process_writes(name: str) -> Iterator[bool]:
    """Yield whether this process writes files in the block; all leave it together.

    No process enters the block before all are there, so that none has still to read
    what is replaced. An error is raised at once, in the process that has it: the others
    then end with the connection to it. Nested blocks do not wait.
    """
    if process_count() == 1 or _in_block.get():
        yield is_first_process()
        return
    wait_for_all(f"before {name}")
    with first_process_alone() as writes:
        yield writes
    wait_for_all(f"after {name}")


@contextlib.contextmanager
def first_process_alone() -> Iterator[bool]:
    """Yield whether this process is the first; no process waits for another.

    For files that no process reads before the next wait, and after errors, which may be
    of one process alone.
    """
    token = _in_block.set(True)
    try:
        yield is_first_process()
    finally:
        _in_block.reset(token)


def discarded_text() -> Any:
    """Return a text file, with a `buffer` of bytes, of which nothing is kept."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")


def from_first_process(message: bytes | None) -> bytes:
    """Return the message of the first process in all of them.

    Args:
      message: that of the first process; what the others give is not read.
    """
    if process_count() == 1:
        assert message is not None
        return message
    message = message if is_first_process() and message is not None else b""
    # Few lengths, because each is a program of its own.
    head = len(message).to_bytes(8, "little") + message[: FRAME_BYTES - 8]
    frame = _broadcast(head.ljust(FRAME_BYTES, b"\0"))
    size = int.from_bytes(frame[:8], "little")
    first = frame[8 : 8 + size]
    rest = size - len(first)
    if rest <= 0:
        return first
    length = 1 << (rest - 1).bit_length()
    tail = message[FRAME_BYTES - 8 :].ljust(length, b"\0")
    return first + _broadcast(tail)[:rest]


def _broadcast(message: bytes) -> bytes:
    import numpy as np
    from jax.experimental import multihost_utils

    array = np.frombuffer(message, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(array)).tobytes()
