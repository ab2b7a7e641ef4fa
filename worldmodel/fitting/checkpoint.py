"""One step directory: Orbax arrays and host state as JSON, one commit marker.

A directory is written under a temporary name and renamed when everything in it is on
disk, so a kill leaves the last whole one.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from worldmodel.text.records import replacing


def save(directory: str | os.PathLike, step: int, arrays: Any, host: dict) -> Path:
    """Write `directory/step_N` at once or not at all, then drop the older ones."""
    root = Path(directory).absolute()
    root.mkdir(parents=True, exist_ok=True)
    temporary, final = root / f".tmp_{os.getpid()}", root / f"step_{step:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(temporary / "arrays", arrays)
        checkpointer.wait_until_finished()
    with replacing(temporary / "host.json") as file:
        json.dump(host, file)
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in steps(root):
        if old != step:
            shutil.rmtree(root / f"step_{old:08d}")
    return final


def steps(directory: str | os.PathLike) -> list[int]:
    """The whole steps in a directory, oldest first."""
    found = Path(directory).glob("step_*/host.json")
    return sorted(int(p.parent.name.removeprefix("step_")) for p in found)


def restore(directory: str | os.PathLike, like: Any) -> tuple[int, Any, dict] | None:
    """(step, arrays shaped as `like`, host state) of the newest step, or None."""
    found = steps(directory)
    if not found:
        return None
    path = Path(directory).absolute() / f"step_{found[-1]:08d}"
    with ocp.StandardCheckpointer() as checkpointer:
        arrays = checkpointer.restore(path / "arrays", like)
    return found[-1], arrays, json.loads((path / "host.json").read_text())
