"""Stage: whether the policies of a run keep to the valid actions of the environment.

An environment may list the actions that it would take now. A policy that writes its
actions as text and knows little takes many others, which are refused. If the list holds
all that a task needs, the policy loses nothing by keeping to it; if it holds mere
proposals, real dev games tell whether the policy wins more with them.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dreamgym.agent.demonstrations import random_success
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.agent.shield import AUTO, keep_action
from dreamgym.build.costs import dev_games, game_seconds
from dreamgym.build.episodes import read
from dreamgym.build.models import load_policy
from dreamgym.build.real.dev_play import (
    dev_game_steps,
    few_dev_tasks,
    paired_dev_games,
    play_dev_games,
    plays_dev_games,
)
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.evaluation.statistics import percent
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.training.selection import is_better
from worldmodel.data import processes
from worldmodel.data.invalid_actions import is_invalid

MANY_INVALID = 0.3
"""Share of invalid actions from which on policies keep to the valid ones."""
MANY_UNLISTED = 0.05
"""Share of actions that are taken but are not in a complete list, from which on dev
games are played with the list as well. One such action can lose a game."""
LISTED = 0.99
"""Share of the expert's actions that must stand in a complete list."""
ENOUGH_LISTED = 20
"""Actions below which this share says little."""


STANDARD_ERRORS = 1.0
"""By how many a policy that keeps to an incomplete list must win more."""
LATER = 2
"""Players of later stages that select by dev games: warm start, expert iteration."""
BC = "dev_games/bc.jsonl"
"""Real dev games of bc, with the shield that its policies have."""
SHIELDED = "dev_games/bc-shielded.jsonl"
"""Those that it played with a shield, before it was decided."""
UNSHIELDED = "dev_games/bc-unshielded.jsonl"
"""Those without its shield, where it has one (read by the stage dream_check)."""


def body(run: Run) -> dict[str, Any]:
    """Decide on the shield of the run's policies, where the settings leave it open.

    Policies need one where MANY_INVALID of the actions of `bc` in real dev games are
    invalid, where `bc` wins fewer of them than random players won in collection, or
    where it loses some and MANY_UNLISTED are taken but not in a complete list
    (`_is_complete`), such as a tool's call with a wrong amount. They then keep to the
    valid actions if many are invalid and the list is complete, or if `bc` wins more of
    the dev games with it; not where the list was empty in all of these. The marker
    holds the `shield`, which `policy_config` reads, and its `reason`.
    """
    if run.config.policy.shield != AUTO:
        return {"status": "off"}
    _undo_interrupted(run)
    collected = run.numbers("collect")
    lists_actions = collected.get("listed_actions_of") is not None
    if lists_actions and (few := few_dev_tasks(run)):
        print(
            f"shield: no real dev games tell whether bc needs one{few}", file=sys.stderr
        )
    if not lists_actions or not plays_dev_games(run, "bc"):
        return {}
    policy, complete = load_policy(run, "bc"), _is_complete(collected)
    if complete or not collected["listed_actions_of"]:
        policy.shield = keep_action  # which records the lists
    games = play_dev_games(run, "bc", policy)
    if not games:
        return {}
    metrics, chance = dev_metrics(games), random_success(read(run)[0])
    invalid = [t.invalid or False for g in games for t in g.episode.transitions]
    share = float(np.mean(invalid)) if invalid else 0.0
    success = metrics.get("real_success", 0.0)
    unlisted = _unlisted(games)
    numbers = {
        "dev_invalid_actions": share,
        "dev_unlisted_actions": unlisted,
        "random_success": chance,
    }
    if policy.shield is not None and unlisted is None:
        return numbers  # no state had a list, so that bc would act alike with it
    if share >= MANY_INVALID:
        reason = f"{percent(share)} of the actions of bc in real dev games are invalid"
    elif success < chance:
        reason = (
            f"bc wins {percent(success)} of the real dev games, and random players won "
            f"{percent(chance)} of the collected episodes"
        )
    elif complete and (unlisted or 0.0) >= MANY_UNLISTED and success < 1:
        reason = (
            f"{percent(unlisted or 0.0)} of the actions of bc in real dev games are "
            "taken although they are not listed"
        )
    else:
        return numbers
    if share >= MANY_INVALID and complete:
        # The shielded policies play these games anew.
        _rename(run, (BC, UNSHIELDED))
    else:
        after = _success_with_shield(run, reason)
        if after is None:
            return numbers
        reason += f"; with valid actions alone it wins {percent(after)} of these games"
        _rename(run, (BC, UNSHIELDED), (SHIELDED, BC))
    print(
        f"shield: the policies keep to the actions that the environment lists as valid "
        f"(policy.shield): {reason}",
        file=sys.stderr,
    )
    return numbers | {"shield": "valid", "reason": reason}


def _unlisted(games: Sequence[Trajectory]) -> float | None:
    """Return the share of actions that are taken and were not in the recorded list.

    None where no list was recorded.
    """
    steps = [t for g in games for t in g.episode.transitions if t.valid_actions]
    unlisted = [t.action not in t.valid_actions and not is_invalid(t) for t in steps]
    return float(np.mean(unlisted)) if unlisted else None


def _is_complete(collected: Mapping[str, Any]) -> bool:
    """Return whether the environment lists all that a task needs, as far as is seen.

    Of the expert's actions or, without an expert, of the accepted actions that random
    players found without the list, LISTED must stand in it. A list of mere proposals
    would forbid what a task needs.
    """
    enough = collected["listed_actions_of"] >= ENOUGH_LISTED
    return enough and collected["listed_actions"] >= LISTED


def _undo_interrupted(run: Run) -> None:
    """Give the games that an interrupted attempt has renamed their names again."""
    if run.path(UNSHIELDED).is_file():
        if run.path(BC).is_file() and not run.path(SHIELDED).is_file():
            _rename(run, (BC, SHIELDED))
        _rename(run, (UNSHIELDED, BC))


def _rename(run: Run, *names: tuple[str, str]) -> None:
    """Rename files of the run, one after the other."""
    with processes.first_process_writes("games of the shield") as writes:
        if writes:
            for old, new in names:
                run.path(old).replace(run.path(new))


def _success_with_shield(run: Run, reason: str) -> float | None:
    """Return the success of `bc` in real dev games that it plays with valid actions.

    None where it is not better, or where a budget has no steps for these games and for
    those of the warm start and of expert iteration; then that is printed, with the
    `reason` to try them.
    """
    name, left = "bc-shielded", run.real_steps.left
    opening = f"shield: {reason}; to keep to valid actions (policy.shield)"
    if left is not None and dev_game_steps(run, name, later=LATER) > left:
        print(
            f"{opening} was not tried: the budget has no real steps left for it",
            file=sys.stderr,
        )
        return None
    policy = load_policy(run, "bc")
    config = dataclasses.replace(policy.config, shield="valid")
    shielded = Policy(
        policy.model, policy.tokenizer, config, policy.strict, policy.memory
    )
    games = paired_dev_games(run, ("bc", policy), (name, shielded))
    before, after = map(dev_metrics, games)
    rates = [m.get("real_success") for m in (before, after)]
    # A list that loses every game may do so at less cost.
    if is_better(after, before, standard_errors=STANDARD_ERRORS):
        success = after["real_success"]
        if success > before.get("real_success", 0.0):
            return success
    without, with_list = ("none" if r is None else percent(r) for r in rates)
    print(
        f"{opening} was tried in {len(games[1])} real dev games and did not help: "
        f"bc wins {with_list} with valid actions alone and {without} without, so it "
        "acts as before",
        file=sys.stderr,
    )
    return None


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dev games take, which may be played with a shield as well."""
    if config.policy.shield != AUTO:
        return Cost()
    return Cost(2 * dev_games(config, workload) * game_seconds(workload))
