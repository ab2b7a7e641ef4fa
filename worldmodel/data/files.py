"""Files that are written whole or not at all."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[Any]:
    """Yield a text file that takes the place of `path` when the block ends well.

    A symbolic link is followed, and stays a link.

    Raises:
      FileExistsError: the path is a directory, a device or a pipe, which must not be
        replaced.
    """
    if path.exists() and not path.is_file():
        kind = "a directory" if path.is_dir() else "no regular file"
        message = f"{kind}; expected a file to write, or a new name"
        raise FileExistsError(errno.EEXIST, message, str(path))
    if path.is_symlink():
        try:
            path = path.resolve()
        except RuntimeError as error:  # links that name each other
            raise OSError(errno.ELOOP, str(error), str(path)) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            error.filename = str(path)  # which disk is full
        raise
    finally:
        temporary.unlink(missing_ok=True)
