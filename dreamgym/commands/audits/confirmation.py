"""Test games that chose nothing: the policies of a finished run play further ones.

Who compares policies or settings by their test games, and keeps the best, sees it
better than it is. Games that nobody has looked at give an unbiased result.
"""

from collections.abc import Sequence
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.real import environments
from dreamgym.build.real.audit_games import play_audit_games
from dreamgym.commands.results import paired_differences, policy_copies, raise_no_games
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.report import (
    copies_sentence,
    distinct_pairs,
    games_text,
    interval_text,
    percentage,
)
from dreamgym.evaluation.statistics import difference_text
from dreamgym.run.directory import Run, RunError
from dreamgym.stages.table import POLICIES

FOLDER = "confirmation"
"""The folder of a run with these games."""
FILE = "confirmation.json"


def chosen_policies(run: Run, chosen: Sequence[str] = ()) -> list[str]:
    """Return the policies of a run that have played its test games.

    Args:
      chosen: those that are meant; by default all of them but the untrained one.

    Raises:
      RunError: there are none, or not the chosen ones.
    """
    tested = [n for n in POLICIES if run.path(f"test/{n}.jsonl").is_file()]
    if unknown := [name for name in chosen if name not in tested]:
        raise RunError(
            f"{run.root}: no policy {unknown[0]!r} has played test games; have {tested}"
        )
    if not tested:
        raise_no_games(run, "run dreamgym evaluate without --confirm first")
    return list(chosen) or [name for name in tested if name != "untrained"]


def play_games(
    run: Run, policies: Sequence[str], *, first: int, count: int
) -> dict[str, list[Trajectory]]:
    """Play `count` test tasks after the `first` with each policy, and return the games.

    They are recorded in confirmation/POLICY.jsonl, and are not played again where as
    many are asked for, unless the policy has changed since. Where the environment has
    fewer tasks, these are played.

    Raises:
      RunError: no task is left.
    """
    tasks = environments.confirmation_tasks(run, first, count)
    return {name: play_audit_games(run, name, tasks, FOLDER) for name in policies}


def confirm(run: Run, count: int, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """Let the policies of a run play further test tasks; write confirmation.json.

    The result holds, of each policy, its `success` in these games and in the run's own
    test games (`test`), and the differences between policies, `paired` by game; and
    which policies are `copies` of others.

    Raises:
      RunError: as chosen_policies and play_games.
    """
    policies, first = chosen_policies(run, chosen), run.config.evaluate.tasks
    played = play_games(run, policies, first=first, count=count)
    rows = {}
    for name, games in played.items():
        test = evaluate.trajectories(run.path(f"test/{name}.jsonl"))
        rows[name] = {
            "success": evaluate.summary(games, real_transitions=0)["success"],
            "test": evaluate.summary(test, real_transitions=0)["success"],
        }
    result = {
        "first": first,
        "count": max(len(games) for games in played.values()),
        "policies": rows,
        "copies": policy_copies(run),
        "paired": paired_differences(run, played),
    }
    run.write_json(FILE, result)
    return result


def table(result: dict[str, Any]) -> str:
    """Return the result as Markdown: a table of policies, and one of differences."""
    lines = [
        "| policy | test games | success | 95 % | fresh games | success | 95 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in result["policies"].items():
        cells = [name, *_cells(row["test"]), *_cells(row["success"])]
        lines.append(f"| {' | '.join(cells)} |")
    pairs = distinct_pairs(result, result["copies"])
    if pairs:
        lines += ["", "| fresh games, paired | difference and 95 % |", "|---|---|"]
    for name, difference in pairs:
        title = name.replace("_minus_", " - ")
        lines.append(f"| {title} | {difference_text(difference)} |")
    if same := copies_sentence(result["policies"], result["copies"]):
        lines += ["", same]
    return "\n".join(lines)


def _cells(success: dict[str, Any]) -> list[str]:
    return [games_text(success), percentage(success["mean"]), interval_text(success)]
