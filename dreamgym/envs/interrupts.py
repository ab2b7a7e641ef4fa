"""Handles Ctrl-C so that foreign code cannot suppress it.

Libraries and environments may catch KeyboardInterrupt, or turn it into an exception of
their own. The handler also records it, and `check_interrupt` raises it again in our own
code. They may install a handler of their own, too: `restore_handler` puts ours back.
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
_installed = threading.Event()


@contextlib.contextmanager
def interrupt_handler() -> Iterator[None]:
    """Let Ctrl-C be recorded as well as raised in a block of the main thread.

    A block that was interrupted leaves Ctrl-C ignored, as its process is to end.
    """
    _presses.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous, inner = signal.signal(signal.SIGINT, _on_interrupt), _installed.is_set()
    _installed.set()
    hook, sys.unraisablehook = sys.unraisablehook, _on_unraisable
    try:
        yield
    finally:
        sys.unraisablehook = hook
        if not inner:
            _installed.clear()
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


def handler_replaced() -> bool:
    """Return whether foreign code has installed another handler in place of ours."""
    other = signal.getsignal(signal.SIGINT) is not _on_interrupt
    return other and _installed.is_set()


def restore_handler() -> None:
    """Install our handler again where foreign code has replaced it.

    Else Ctrl-C would be lost, or end one episode as a call of sys.exit().
    """
    main = threading.current_thread() is threading.main_thread()
    if main and handler_replaced():
        signal.signal(signal.SIGINT, _on_interrupt)


def interrupted() -> bool:
    """Return whether Ctrl-C was pressed since the handler was installed."""
    return bool(_presses)


def check_interrupt() -> None:
    """Raise KeyboardInterrupt if Ctrl-C was pressed, whoever caught it before."""
    if _presses:
        raise KeyboardInterrupt


def ignore_further() -> None:
    """Ignore Ctrl-C from here on: the command says its last sentence and ends."""
    _installed.clear()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
