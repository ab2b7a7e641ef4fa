"""Commands of a run: its stages, controls, scorecard, comparison and report."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.cli.evaluating import add_evaluate_options, apply_evaluate_options
from dreamgym.cli.options import (
    MESH_HELP,
    NO_CONTROLS,
    NO_TUNING,
    add_server,
    add_track,
    run_options,
    server_of,
    settings_help,
)
from dreamgym.cli.settings import settings_of
from dreamgym.config.presets import RUN_CONTROLS
from dreamgym.run.terminal import short_path
from dreamgym.stages.table import STAGES

if TYPE_CHECKING:
    from dreamgym.config.settings import RunConfig
    from dreamgym.run.directory import Run
    from worldmodel.backbone.mesh import MeshConfig


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    texts = {name: stages[0].about for name, stages in STAGES.commands().items()}
    texts |= {
        "quickstart": "Run all stages, then print the table",
        "evaluate": "Play the real test games with each policy",
        "transfer": "Fine-tune in the real environment, with controls; print the table",
    }
    for name in ("quickstart", *STAGES.commands()):
        if name in ("reward-model", "dpo"):  # they need an existing run (reward.py)
            continue
        stages = STAGES.commands().get(name, list(STAGES.values()))
        command = commands.add_parser(
            name,
            help=texts[name],
            description=f"{texts[name]}.",
            epilog=settings_help(stages),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        run_options(command)
        command.set_defaults(body=_stages, names_run=True)
        if name == "quickstart":
            command.add_argument("--no-transfer", action="store_true", help=NO_TUNING)
            command.add_argument("--no-controls", action="store_true", help=NO_CONTROLS)
        if name == "evaluate":
            add_evaluate_options(command)
    control = commands.add_parser(
        "control",
        help="Run a control: a wrong dream, or none",
        description="Run all stages without what a dream brings; by default in "
        "runs/PRESET-SEED-CONTROL. `dreamgym compare` sets it beside the run.",
    )
    control.add_argument(
        "control",
        choices=list(RUN_CONTROLS),
        help="shuffled: the experience model fitted to permuted outcomes, which must "
        "not gain; real-play: no dream, the real steps of --budget are played and what "
        "is won is imitated",
    )
    control.add_argument("--no-transfer", action="store_true", help=NO_TUNING)
    control.add_argument("--no-controls", action="store_true", help=NO_CONTROLS)
    run_options(control)
    control.set_defaults(body=_stages, names_run=True)
    _scorecard_command(commands)
    _refit_command(commands)
    _compare_command(commands)


def _refit_command(commands: Any) -> None:
    command = commands.add_parser(
        "refit",
        help="Fit a run's experience model again with new episodes",
        description="Go on from RUN's experience model with its episodes and those of "
        "--episodes, under RUN's settings but its budget; both models are scored on "
        "the same unseen tasks.",
    )
    add = command.add_argument
    add("source", type=Path, metavar="RUN", help="a run directory, pretrained")
    add(
        "--episodes",
        type=Path,
        required=True,
        metavar="FILE",
        help="new real episodes (JSONL)",
    )
    add("--run-dir", type=Path, help="the new run (default: RUN-refit)")
    add("--mesh", default="", help=MESH_HELP)
    add_track(command)
    command.set_defaults(body=_refit)


def _scorecard_command(commands: Any) -> None:
    command = commands.add_parser(
        "scorecard",
        help="Measure how far a run's experience model can be trusted",
        description="Compare the experience model of RUN with real episodes, step by "
        "step and let run freely: a table here, a page with plots in RUN/scorecard/. "
        "Without --episodes its own dev games are taken.",
    )
    add = command.add_argument
    add(
        "run_dir",
        type=Path,
        metavar="RUN",
        help="a run directory, pretrained (with --server: collected)",
    )
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
    command.set_defaults(body=_scorecard)


def _scorecard(args: argparse.Namespace) -> None:
    from dreamgym.commands.inspection import scorecard as scorecard_command
    from dreamgym.evaluation.pages import scorecard_page
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
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    with Run.open(args.run_dir, mesh) as run:
        entries, page = scorecard_command.full_scorecard(
            run, args.episodes, args.limit, server
        )
    print(json.dumps(entries) if args.json else scorecard_page.table(entries))
    if not args.json:
        print(f"\npage: {short_path(page)}")


def _refit(args: argparse.Namespace) -> None:
    from dreamgym.commands.refit import refit
    from dreamgym.evaluation.pages import scorecard_page
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process
    from dreamgym.run.tracking import require
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    require(args.track)
    tune_process()
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    source = Run.open(args.source, mesh)
    root = args.run_dir or args.source.with_name(f"{args.source.name}-refit")
    result = refit(source, args.episodes, root, args.track)
    print(scorecard_page.side_by_side({k: result[k] for k in ("before", "after")}))
    print(f"\nthe new run: {root}")


def _stages(args: argparse.Namespace) -> None:
    if not args.distributed:
        return _run_stages(args)
    from dreamgym.run.process import join_processes, quiet_followers

    if getattr(args, "confirm", None) is not None:
        raise ValueError("--confirm plays its games in one process")
    if args.rollout_mesh:
        raise ValueError("--rollout-mesh needs one process: leave out --distributed")
    join_processes(args.distributed)
    args.mesh = args.mesh or "data=0"
    with quiet_followers():
        _run_stages(args)


def _check_devices(
    args: argparse.Namespace,
    config: "RunConfig",
    mesh: "MeshConfig | None",
    rollout_mesh: "MeshConfig | None",
) -> None:
    """Check what the settings need of processes and devices, and that these are there.

    Raises:
      ValueError: settings that need one process, or a single device; too few devices.
    """
    from worldmodel.backbone.mesh import make_meshes
    from worldmodel.data.processes import process_count

    if process_count() > 1 and (servers := _chat_servers(config)):
        raise ValueError(
            f"--distributed: every process would ask {servers[0]}; leave it out"
        )
    trains = args.command in ("quickstart", "train", "control")
    if trains and config.train.rollout_lag and args.mesh and not args.rollout_mesh:
        raise ValueError(
            "train.rollout_lag must be 0 with --mesh and --distributed, unless "
            "--rollout-mesh keeps devices for rollouts: two threads would begin the "
            "collective operations of several devices in different orders, got "
            f"{config.train.rollout_lag}"
        )
    make_meshes(mesh, rollout_mesh)


def _run_stages(args: argparse.Namespace) -> None:
    from dreamgym.build.chat import check_server
    from dreamgym.cli.estimate import print_estimate
    from dreamgym.commands import planning
    from dreamgym.commands import results as run_results
    from dreamgym.commands.inspection import report as run_report
    from dreamgym.commands.quickstart import (
        check_inputs,
        quickstart,
        stage_names,
        warn_of_tool_settings,
    )
    from dreamgym.evaluation import report
    from dreamgym.run.directory import Run
    from dreamgym.run.display import output_console
    from dreamgym.run.process import tune_process
    from dreamgym.run.runner import run_stages
    from dreamgym.run.tracking import require
    from worldmodel.backbone.mesh import make_meshes, parse_mesh
    from worldmodel.data.processes import wait_for_all

    require(args.track)
    mesh = parse_mesh(args.mesh) if args.mesh else None
    rollout_mesh = parse_mesh(args.rollout_mesh) if args.rollout_mesh else None
    if args.command == "evaluate":
        apply_evaluate_options(args)
        if args.confirm is not None:
            return _confirm(args)
    source = _named_attempt(args)
    others = [] if source is None else [source]
    config = settings_of(args, source)
    _check_devices(args, config, mesh, rollout_mesh)
    wait_for_all("settings")  # before any process makes the run directory
    root = args.run_dir
    if root is None:
        root = _default_directory(config, getattr(args, "control", None))
    directory = root.absolute()  # an environment may change the working directory
    check_inputs(directory, config)
    if args.command in STAGES.commands():
        if args.command != "collect":  # which asks nobody
            check_server(config)
        tune_process()
        learning, rollouts = make_meshes(mesh, rollout_mesh)
        unplanned = source if getattr(args, "plan", None) else None
        planned: list[str] = []
        if unplanned is not None:  # what is refused makes no run directory
            planned = planning.stages(unplanned, args.policy)
        with Run(directory, config, learning, args.track, rollouts) as run:
            names = [
                stage.name
                for stage in STAGES.commands()[args.command]
                if stage.name in stage_names(config, fine_tune=True)
            ]
            if args.command in ("train", "transfer"):
                warn_of_tool_settings(run)
            run_stages(run, STAGES, planned or names, others=others)
            if unplanned is not None:
                print(planning.table(planning.gains(run, unplanned)))
                print(f"games: {root / 'test'}   numbers: {root / planning.FILE}")
            if args.command != "transfer":
                return
            results = run_results.write_results(run)
            run_report.write_report(run, results)
    else:
        parts = {"fine_tune": not args.no_transfer, "controls": not args.no_controls}
        if mesh is None:
            print_estimate(directory, config, mesh, **parts)
        results = quickstart(
            directory,
            config,
            **parts,
            mesh=mesh,
            rollout_mesh=rollout_mesh,
            track=args.track,
            others=others,
        )
    report.print_table(results, output_console())
    dreams = config.train.environment == "dream"
    plans = dreams and bool(config.env.id)
    _print_places(root, root / run_report.PAGE, dreams=dreams, plans=plans)


def _print_places(root: Path, page: Path, *, dreams: bool, plans: bool) -> None:
    """Print where the results of a run are, and which commands go on."""
    print(f"results: {root / 'results.json'}   plots: {root / 'plots'}")
    print(f"report:  {page}")
    name = shlex.quote(str(root))
    show = f"dreamgym show {name}   " if dreams else ""
    print(f"next:    {show}dreamgym doctor {name}")
    if plans:
        plan = f"dreamgym evaluate {name} --plan mpc"
        print(f"plan:    {plan}   (no real step but test games)")


def _default_directory(config: "RunConfig", control: str | None = None) -> Path:
    """Return where a run, or its control, goes that names no directory."""
    suffix = "-server" if config.server else ""
    suffix = f"-{control}" if control else suffix
    return Path("runs") / f"{config.preset}-{config.seed}{suffix}"


def _chat_servers(config: "RunConfig") -> list[str]:
    """Return the settings by which a run asks chat servers."""
    asks = {
        "the --server": config.server is not None,
        "warmstart.teacher": config.warmstart.writer == "teacher",
        "train.reward.judge": config.train.reward.asks_judge,
        "transfer.reward.judge": config.transfer.reward.asks_judge,
    }
    return [name for name, is_asked in asks.items() if is_asked]


def _confirm(args: argparse.Namespace) -> None:
    from dreamgym.commands.audits import confirmation
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    tune_process()
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    with Run.open(args.run_dir, mesh) as run:
        result = confirmation.confirm(run, args.confirm, args.policy)
        print(confirmation.table(result))
        print(
            f"\ngames: {run.path(confirmation.FOLDER)}   "
            f"numbers: {run.path(confirmation.FILE)}"
        )


def _named_attempt(args: argparse.Namespace) -> "Run | None":
    """Return the run that --name continues; point --run-dir at the new attempt.

    Raises:
      RunError: there is no such run, or the name is not valid for a folder.
    """
    from dreamgym.run.directory import Run, RunError

    if args.name is None:
        return None
    if args.run_dir is None:
        raise RunError("--name goes on from a run: give its --run-dir")
    if not args.name or Path(args.name).name != args.name:
        raise RunError(f"--name: expected a name of a folder, got {args.name!r}")
    source = Run.open(args.run_dir)
    args.run_dir = args.run_dir.with_name(f"{args.run_dir.name}-{args.name}")
    return source


def _compare_command(commands: Any) -> None:
    command = commands.add_parser(
        "compare",
        help="Compare runs: settings, successes, curves",
        description="A table of what differs in the settings of runs and of what came "
        "of it, differences to the first run on the same games, and a figure of their "
        "curves. Runs need not be finished: what one lacks is blank.",
    )
    add = command.add_argument
    add("run_dirs", type=Path, nargs="+", metavar="RUN", help="two runs or more")
    add(
        "--to",
        type=Path,
        default=Path("compare.png"),
        metavar="FILE",
        help="where the figure goes (compare.png)",
    )
    add("--json", action="store_true", help="everything as one JSON object")
    command.set_defaults(body=_compare)


def _compare(args: argparse.Namespace) -> None:
    from dreamgym.commands.inspection.compare import compared
    from dreamgym.evaluation.comparisons import run_comparison

    comparison = compared(args.run_dirs)
    run_comparison.plot(comparison, args.to)
    print(json.dumps(comparison) if args.json else run_comparison.table(comparison))
    if not args.json:
        print(f"\nplot: {args.to}")
