"""Runs all stages of a run in order; the same call resumes it."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent.shield import shield_for
from dreamgym.build import chat as run_chat
from dreamgym.build.budget import check_budget, check_recorded
from dreamgym.build.episodes import demonstrations, read, won_solutions
from dreamgym.build.models import tools_to_call
from dreamgym.build.real.environments import first_tasks
from dreamgym.build.real.step_limit import with_step_limit
from dreamgym.commands import results as run_results
from dreamgym.commands.estimate import recorded_transitions
from dreamgym.commands.inspection import report as run_report
from dreamgym.config.budget import lines as budget_lines
from dreamgym.config.settings import RunConfig
from dreamgym.rewards.preferences import read_preferences
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from dreamgym.run.process import tune_process
from dreamgym.run.runner import run_stages
from dreamgym.run.stage import Stage
from dreamgym.stages.table import STAGES, is_in_run
from dreamgym.training.config import LoopConfig
from worldmodel.backbone.mesh import MeshConfig, make_meshes
from worldmodel.data.records import iter_episodes
from worldmodel.text.tools.tool_calls import expected_calls

CHECKED_FAMILIES = 8
"""Families of tasks of which one is begun to see whether it lists tools, at most."""


def stage_names(
    config: RunConfig, *, fine_tune: bool, controls: bool = True
) -> list[str]:
    """Return the stages of a run, with real fine-tuning and its controls or without."""
    return [
        name
        for name, stage in STAGES.items()
        if (fine_tune or stage.subcommand != "transfer")
        and is_in_run(name, config, controls=controls)
    ]


def check_run_budget(root: Path, config: RunConfig) -> None:
    """Check the budget of a run before its directory is made.

    Raises:
      RunError: it is too small; the message names the smallest that is not.
    """
    if not config.budget.real_steps or (root / "manifest.json").is_file():
        return
    collected = recorded_transitions(config)
    if collected is None:
        steps = with_step_limit(config).env.max_episode_steps
        check_budget(config.budget, steps, config.env.id)
    else:
        check_recorded(config.budget, collected)


def check_inputs(root: Path, config: RunConfig) -> None:
    """Check the pairs and tasks of a run before anything is collected.

    Raises:
      RecordError: a file of pairs is missing or bad; the message names file and line.
      RunError: strict actions are asked for, and tasks list no tools (check_tools).
    """
    for file in (config.dpo.file, config.reward_model.preferences):
        if file:
            read_preferences(file)
    check_tools(root, config)


def check_tools(root: Path, config: RunConfig) -> None:
    """Check that tasks list their tools where nothing but calls and answers is written.

    This is before the directory of a run is made, by recorded tasks and by some of the
    environment, which take no real step.

    Raises:
      RunError: one lists none (tools_to_call).
    """
    if config.policy.actions != "json" or (root / "manifest.json").is_file():
        return
    if path := config.data.episodes:
        tools_to_call((e.task for e in iter_episodes(path)), path)
    if name := config.env.id:
        # Tasks that cannot be begun are collection's to report.
        if tasks := first_tasks(config.env, CHECKED_FAMILIES):
            tools_to_call(tasks, f"environment {name!r}")


def print_division(run: Run, *, fine_tune: bool) -> None:
    """Print how the budget of a run that has not begun is divided."""
    c = run.config
    steps, collected = with_step_limit(c).env.max_episode_steps, recorded_transitions(c)
    real_training = c.train.environment == "real"
    games = c.train.monitor.real_eval_tasks * (c.train.monitor.real_eval_every > 0)
    for line in budget_lines(
        c.budget, steps, games, collected=collected, real_training=real_training
    ):
        print(line, file=sys.stderr)
    if not fine_tune and not real_training:
        print("  (the part of fine-tuning waits for a later call)", file=sys.stderr)


def _check_without_wins(run: Run) -> None:
    """Stop a run that cannot go on without a won episode; later stages would, too.

    Raises:
      RunError: there is nothing to imitate, or a setting starts from won episodes.
    """
    loops = run.config.train, run.config.transfer
    try:
        demonstrations(run)
        if any(loop.curriculum.reads_demonstrations for loop in loops):
            won_solutions(run)
    except RunError as error:
        raise RunError(f"{run.root}: {error}") from None


def warn_of_tool_settings(run: Run) -> None:
    """Print which settings on tool use no collected task has a use for, in one line.

    Nothing is printed before tasks are collected.
    """
    if not run.done("collect"):
        return
    loops = {"train": run.config.train, "transfer": run.config.transfer}
    asks = [
        *(f"{k}.reward.tools.enabled" for k, v in loops.items() if _pays_tools(v)),
        *(
            f"{k}.curriculum.lessons=tools"
            for k, v in loops.items()
            if v.curriculum.lessons == "tools"
        ),
    ]
    if not asks or any(expected_calls(e.task) is not None for e in read(run)[0]):
        return
    print(
        f"warning: {', '.join(asks)}: no collected task says which tool calls it "
        "expects (options['calls'], docs/concepts/tool-actions.md), so that no use of "
        "tools is paid, and no lesson on it is passed",
        file=sys.stderr,
    )


def _pays_tools(loop: LoopConfig) -> bool:
    """Return whether a loop pays the use of tools by the calls that tasks expect."""
    tools = loop.reward.tools
    return tools.enabled and tools.labels.when == "rule"


def quickstart(
    run_dir: str | Path,
    config: RunConfig,
    *,
    fine_tune: bool = True,
    controls: bool = True,
    mesh: MeshConfig | None = None,
    rollout_mesh: MeshConfig | None = None,
    track: Sequence[str] = (),
    others: Sequence[Run] = (),
) -> dict[str, Any]:
    """Run every unfinished stage; return the content of results.json.

    Writes results.json, the table, plots and report.html.

    Without `fine_tune` it stops before real fine-tuning, which the comparison of dream,
    warmstart and bc does not need. Without `controls` it leaves out the fine-tuning of
    the warm start without a dream, with which the run is compared at the end. A later
    call can add both. Models are sharded over the
    devices of `mesh`, and rollouts are made on those of `rollout_mesh`, if these are
    others (make_meshes). Metrics go to metrics.jsonl and to the trackers that `track`
    names (tracking.TRACKERS). Stages that one of the `others` has computed under the
    same key are copied from there.

    Raises:
      TrackerError: a tracker is unknown, not installed or fails to start.
      RunError: a directory or setting cannot be used.
      RecordError: bad episodes; the message names file and line.
      ServerLost: the chat server behind the dream does not answer.
      ValueError: there is no such shield as the settings name.
    """
    run_chat.check_server(config)
    check_inputs(Path(run_dir), config)
    shield_for(config.policy.shield)  # a wrong name must not cost real steps
    check_run_budget(Path(run_dir), config)
    tune_process()
    learning, rollouts = make_meshes(mesh, rollout_mesh)
    with Run(run_dir, config, learning, track, rollouts) as run:

        def check(stage: Stage, numbers: dict[str, Any]) -> None:
            if stage.name != "collect":
                return
            if not numbers.get("successes", 1):
                _check_without_wins(run)
            warn_of_tool_settings(run)
            if config.policy.actions == "json":
                tools_to_call((e.task for e in read(run)[0]), str(run.root))

        if config.budget.real_steps and not run.done("collect"):
            print_division(run, fine_tune=fine_tune)
        if config.train.environment == "real" and not run.done("fidelity"):
            print(
                "no policy is trained in a dream here (train.environment=real): what "
                "the stage fidelity says of one is of the model that the policies "
                "begin at, and decides nothing",
                file=sys.stderr,
            )
        names = stage_names(config, fine_tune=fine_tune, controls=controls)
        run_stages(run, STAGES, names, others=others, check=check)
        results = run_results.write_results(run)
        with progress_bar(1, "report", "page"):
            run_report.write_report(run, results)
        return results
