"""A message for the case that the process of a command dies inside foreign code.

A crash of a native library, `os._exit` and a kill by the system run no further Python
code: nothing could be printed from inside. A second process therefore holds the message
and waits at a pipe, which the system closes when the command dies.
"""

import contextlib
import faulthandler
import subprocess
import sys
from collections.abc import Iterator

_HOLDER = """import os
text = b""
while part := os.read(0, 65536):
    text += part
    if text.endswith(b"\\0"):
        raise SystemExit
os.write(1, text)
"""
"""The program of the second process: it prints what it has read, unless a zero byte
says that the command went on."""


@contextlib.contextmanager
def death_notice(text: str) -> Iterator[None]:
    """Print a text to standard output if this process dies inside the block.

    After a signal, such as a segmentation fault, Python's traceback goes to standard
    error as well. An exception is no death: the block raises it and nothing is printed.
    """
    holder = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _HOLDER],
        stdin=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the command
    )
    assert holder.stdin is not None
    holder.stdin.write(f"{text}\n".encode())
    holder.stdin.flush()
    stderr = sys.__stderr__  # None where there is no console
    traces = stderr is not None and not faulthandler.is_enabled()
    if stderr is not None and traces:
        faulthandler.enable(stderr)
    try:
        yield
    finally:
        if traces:
            faulthandler.disable()
        holder.communicate(b"\0")
