"""Runs stages in order; skips finished ones and reuses those of other runs."""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from dreamgym.envs.interrupts import check_interrupt
from dreamgym.run.directory import Run
from dreamgym.run.reuse import reuse_stage
from dreamgym.run.stage import Stage, StageTable
from dreamgym.run.view import StageView


def run_stages(
    run: Run,
    table: StageTable,
    names: Iterable[str],
    *,
    others: Sequence[Run] = (),
    check: Callable[[Stage, dict[str, Any]], None] | None = None,
) -> None:
    """Run these stages and those they need, except the ones that are finished.

    A stage that one of the `others` has computed under the same key is copied from
    there. `check` is called with the numbers of each finished stage, and may raise.

    Raises:
      BlockingIOError: another process works in the run directory.
    """
    with run.lock:
        for stage in table.closure(names):
            marker = run.done(stage.name)
            key = table.key(stage.name, run.config)
            check_interrupt()
            if marker is None and others and reuse_stage(run, stage, key, others):
                marker = run.done(stage.name)
            elif marker is None:
                view = StageView(run, stage, table)
                marker = run.stage(
                    stage.name,
                    lambda s=stage, v=view: s.body(v),
                    key=key,
                    test=stage.test,
                )
                remove_work(run, stage)
            else:
                print(f"{stage.name}: done before", file=sys.stderr)
            if check is not None:
                check(stage, (marker or {})["numbers"])


def remove_work(run: Run, stage: Stage) -> None:
    """Remove the checkpoints of a finished stage."""
    for name in (stage.name, *stage.policies):
        path: Path = run.root / "checkpoints" / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
