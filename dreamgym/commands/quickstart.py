"""Runs all stages of a run in order; the same call resumes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build.episodes import nothing_to_imitate
from dreamgym.commands import report as run_report
from dreamgym.commands import results as run_results
from dreamgym.config.settings import RunConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.run.process import tune_process
from dreamgym.run.runner import run_stages
from dreamgym.run.stage import Stage
from dreamgym.stages.table import STAGES
from worldmodel.backbone.mesh import MeshConfig, make_mesh
from worldmodel.data.records import read_episodes


def stage_names(*, fine_tune: bool) -> list[str]:
    """Return the stages of a whole run, with real fine-tuning or without."""
    return [s.name for s in STAGES.values() if fine_tune or s.subcommand != "transfer"]


def quickstart(
    run_dir: str | Path,
    config: RunConfig,
    *,
    fine_tune: bool = True,
    mesh: MeshConfig | None = None,
    track: Sequence[str] = (),
    others: Sequence[Run] = (),
) -> dict[str, Any]:
    """Run every unfinished stage; return the content of results.json.

    Writes results.json, the table, plots and report.html.

    Without `fine_tune` it stops before real fine-tuning, which the comparison of dream,
    warmstart and bc does not need; a later call can add it. Models are sharded over the
    devices of `mesh`. Metrics go to metrics.jsonl and to the trackers that `track`
    names (tracking.TRACKERS). Stages that one of the `others` has computed under the
    same key are copied from there.

    Raises:
      TrackerError: a tracker is unknown, not installed or fails to start.
      RunError: a directory or setting cannot be used.
      RecordError: bad episodes; the message names file and line.
      ServerLost: the chat server behind the dream does not answer.
    """
    run_chat.check_server(config)
    tune_process()
    with Run(run_dir, config, None if mesh is None else make_mesh(mesh), track) as run:

        def check(stage: Stage, numbers: dict[str, Any]) -> None:
            if stage.name == "collect" and not numbers.get("successes", 1):
                train = read_episodes(run.path("episodes.jsonl"))
                # Behaviour cloning would say so too, after all of the fit.
                raise RunError(f"{run.root}: {nothing_to_imitate(train)}")

        names = stage_names(fine_tune=fine_tune)
        run_stages(run, STAGES, names, others=others, check=check)
        results = run_results.write_results(run)
        run_report.write_report(run, results)
        return results
