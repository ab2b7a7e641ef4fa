"""Refit: a run that continues another one with new real episodes.

source run + new episodes -> a new run whose experience model starts from the source's
weights and tokenizer -> both models scored on the same held-out tasks. The later stages
of the new run train policies in the refitted dream, as in any other run.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.build import episodes as run_episodes
from dreamgym.build import experience as run_experience
from dreamgym.build.real.environments import open_env
from dreamgym.config.budget import BudgetConfig
from dreamgym.config.stages import DataConfig
from dreamgym.evaluation.comparisons.outcome_discrimination import lost_discrimination
from dreamgym.evaluation.fidelity import by_family
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import STAGES
from worldmodel.data.records import Episode, read_episodes
from worldmodel.experience.base import ExperienceModel


def refit(
    source: Run, episodes: Path, root: Path, track: Sequence[str] = ()
) -> dict[str, Any]:
    """Fit the new run at `root`; return the content of refit.json.

    Its entries `before` and `after` are the scorecards of the source's model and of the
    new one, each with its own memory, on the new run's dev tasks, which neither was
    fitted to. Metrics also go to the trackers that `track` names.

    Raises:
      RunError: the source is not pretrained, or `root` holds another run.
      RecordError: bad episodes; the message names file and line.
    """
    source.require("pretrain")
    source_envs = {e.task.env for e in run_episodes.read(source)[0]}
    other_envs = {e.task.env for e in read_episodes(episodes)} - source_envs
    if other_envs and source_envs:
        print(
            f"refit: {episodes} has episodes of {', '.join(sorted(other_envs))}, and "
            f"the model was fitted to those of {', '.join(sorted(source_envs))}",
            file=sys.stderr,
        )
    data = DataConfig(
        episodes=str(episodes.resolve()), base_run=str(source.root.resolve())
    )
    # The budget was that of the source run, whose episodes are only a part here.
    config = dataclasses.replace(source.config, data=data, budget=BudgetConfig())
    with Run(root, config, source.mesh, track) as run:
        run_stages(run, STAGES, ["ensemble"])
        train, dev = run_episodes.read(run)
        before, after = map(run_experience.load_experience, (source, run))
        scorecards = {
            "source": run.config.data.base_run,
            "before": _scorecard(before, train, dev, run, "before"),
            "after": _scorecard(after, train, dev, run, "after"),
        }
        run.write_json("refit.json", scorecards)
        losses = lost_discrimination(scorecards["before"], scorecards["after"])
        if losses:
            print(
                f"refit: the model of {source.root} is better at {'; '.join(losses)}",
                file=sys.stderr,
            )
    return scorecards


def _scorecard(
    model: ExperienceModel,
    train: Sequence[Episode],
    dev: Sequence[Episode],
    run: Run,
    name: str,
) -> dict[str, Any]:
    limit = run.config.fidelity.transitions
    with progress_bar(limit, name, "transition") as show, open_env(run) as env:
        return by_family(
            model,
            dev,
            limit,
            lambda done, _: show(done),
            env=env,
            open_loop_steps=limit,
            recorded=train,
        )
