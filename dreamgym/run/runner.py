"""Runs stages in order; skips finished ones and reuses those of other runs."""

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.budget import division
from dreamgym.envs.interrupts import check_interrupt
from dreamgym.run.directory import Run
from dreamgym.run.reuse import reuse_stage
from dreamgym.run.stage import Stage, StageTable
from dreamgym.run.view import StageView
from worldmodel.data import processes

ASIDE = ".aside"
"""The folder of a run that holds what a command computes again, until it has."""


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
                    limit=step_allowance(run, table, stage),
                )
                remove_work(run, stage)
            else:
                print(f"{stage.name}: done before", file=sys.stderr)
            if check is not None:
                check(stage, (marker or {})["numbers"])


@contextlib.contextmanager
def without_outdated(
    run: Run, table: StageTable, names: Sequence[str]
) -> Iterator[None]:
    """Set aside, in a block, stages that were computed under other settings.

    They are removed when the block ends, and come back if it ends with an error. An
    existing run keeps its settings, so this is for commands that run a stage of it
    again under others.

    Args:
      names: stages of which each needs the one before: from the first whose marker has
        another key on, all are set aside.
    """
    outdated, files = False, list[str]()
    run.drop(ASIDE)  # of a command that was killed
    for name in names:
        marker, key = run.done(name), table.key(name, run.config)
        outdated = outdated or (marker is not None and marker.get("key") != key)
        if outdated:
            # First the marker: without it the files count as unfinished.
            files += [f"stages/{name}.json", *table[name].writes]
    _move(run, [(file, f"{ASIDE}/{file}") for file in files])
    try:
        yield
    except BaseException:
        for file in files:
            run.drop(file)
            run.path(file).unlink(missing_ok=True)
        _move(run, [(f"{ASIDE}/{file}", file) for file in reversed(files)])
        raise
    finally:
        run.drop(ASIDE)


def _move(run: Run, files: Sequence[tuple[str, str]]) -> None:
    """Rename the files and folders of a run that are there."""
    for old, new in files:
        if run.path(old).exists():
            run.path(new).parent.mkdir(parents=True, exist_ok=True)
            run.path(old).rename(run.path(new))


def step_allowance(run: Run, table: StageTable, stage: Stage) -> int | None:
    """Return the real steps that a stage may take; None where the run sets no bound.

    It may take its part of the budget and what is left over in the parts of the stages
    that it needs. Test tasks are free.
    """
    if not run.config.budget.real_steps or stage.test:
        return None
    if not stage.share:
        return 0
    real_training = run.config.train.environment == "real"
    spent = {
        s.name: int(run.numbers(s.name).get("real_transitions", 0))
        for s in table.closure([stage.name])
    }
    collected = None if stage.share == "collect" else spent.pop("collect")
    parts = division(run.config.budget, collected, real_training=real_training)
    if collected is None:
        return parts["collect"]
    shares = {s.share for s in table.closure([stage.name])} - {"", "collect"}
    return max(sum(parts[name] for name in shares) - sum(spent.values()), 0)


def remove_work(run: Run, stage: Stage) -> None:
    """Remove the checkpoints of a finished stage."""
    with processes.first_process_writes(f"checkpoints of {stage.name}") as writes:
        if not writes:
            return
        for name in (stage.name, *stage.policies):
            path: Path = run.root / "checkpoints" / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
