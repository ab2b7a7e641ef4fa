"""Checkpoints: one directory a step with Orbax arrays and host state as JSON.

A directory is written under a temporary name and renamed when it is completely on disk,
so that a killed process leaves the last complete step. On several hosts each writes its
own shards, and the first commits; a step can be restored onto any mesh. A
CheckpointWriter writes while the next update is computed.
"""

import errno
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from worldmodel.data import checksums, processes
from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.records import atomic_write

MAX_COPY_BYTES = 1 << 28
"""Bytes of arrays that a CheckpointWriter copies, at most: larger ones would take much
memory twice, and are written in little time beside their updates."""


def save(directory: str | os.PathLike, step: int, arrays: Any, host: dict) -> Path:
    """Write `directory/step_N` at once or not at all, then delete older steps.

    Raises:
      OSError: too little space on the disk (ENOSPC); nothing has been written.
    """
    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    _require_disk_space(root, sum(x.nbytes for x in jax.tree.leaves(arrays)))
    temporary, final = root / ".tmp_step", root / f"step_{step:08d}"
    with processes.first_process_writes("checkpoint") as writes:
        if writes:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(temporary / "arrays", arrays)
        checkpointer.wait_until_finished()
    with processes.first_process_writes("checkpoint") as writes:
        if writes:
            _commit(root, step, host)
    return final


class CheckpointWriter:
    """Writes the checkpoints of one directory while the program goes on.

    The arrays are copied first, because an update donates their buffers; large ones are
    not, and are on disk when `save` returns. So it is with several processes.
    """

    def __init__(self, directory: str | os.PathLike):
        self._directory = directory
        # Not Thread.join: a join that Ctrl-C interrupts says afterwards that the thread
        # has ended, and the checkpoint would be lost.
        self._done = threading.Event()
        self._done.set()
        self._error: Exception | None = None

    def save(self, step: int, arrays: Any, host: dict) -> None:
        """Begin to write `directory/step_N`, once the step before it is on disk.

        Raises:
          Exception: whatever writing the step before, or the space on the disk, raised.
        """
        self.wait()
        size = sum(x.nbytes for x in jax.tree.leaves(arrays))
        if processes.process_count() > 1 or size > MAX_COPY_BYTES:
            save(self._directory, step, arrays, host)
            return
        root = Path(self._directory).absolute()
        root.mkdir(parents=True, exist_ok=True)
        _require_disk_space(root, size)
        copies = jax.tree.map(np.array, arrays)
        text = json.dumps(host)  # now: the program goes on to change it
        self._done.clear()
        threading.Thread(
            target=self._write, args=(step, copies, json.loads(text)), name="checkpoint"
        ).start()

    def _write(self, step: int, arrays: Any, host: dict) -> None:
        try:
            save(self._directory, step, arrays, host)
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def wait(self) -> None:
        """Wait until what was saved is on disk.

        Raises:
          Exception: whatever writing it raised.
        """
        self._done.wait()
        if (error := self._error) is not None:
            self._error = None
            raise error

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.wait()
        else:  # the error that ends the block is the one to say
            self._done.wait()


def _commit(root: Path, step: int, host: dict) -> None:
    """Give a complete checkpoint its name, and delete older ones."""
    temporary, final = root / ".tmp_step", root / f"step_{step:08d}"
    with atomic_write(temporary / "host.json") as file:
        json.dump(host, file)
    files = [p for p in temporary.rglob("*") if p.is_file()]
    checksums.write_checksums(temporary, files)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in steps(root):
        if old != step:
            shutil.rmtree(root / f"step_{old:08d}")


def _require_disk_space(directory: Path, size: int) -> None:
    """Raise OSError where a checkpoint of `size` bytes would not fit.

    Orbax itself finds a full disk in many threads at once, each of which prints a
    trace.
    """
    free = shutil.disk_usage(directory).free
    needed = 2 * size + (1 << 20)  # arrays, their index, host state
    if free < needed:
        message = (
            f"a checkpoint needs {needed / 1e6:.1f} MB, {free / 1e6:.1f} MB are free"
        )
        raise OSError(errno.ENOSPC, f"no space left ({message})", str(directory))


def steps(directory: str | os.PathLike) -> list[int]:
    """Return the complete steps in a directory, oldest first."""
    names = [p.parent.name[5:] for p in Path(directory).glob("step_*/host.json")]
    return sorted(int(name) for name in names if name.isdecimal())


def restore(directory: str | os.PathLike, like: Any) -> tuple[int, Any, dict] | None:
    """Return (step, arrays, host state) of the newest step, or None without one.

    The arrays have the shapes and the layout of `like`.

    Raises:
      RecordError: a file of the checkpoint is damaged; the message names it.
    """
    numbers = steps(directory)
    if not numbers:
        return None
    path = Path(directory).absolute() / f"step_{numbers[-1]:08d}"
    try:
        if not (path / checksums.NAME).is_file():
            raise RecordError(f"{path / checksums.NAME}: missing, or an older version")
        checksums.verify_checksums(path)
        host = read_json_object(path / "host.json")
    except (RecordError, FileNotFoundError) as error:
        raise RecordError(
            f"{error}; remove {path.parent} and the same command begins this fit again"
        ) from None
    with ocp.StandardCheckpointer() as checkpointer:
        arrays = checkpointer.restore(path / "arrays", like)
    return numbers[-1], arrays, host
