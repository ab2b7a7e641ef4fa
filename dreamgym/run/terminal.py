"""What a command prints: short paths, and no control characters of others.

Answers of servers, environments and files may hold control characters that move the
cursor, change the title or type into the terminal. The streams of a command pass
through this module, which shows them escaped (`\\x1b`).
"""

import re
import sys
from pathlib import Path
from typing import Any, TextIO, cast

# C0 without tab and newline, a return only where it ends a line; DEL; C1; marks that
# change the direction of text.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
    "|\r(?!\n)"
)


def escape_controls(text: str) -> str:
    """Return a text in which control characters are shown as escapes."""
    return _CONTROLS.sub(lambda m: ascii(m[0])[1:-1], text)


class OutputClosedError(BrokenPipeError):
    """The reader of the output has closed it, as `head` does when it has enough."""


class PrintableStream:
    """A stream that writes printable text; `raw` is the one that it writes to."""

    def __init__(self, stream: Any):
        self.raw = stream

    def write(self, text: str) -> int:
        """Write a text, with control characters escaped."""
        try:
            self.raw.write(escape_controls(text))
        except BrokenPipeError as error:
            raise OutputClosedError(*error.args) from None
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.raw.flush()
        except BrokenPipeError as error:
            raise OutputClosedError(*error.args) from None

    def writelines(self, texts: Any) -> None:
        """Write texts, with control characters escaped."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


class PrintableStreams:
    """A block in which stdout and stderr write printable text."""

    def __enter__(self) -> None:
        self._streams = sys.stdout, sys.stderr
        stdout, stderr = self._streams
        # A stream for print and for libraries that write: not all of TextIO.
        sys.stdout = cast(TextIO, PrintableStream(stdout))
        sys.stderr = cast(TextIO, PrintableStream(stderr))

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._streams


def short_path(path: Path) -> Path:
    """Return a path as it is shorter to read: from the working directory, if inside."""
    working_directory = Path.cwd()
    if path.is_relative_to(working_directory):
        return path.relative_to(working_directory)
    return path
