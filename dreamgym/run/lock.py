"""A lock that lets only one command at a time work in a run directory.

It is a kernel lock (flock), so it ends with the process that holds it, however that
ends; the content of the file only tells who holds it. On NFS and other network file
systems flock may work on each host alone, or not at all: there, take care that two
hosts do not write into one run at once.
"""

import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from worldmodel.data import processes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NAME = ".lock"


class RunLock:
    """The lock of a directory; the same object may be entered several times."""

    def __init__(self, directory: Path):
        self._path, self._file, self._depth = directory / NAME, None, 0

    def __enter__(self) -> "RunLock":
        """Take the lock.

        Raises:
          BlockingIOError: another process holds it; the message says who.
        """
        if not self._depth and fcntl is not None and processes.is_first_process():
            self._take()
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._file is not None:
            self._file.close()  # the file stays: removing it would race with others
            self._file = None

    def _take(self) -> None:
        assert fcntl is not None
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file: Any = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _owner(self._path)
            file.close()
            raise BlockingIOError(
                f"{self._path.parent}: {owner} works in this run; wait for it, end it, "
                "or choose another --run-dir"
            ) from None
        except OSError as error:  # a file system without locks
            print(f"{self._path}: no lock here ({error})", file=sys.stderr)
        file.truncate(0)
        since = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        command = " ".join(sys.orig_argv)[:200]
        json.dump({"pid": os.getpid(), "command": command, "since": since}, file)
        file.flush()
        self._file = file


def _owner(path: Path) -> str:
    """Return the holder of the lock, according to its file."""
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        return f"process {row['pid']} ({row['command']!r}, since {row['since']})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
