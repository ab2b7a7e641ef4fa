"""How policies do in environments that they were not trained in.

runs, a policy of each -> the test games of every run's environment, played by all of
these policies -> success, and the difference to the environment's own policy, paired
by game.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.planning import PLANNER, load_player
from dreamgym.build.real.audit_games import play_audit_games
from dreamgym.build.real.environments import test_tasks
from dreamgym.commands.results import raise_no_games
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.report import percentage
from dreamgym.evaluation.statistics import difference_text
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import CONTROLS, POLICIES
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Task

FOLDER = "visitors"
"""The folder of a run with the games that policies of all runs play there."""


class Visitor(NamedTuple):
    """A policy that plays in every environment, and the run that trained it."""

    run: Run
    policy: str

    @property
    def title(self) -> str:
        """Return how tables name it."""
        return f"{self.policy} of {self.run.root}"


def transfer_matrix(
    roots: Sequence[Path], *, policy: str = "", games: int | None = None
) -> dict[str, Any]:
    """Let a policy of each run play the test games of every run.

    The games are recorded in RUN/visitors/, and are not played again where as many are
    asked for, unless the policy has changed since. The result holds, of each of the
    `environments`, the `success` of every policy and its `difference` to the policy
    that was trained there.

    Args:
      policy: its name; by default the last one that each run has trained, without the
        planner and the controls.
      games: test games of each run, at most; by default all.

    Raises:
      RunError: fewer than two runs, a directory twice, a run without an environment or
        without the policy.
      ValueError: `games` is below 1.
    """
    if len(roots) < 2 or len({root.resolve() for root in roots}) < len(roots):
        paths = ", ".join(map(str, roots))
        raise RunError(f"expected two different runs or more, got {paths}")
    if games is not None and games < 1:
        raise ValueError(f"expected at least 1 game, got {games}")
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(Run.open(root)) for root in roots]
        visitors = [Visitor(run, _policy_of(run, policy)) for run in runs]
        environments = [
            _environment(run, number, visitors, games)
            for number, run in enumerate(runs)
        ]
    return {
        "policies": [visitor.title for visitor in visitors],
        "environments": environments,
    }


def _policy_of(run: Run, name: str) -> str:
    """Return the policy of a run that plays everywhere."""
    if not run.config.env.id:
        raise_no_games(run)
    have = [p for p in POLICIES if run.path(f"policies/{p}/config.json").is_file()]
    trained = [p for p in have if p not in (PLANNER, *CONTROLS)]
    if name and name not in have:
        raise RunError(f"{run.root}: no policy {name!r}; have {have}")
    if not trained:
        raise RunError(f"{run.root}: no policy was trained yet")
    return name or trained[-1]


def _environment(
    host: Run, number: int, visitors: Sequence[Visitor], games: int | None
) -> dict[str, Any]:
    """Return what all policies win in the environment of a run; its own is `number`."""
    tasks = test_tasks(host)[:games]
    played = [_play(host, visitor, tasks) for visitor in visitors]
    return {
        "run": str(host.root),
        "environment": host.config.env.id,
        "cells": [
            {
                "success": evaluate.summary(rows, real_transitions=0)["success"],
                "difference": None
                if i == number
                else evaluate.paired(rows, played[number], seed=host.config.seed),
            }
            for i, rows in enumerate(played)
        ],
    }


def _play(host: Run, visitor: Visitor, tasks: Sequence[Task]) -> list[Trajectory]:
    run, policy = visitor
    # Runs of one name and of equal settings lie in different places.
    place = content_hash([str(run.root.resolve()), run.config.digest()])[:8]
    folder = f"{FOLDER}/{run.root.name}-{place}"
    return play_audit_games(
        host,
        policy,
        tasks,
        folder,
        source=run,
        load=lambda: load_player(run, policy),
    )


def table(result: dict[str, Any]) -> str:
    """Return the matrix as Markdown: a row for each policy, a column for each run."""
    columns = result["environments"]
    names = [f"{c['environment']} ({c['run']})" for c in columns]
    lines = [f"| policy | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for i, title in enumerate(result["policies"]):
        cells = [_cell(column["cells"][i]) for column in columns]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(cell: dict[str, Any]) -> str:
    success = percentage(cell["success"]["mean"])
    if cell["difference"] is None:
        return f"**{success}**"
    return f"{success} ({difference_text(cell['difference'])})"
