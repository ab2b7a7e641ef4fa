"""A stage that another run has computed: its files and its marker, copied.

A stage is the same function of the settings it reads in every run, so where keys are
equal (run/stage.py) the files of one are as good as computed anew.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamgym.run.directory import Run
from dreamgym.run.stage import Stage


def reuse_stage(run: Run, stage: Stage, key: str, others: Sequence[Run]) -> bool:
    """Copy a stage from a run that has it under this key; whether there was one."""
    for other in others:
        if other.root == run.root or (other.done(stage.name) or {}).get("key") != key:
            continue
        print(f"{stage.name}: as in {other.root}", file=sys.stderr)
        for name in stage.writes:
            _copy(other.path(name), run.path(name))
        marker = f"stages/{stage.name}.json"
        _copy(other.path(marker), run.path(marker))
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
