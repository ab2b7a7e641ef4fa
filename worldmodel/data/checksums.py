"""Checksums of the files of a directory: a flipped byte is an error, not a result."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.records import atomic_write

NAME = "checksums.json"


def write_checksums(directory: Path, files: Iterable[Path]) -> None:
    """Write the SHA-256 of files of a directory into its checksums.json."""
    sums = {f.relative_to(directory).as_posix(): file_sum(f) for f in sorted(files)}
    with atomic_write(directory / NAME) as file:
        json.dump(sums, file, indent=2)


def verify_checksums(directory: Path) -> None:
    """Check the files that a directory's checksums.json names; without one do nothing.

    Raises:
      FileNotFoundError: a file is missing.
      RecordError: a file is another one; the message names it.
    """
    path = directory / NAME
    if not path.is_file():
        return
    for name, expected in read_json_object(path).items():
        file = directory / name
        if not file.resolve().is_relative_to(directory.resolve()):
            raise RecordError(f"{path}: {name!r} is outside of the directory")
        if not file.is_file():
            raise FileNotFoundError(f"{file}: no such file, but {NAME} names it")
        if file_sum(file) != expected:
            raise RecordError(
                f"{file}: damaged or edited: its SHA-256 is not that of {NAME} "
                f"(remove {path} if you changed the file on purpose)"
            )


def directory_sums(directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a directory: of its checksums.json, if any.

    A directory that is missing has no files.
    """
    path = directory / NAME
    if path.is_file():
        return read_json_object(path)
    files = sorted(f for f in directory.rglob("*") if f.is_file())
    return {f.relative_to(directory).as_posix(): file_sum(f) for f in files}


def file_sum(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
