"""The command `study`, which runs a grid of settings and prints its table."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.cli.options import add_track

if TYPE_CHECKING:
    from dreamgym.commands.studies.study_file import Study


def add(commands: Any) -> None:
    """Add the subcommand and the function it runs."""
    study = commands.add_parser(
        "study",
        help="Run a grid of settings and print its table",
        description="Run every cell of a grid (a TOML file, see "
        "scripts/studies/) and print the table. Interrupted? The same command goes on; "
        "cells that did not run are blank. A cell that fails is reported, and tried "
        "again by the next call. What you choose by the table looks better there "
        "than it is: --confirm asks games that chose nothing.",
    )
    study.add_argument("file", type=Path, metavar="FILE", help="the study (TOML)")
    study.add_argument("--root", type=Path, help="where (default: runs/NAME of FILE)")
    study.add_argument("--table", action="store_true", help="run nothing, print only")
    study.add_argument(
        "--confirm",
        type=int,
        metavar="TASKS",
        help="run no cell; policies of the finished ones play so many test tasks that "
        "no cell has played, and the table is of these",
    )
    add_track(study)
    study.set_defaults(body=_study)


def _study(args: argparse.Namespace) -> None:
    from dreamgym.cli.estimate import print_study_estimate
    from dreamgym.commands.studies import study, study_curves
    from dreamgym.commands.studies.study_file import read_study
    from dreamgym.run.directory import RunError
    from dreamgym.run.process import tune_process
    from dreamgym.run.tracking import require

    grid = read_study(args.file)
    root = args.root if args.root is not None else Path("runs") / args.file.stem
    if args.confirm is not None and args.confirm < 1:
        raise RunError(f"--confirm: expected at least 1 task, got {args.confirm}")
    if args.confirm is not None and args.track:
        raise RunError("--confirm trains nothing that --track could follow: drop one")
    failed = []
    if not args.table:
        require(args.track)
        tune_process()
        if args.confirm is None:
            print_study_estimate(grid, root)
            failed = _each(grid, lambda c: study.compute(grid, c, root, args.track))
        else:
            failed = _each(grid, lambda c: _confirm(grid, c, root, args.confirm))
    print(study.table(grid, root, args.confirm))
    if figure := study.plot(grid, root, args.confirm):
        print(f"\nplot: {figure}")
    if grid.curves and args.confirm is None:
        print(f"\n{study_curves.table(grid, root)}")
        for draw in (study_curves.plot, study_curves.plot_seconds):
            if figure := draw(grid, root):
                print(f"\nplot: {figure}")
    if failed:
        names = "\n  ".join(failed)
        raise RunError(f"{len(failed)} cells failed, and are blank:\n  {names}")


def _confirm(grid: "Study", cell: Any, root: Path, count: int) -> None:
    from dreamgym.commands.studies import study

    if not study.confirm(grid, cell, root, count):
        print(
            "  not finished: without --confirm the study computes it", file=sys.stderr
        )


def _each(grid: "Study", body: Callable[[Any], object]) -> list[str]:
    """Run every cell of a study in turn; return the failed cells with the reasons.

    A failed cell is reported and the next ones run. The study stops if a server does
    not answer or the disk is full, because all further cells would fail, too.
    """
    from dreamgym.build.chat import ServerLost
    from dreamgym.commands.studies.study_file import cells
    from dreamgym.envs.failures import EnvironmentDown
    from dreamgym.run.directory import RunError

    failed = []
    for cell in cells(grid):
        name = " ".join(f"{k}={v}" for k, v in cell.items())
        print(f"cell {name}", flush=True)
        try:
            body(cell)
        except ServerLost:
            raise
        except (
            RunError,
            ArithmeticError,
            ValueError,
            EnvironmentDown,
            BlockingIOError,  # another command works in its run
        ) as error:
            failed.append(f"{name}: {error}")
            print(f"cell {failed[-1]}", file=sys.stderr, flush=True)
    return failed
