"""The command `estimate`, and the line that is printed before long runs."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.cli.options import NO_CONTROLS, NO_TUNING, run_options
from dreamgym.cli.settings import settings_of


def add(commands: Any) -> None:
    """Add the subcommand and the function it runs."""
    command = commands.add_parser(
        "estimate",
        help="Estimate a run's time, memory and disk before it starts",
        description="Time some updates and some real steps under these settings (once "
        "a day on each machine) and print ranges for a whole run. The ranges were "
        "calibrated for presets on 2 CPU cores; on other devices they are guesses. "
        "With --server a few requests are sent, and the requests of a run estimated. "
        "`dreamgym estimate RUN` takes the settings of a run that exists.",
    )
    run_options(command)
    command.add_argument("--no-transfer", action="store_true", help=NO_TUNING)
    command.add_argument("--no-controls", action="store_true", help=NO_CONTROLS)
    command.add_argument("--json", action="store_true", help="the ranges as JSON")
    command.set_defaults(body=_estimate, names_run=True)


def _estimate_of(
    config: Any,
    mesh: Any = None,
    rollout_mesh: Any = None,
    *,
    fine_tune: bool,
    controls: bool = True,
    run: Any = None,
) -> Any:
    """Return the estimate, and what dreaming costs (payoff.py).

    Its real steps are counted in the run, if there is one. Updates are timed on the
    devices that `rollout_mesh` leaves.
    """
    import contextlib

    import jax

    from dreamgym.build.real import timings
    from dreamgym.build.real.step_limit import with_step_limit
    from dreamgym.commands import estimate
    from dreamgym.commands.payoff import payoff
    from dreamgym.config.budget import ESTIMATE_STEPS
    from worldmodel.backbone.mesh import make_meshes

    jax_cache = getattr(jax.config, "jax_compilation_cache_dir", None)
    cache = (
        Path(jax_cache if jax_cache else Path.home() / ".cache" / "dreamgym")
        / "timings"
    )
    # Hosts may differ in what they have measured before: none waits for another.
    device_mesh = None
    if jax.process_count() == 1:
        device_mesh, _ = make_meshes(mesh, rollout_mesh)
    if config.server is not None:
        print("estimate: asking the server a few questions", file=sys.stderr)
    config = with_step_limit(config)
    counted = contextlib.nullcontext(None)
    if run is not None:
        limit = ESTIMATE_STEPS if config.budget.real_steps else None
        counted = run.real_steps.recorded(run.path(run.ESTIMATE_STEPS), limit)
    with counted as steps:
        timing = timings.measure(config, cache, device_mesh, steps)
    if timing.real_steps:
        print(
            f"estimate: {timing.real_steps} real steps were taken to time one",
            file=sys.stderr,
        )
    collected = estimate.recorded_transitions(config)
    result = estimate.estimate_run(
        config, timing, collected, fine_tune=fine_tune, controls=controls
    )
    return result, payoff(config, timing, result, collected)


def _estimate(args: argparse.Namespace) -> None:
    from dreamgym.commands import estimate
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import parse_mesh

    config = settings_of(args)  # those of --run-dir where it holds a run
    mesh, rollout_mesh = (
        parse_mesh(text) if text else None for text in (args.mesh, args.rollout_mesh)
    )
    tune_process()
    result, pays = _estimate_of(
        config,
        mesh,
        rollout_mesh,
        fine_tune=not args.no_transfer,
        controls=not args.no_controls,
    )
    if args.json:
        stages = {k: round(v, 1) for k, v in result.seconds.items()}
        both = None if pays is None else pays._asdict()
        print(json.dumps(estimate.ranges(result) | {"stages": stages, "payoff": both}))
        return
    print(estimate.table(result))
    print("\n".join(() if pays is None else pays.lines()))
    _warn([result], args.run_dir if args.run_dir is not None else Path("runs"))


def _warn(result: Sequence[Any], root: Path) -> None:
    from dreamgym.commands import estimate

    memory = estimate.machine_memory()
    lines = (line for one in result for line in estimate.warnings(one, root, memory))
    for line in dict.fromkeys(lines):
        print(f"warning: {line}", file=sys.stderr)


def print_estimate(
    root: Path,
    config: Any,
    mesh: Any = None,
    *,
    fine_tune: bool,
    controls: bool = True,
) -> None:
    """Print what the rest of a run will take, with warnings about memory and disk.

    A server that does not answer yet only causes a message, because it may answer
    when it is needed.

    Raises:
      RunError: the directory has a run of other settings, or the disk is too small.
      BlockingIOError: another command works in the directory.
    """
    from dreamgym.build.chat import check_server
    from dreamgym.commands import estimate
    from dreamgym.commands.quickstart import check_run_budget, stage_names
    from dreamgym.run.directory import Run
    from dreamgym.run.display import progress_bar
    from dreamgym.run.process import tune_process
    from dreamgym.stages.table import STAGES
    from worldmodel.chat.protocol import ChatError

    check_server(config)
    check_run_budget(root, config)
    run = Run(root, config)  # what it refuses is said before anything is measured
    done = {s for s in STAGES if run.done(s)}
    if done >= set(stage_names(config, fine_tune=fine_tune, controls=controls)):
        return
    tune_process()
    try:
        with run, progress_bar(1, "estimate", "measurement"):
            result, pays = _estimate_of(
                config, mesh, fine_tune=fine_tune, controls=controls, run=run
            )
    except ChatError as error:
        print(f"estimate: none, the server did not answer: {error}", file=sys.stderr)
        return
    print(estimate.summary(result, done), file=sys.stderr)
    if pays is not None and "train" not in done:
        print("\n".join(pays.lines()), file=sys.stderr)
    _warn([result], root)


def print_study_estimate(study: Any, root: Path) -> None:
    """Print what the unfinished cells of a study will take, and the longest of them.

    Real steps of the measurement are counted in the cell that needs it.

    Raises:
      RunError: the disk is too small for one run.
    """
    from dreamgym.commands import estimate
    from dreamgym.commands.studies.study import cell_root, unfinished
    from dreamgym.run.directory import Run
    from dreamgym.run.display import progress_bar
    from dreamgym.stages.table import STAGES

    every, total_low, total_high, longest = [], 0.0, 0.0, 0.0
    for config, done in unfinished(study, root):
        if config.server is not None or done >= STAGES.keys():
            continue
        fine_tune = bool(study.curves) or study.last_stage == "transfer"
        run = Run(cell_root(root, config), config)
        with run, progress_bar(1, "estimate", "measurement"):
            result, _ = _estimate_of(config, fine_tune=fine_tune, run=run)
        every.append(result)
        low, high = estimate.ranges(result, done)["seconds"]
        total_low, total_high, longest = (
            total_low + low,
            total_high + high,
            max(longest, high),
        )
    if every:
        print(
            f"estimate: {estimate.time_of(total_low)} to "
            f"{estimate.time_of(total_high)} for {len(every)} cells, the longest "
            f"{estimate.time_of(longest)} at most",
            file=sys.stderr,
        )
        _warn(every, root)
