"""Commands of a run: every stage, all of them, controls, the contract, the table."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.cli.options import (
    ENV_HELP,
    MESH_HELP,
    NO_TUNING,
    add_server,
    add_track,
    changed_options,
    config_of,
    run_options,
    server_of,
)

if TYPE_CHECKING:
    from dreamgym.commands.study import Study
    from dreamgym.config.settings import RunConfig


def add(commands: Any) -> None:
    """The subcommands, each with what it runs."""
    from dreamgym.run.stage import summary
    from dreamgym.stages.table import STAGES

    texts = {name: summary(stages[0]) for name, stages in STAGES.commands().items()}
    texts |= {
        "quickstart": "Run all stages, then print the table",
        "evaluate": "Play the real test games with each policy",
        "transfer": "Fine-tune in the real environment, with controls; print the table",
    }
    for name in ("quickstart", *STAGES.commands()):
        if name == "fidelity":
            _fidelity_command(commands)
            continue
        command = commands.add_parser(name, help=texts[name])
        run_options(command)
        command.set_defaults(body=_stages)
        if name == "pretrain":
            command.add_argument(
                "--from", dest="source", type=Path, metavar="RUN",
                help="go on from RUN's experience model with its episodes and those of "
                "--episodes, under RUN's settings; both models are scored on the same "
                "unseen games (default --run-dir: RUN-refit)",
            )  # fmt: skip
        if name == "quickstart":
            command.add_argument("--no-transfer", action="store_true", help=NO_TUNING)
    control = commands.add_parser("control", help="Run a control that must not gain")
    control.add_argument(
        "name", choices=["shuffled"],
        help="shuffled: the experience model fitted to permuted outcomes",
    )  # fmt: skip
    control.add_argument("--no-transfer", action="store_true", help=NO_TUNING)
    run_options(control)
    control.set_defaults(body=_stages)
    _compare_command(commands)
    check = commands.add_parser(
        "check", help="Check that an environment keeps its contract"
    )
    check.add_argument("--env", default="textworld", help=ENV_HELP)
    check.set_defaults(body=_check)
    study = commands.add_parser(
        "study", help="Run a grid of settings and print its table",
        description="Run every cell of a grid (a TOML file, see "
        "scripts/studies/) and print the table. Interrupted? The same command goes on; "
        "cells that did not run are blank. A cell that fails is told, and tried again "
        "by the next call. What you choose by the table looks better there than it is: "
        "--fresh asks games that chose nothing.",
    )  # fmt: skip
    study.add_argument("file", type=Path, metavar="FILE", help="the study (TOML)")
    study.add_argument("--root", type=Path, help="where (default: runs/NAME of FILE)")
    study.add_argument("--table", action="store_true", help="run nothing, print only")
    study.add_argument(
        "--fresh", type=int, metavar="GAMES",
        help="run no cell; policies of the finished ones play so many test games that "
        "no cell has played, and the table is of these",
    )  # fmt: skip
    add_track(study)
    study.set_defaults(body=_study)
    beside = commands.add_parser(
        "show", help="Show a dreamed episode beside the real one",
        description="Play a dev episode of RUN in its dream, action by action: states, "
        "reasoning, confidence and what was retrieved; here and as a page.",
    )  # fmt: skip
    beside.add_argument("run_dir", type=Path, metavar="RUN")
    beside.add_argument("--episode", metavar="ID", help="of RUN/dev.jsonl (the first)")
    beside.set_defaults(body=_show)
    show = commands.add_parser("report", help="Print the table of a finished run")
    show.add_argument("run_dir", type=Path)
    show.set_defaults(body=_report)


def _fidelity_command(commands: Any) -> None:
    command = commands.add_parser(
        "fidelity", help="Measure how far a run's experience model can be trusted",
        description="Compare the experience model of RUN with real episodes, step by "
        "step and let run freely: a table here, a page with plots in RUN/scorecard/. "
        "Without --episodes its own dev games are taken.",
    )  # fmt: skip
    add = command.add_argument
    add("run_dir", type=Path, metavar="RUN", help="a run directory, pretrained")
    add("--episodes", type=Path, metavar="FILE", help="real episodes (JSONL) to ask of")
    add(
        "--limit",
        type=int,
        metavar="N",
        help="transitions at most (default: the run's own number), and half as many of "
        "each family and of each actor; of episodes that are dreamed whole as many as "
        "N steps hold (default: all)",
    )
    add("--mesh", default="", help=MESH_HELP)
    add("--json", action="store_true", help="the whole card as one JSON object")
    add_server(command)
    command.set_defaults(body=_fidelity)


def _fidelity(args: argparse.Namespace) -> None:
    from dreamgym.commands import scorecard as scorecard_command
    from dreamgym.evaluation import scorecard_page
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh
    from worldmodel.data.records import read_episodes

    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit must be >= 1, got {args.limit}")
    server = server_of(args)
    if server is not None and args.mesh:
        raise ValueError("--mesh places a model of ours, and a --server has its own")
    if args.episodes is not None:
        read_episodes(args.episodes)  # a bad file is said before anything is loaded
    tune_process()
    run = Run.open(
        args.run_dir, make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    )
    card, page = scorecard_command.full_scorecard(
        run, args.episodes, args.limit, server
    )
    print(json.dumps(card) if args.json else scorecard_page.table(card))
    if not args.json:
        print(f"\npage: {page}")


def _refit(args: argparse.Namespace) -> None:
    from dreamgym.commands.refit import refit
    from dreamgym.evaluation import scorecard_page
    from dreamgym.run.directory import Run, RunError
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    if args.episodes is None:
        raise RunError("--from needs --episodes FILE: what is there to learn anew?")
    if args.server is not None:
        raise RunError("--from fits a model of ours again; a --server is not fitted")
    if given := changed_options(args):
        raise RunError(f"--from goes on under RUN's own settings: drop {given[0]}")
    tune_process()
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    source = Run.open(args.source, mesh)
    root = args.run_dir or args.source.with_name(f"{args.source.name}-refit")
    told = refit(source, args.episodes, root, args.track)
    print(scorecard_page.side_by_side({k: told[k] for k in ("before", "after")}))
    print(f"\nthe new run: {root}")


def _stages(args: argparse.Namespace) -> None:
    from dreamgym.build.chat import check_server
    from dreamgym.cli.estimate import say
    from dreamgym.commands import results as run_results
    from dreamgym.commands.quickstart import quickstart
    from dreamgym.evaluation import report
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process
    from dreamgym.run.runner import run_stages
    from dreamgym.run.tracking import require
    from dreamgym.stages.table import STAGES
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    require(args.track)
    if args.command == "pretrain" and args.source is not None:
        return _refit(args)
    mesh = parse_mesh(args.mesh) if args.mesh else None
    config = _settings(args)
    suffix = "-shuffled" if config.shuffled else "-server" if config.server else ""
    default = Path("runs") / f"{config.preset}-{config.seed}{suffix}"
    root = args.run_dir if args.run_dir is not None else default
    if args.command in STAGES.commands():
        if args.command != "collect":  # which asks nobody
            check_server(config)
        tune_process()
        placed = None if mesh is None else make_mesh(mesh)
        with Run(root, config, placed, args.track) as run:
            names = [stage.name for stage in STAGES.commands()[args.command]]
            run_stages(run, STAGES, names)
        if args.command != "transfer":
            return
        results = run_results.write_results(run)
    else:
        if mesh is None:
            say(root, config, mesh, fine_tune=not args.no_transfer)
        results = quickstart(
            root, config, fine_tune=not args.no_transfer, mesh=mesh, track=args.track
        )
    print(report.table(results))
    print(f"results: {root / 'results.json'}   plots: {root / 'plots'}")


def _settings(args: argparse.Namespace) -> "RunConfig":
    """Return the settings of a run: those it was made with, and what is typed here.

    A run that stands keeps its settings, so that a stage of it needs no option again.
    """
    from dreamgym.cli.options import change_settings
    from dreamgym.run.directory import Run, RunError

    root = args.run_dir
    if root is None or not (root / "manifest.json").is_file():
        return config_of(args)
    config = Run.open(root).config
    given = [*changed_options(args), *(["--episodes"] if args.episodes else [])]
    same = {
        f"--{name}"
        for name in ("preset", "seed", "env", "model")
        if getattr(args, name) == getattr(config, name)
    }
    given = [option for option in given if option not in same]
    if config.refit and (given or args.command == "control"):
        raise RunError(
            f"{root} is a refit of {config.refit} and goes on under its settings: drop "
            f"{[*given, 'control'][0]}"
        )
    if set(given) <= {"--set", "--algorithm"} and args.command != "control":
        return change_settings(config, args)
    return config_of(args)


def _study(args: argparse.Namespace) -> None:
    from dreamgym.cli.estimate import say_study
    from dreamgym.commands import study
    from dreamgym.run.directory import RunError
    from dreamgym.run.process import tune_process
    from dreamgym.run.tracking import require

    grid = study.read_study(args.file)
    root = args.root if args.root is not None else Path("runs") / args.file.stem
    if args.fresh is not None and args.fresh < 1:
        raise RunError(f"--fresh: expected at least 1 game, got {args.fresh}")
    if args.fresh is not None and args.track:
        raise RunError("--fresh trains nothing that --track could follow: drop one")
    failed = []
    if not args.table:
        require(args.track)
        tune_process()
        if args.fresh is None:
            say_study(grid, root)
            failed = _each(grid, lambda c: study.compute(grid, c, root, args.track))
        else:
            failed = _each(grid, lambda c: _fresh(grid, c, root, args.fresh))
    print(study.table(grid, root, args.fresh))
    if figure := study.plot(grid, root, args.fresh):
        print(f"\nplot: {figure}")
    if failed:
        told = "\n  ".join(failed)
        raise RunError(f"{len(failed)} cells failed, and are blank:\n  {told}")


def _fresh(grid: "Study", cell: Any, root: Path, count: int) -> None:
    from dreamgym.commands import study

    if not study.play_fresh(grid, cell, root, count):
        print("  not finished: without --fresh the study computes it", file=sys.stderr)


def _each(grid: "Study", body: Callable[[Any], object]) -> list[str]:
    """Every cell of a study in turn; the ones that failed, and why.

    What is wrong with one cell is told, and the next are tried. Where nobody answers
    or there is no room they would fare no better, and the study stops.
    """
    from dreamgym.build.chat import ServerLost
    from dreamgym.commands import study
    from dreamgym.run.directory import RunError

    failed = []
    for cell in study.cells(grid):
        name = " ".join(f"{k}={v}" for k, v in cell.items())
        print(f"cell {name}", flush=True)
        try:
            body(cell)
        except ServerLost:
            raise
        except (RunError, ArithmeticError, ValueError) as error:
            failed.append(f"{name}: {error}")
            print(f"cell {failed[-1]}", file=sys.stderr, flush=True)
    return failed


def _show(args: argparse.Namespace) -> None:
    from dreamgym.commands.show import shown
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    tune_process()
    told, page = shown(Run.open(args.run_dir), args.episode)
    print(f"{told}\n\npage: {page}")


def _check(args: argparse.Namespace) -> None:
    from dreamgym.envs import contract, registry

    env = registry.make(args.env)
    contract.check_gymnasium(env)
    done = contract.check(env, name=args.env)
    print(f"{args.env} keeps the contract: {', '.join(done)}, check_env")
    env.close()


def _compare_command(commands: Any) -> None:
    command = commands.add_parser(
        "compare", help="Compare runs: settings, successes, curves",
        description="A table of what differs in the settings of runs and of what came "
        "of it, differences to the first run on the same games, and a figure of their "
        "curves. Runs need not be finished: what one lacks is blank.",
    )  # fmt: skip
    add = command.add_argument
    add("run_dirs", type=Path, nargs="+", metavar="RUN", help="two runs or more")
    add("--to", type=Path, default=Path("compare.png"), metavar="FILE",
        help="where the figure goes (compare.png)")  # fmt: skip
    add("--json", action="store_true", help="everything as one JSON object")
    command.set_defaults(body=_compare)


def _compare(args: argparse.Namespace) -> None:
    from dreamgym.commands.compare import compared
    from dreamgym.evaluation import run_comparison

    found = compared(args.run_dirs)
    run_comparison.plot(found, args.to)
    print(json.dumps(found) if args.json else run_comparison.table(found))
    if not args.json:
        print(f"\nplot: {args.to}")


def _report(args: argparse.Namespace) -> None:
    from dreamgym.evaluation import report

    path = args.run_dir / "results.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no finished run there")
    print(report.table(json.loads(path.read_text())))
