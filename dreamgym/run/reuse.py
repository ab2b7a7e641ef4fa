"""Reuse of stages: copies the files and marker of a stage from another run.

A stage is a function of the settings it reads, so where the keys of a stage are equal
in two runs (run/stage.py) its files are, too.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamgym.run.directory import Run
from dreamgym.run.stage import Stage
from dreamgym.run.terminal import short_path
from worldmodel.data import processes


def reuse_stage(run: Run, stage: Stage, key: str, others: Sequence[Run]) -> bool:
    """Copy a stage from a run that has it under this key; return whether one had."""
    for other in others:
        if other.root == run.root or (other.done(stage.name) or {}).get("key") != key:
            continue
        print(f"{stage.name}: as in {short_path(other.root)}", file=sys.stderr)
        with processes.first_process_writes(f"copy of {stage.name}") as writes:
            if writes:
                for name in (*stage.writes, f"stages/{stage.name}.json"):
                    _copy(other.path(name), run.path(name))
        return True
    return False


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copy2(source, fresh)
        fresh.replace(target)  # at once: a marker cut short would stop every study
