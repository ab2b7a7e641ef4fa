"""Stage: whether the policies of a run keep to the valid actions of the environment.

An environment may list the actions that it would take now. A policy that writes its
actions as text and knows little takes many others, which are refused. If the list holds
all that a task needs, the policy loses nothing by keeping to it.
"""

import sys
from typing import Any

import numpy as np

from dreamgym.agent.shield import AUTO
from dreamgym.build.costs import dev_games, game_seconds
from dreamgym.build.environments import play_dev_games, plays_dev_games
from dreamgym.build.models import load_policy
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.statistics import percent
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run

MANY_INVALID = 0.3
"""Share of invalid actions from which on policies keep to the valid ones."""
LISTED = 0.99
"""Share of the expert's actions that must stand in the list for that."""
ENOUGH_LISTED = 20
"""Actions below which this share says little."""


def body(run: Run) -> dict[str, Any]:
    """Decide on the shield of the run's policies, where the settings leave it open.

    They keep to the valid actions of the environment where MANY_INVALID of the actions
    of `bc` in real dev games are invalid, and the list holds LISTED of the expert's
    actions or, without an expert, of the accepted actions that were found without it:
    a list of mere proposals would forbid what a task needs. The marker holds the
    `shield`, which `policy_config` reads.
    """
    if run.config.policy.shield != AUTO:
        return {"status": "off"}
    collected = run.numbers("collect")
    if (
        collected.get("listed_actions_of", 0) < ENOUGH_LISTED
        or collected["listed_actions"] < LISTED
        or not plays_dev_games(run, "bc")
    ):
        return {}
    games = play_dev_games(run, "bc", load_policy(run, "bc"))
    invalid = [t.invalid or False for g in games for t in g.episode.transitions]
    share = float(np.mean(invalid)) if invalid else 0.0
    if share < MANY_INVALID:
        return {"dev_invalid_actions": share}
    # The shielded policies play these games anew.
    games_of_bc = run.path("dev_games/bc.jsonl")
    games_of_bc.rename(games_of_bc.with_name("bc-unshielded.jsonl"))
    print(
        f"shield: {percent(share)} of the actions of bc in real dev games are invalid, "
        "so that the policies keep to the actions that the environment lists as valid "
        "(policy.shield)",
        file=sys.stderr,
    )
    return {"dev_invalid_actions": share, "shield": "valid"}


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dev games take."""
    if config.policy.shield != AUTO:
        return Cost()
    return Cost(dev_games(config, workload) * game_seconds(workload))
