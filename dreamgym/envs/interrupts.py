"""Handles Ctrl-C so that foreign code cannot suppress it.

Libraries and environments may catch KeyboardInterrupt, or turn it into an exception of
their own. The handler also records it, and `check_interrupt` raises it again in our own
code.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

IMPATIENCE = 3
"""How often Ctrl-C is pressed until the process ends at once."""

_presses: list[int] = []


@contextlib.contextmanager
def interrupt_handler() -> Iterator[None]:
    """Let Ctrl-C be recorded as well as raised in a block of the main thread.

    A block that was interrupted leaves Ctrl-C ignored, as its process is to end.
    """
    _presses.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, _on_interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, _on_unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, signal.SIG_IGN if _presses else previous)
        _presses.clear()


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Record and raise; files are replaced whole, so that an end at once is safe."""
    del frame
    _presses.append(number)
    if len(_presses) >= IMPATIENCE:
        os._exit(130)
    raise KeyboardInterrupt


def _on_unraisable(unraisable: Any) -> None:
    """Print no trace of Ctrl-C in a destructor or callback: it is recorded."""
    if not (_presses and unraisable.exc_type is KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)


def interrupted() -> bool:
    """Return whether Ctrl-C was pressed since the handler was installed."""
    return bool(_presses)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed, whoever caught it before."""
    if _presses:
        raise KeyboardInterrupt


def ignore_further() -> None:
    """Ignore Ctrl-C from here on: the command says its last sentence and ends."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
