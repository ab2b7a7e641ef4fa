"""The choice between a trained policy and the one that its training began at."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.experience import remedy_folder
from dreamgym.build.planning import paid_folder, plan_of
from dreamgym.build.real.dev_play import (
    dev_games,
    dreamed_dev_games,
    few_dev_tasks,
    paired_dev_games,
    plays_dev_games,
)
from dreamgym.evaluation.dream_check import broken_refusals, dev_metrics
from dreamgym.evaluation.statistics import success_change
from dreamgym.run.directory import Run
from dreamgym.training.selection import (
    ENOUGH_DREAMED,
    destroyed_families,
    is_better,
    is_better_in_dream,
    scored_games,
    wins_all,
)
from worldmodel.experience.base import CachingExperienceModel

Metrics = Mapping[str, Any]


class Choice(NamedTuple):
    """Whether the trained policy is kept, what a marker says of it, and its metrics.

    `metrics` has the metrics of the kept policy on dev tasks, `real` and `dreamed` as
    far as they are known.
    """

    better: bool
    numbers: dict[str, Any]
    metrics: dict[str, Metrics]


def compare_with_start(
    run: Run,
    name: str,
    policy: Policy,
    start: Mapping[str, Metrics],
    start_name: str,
    experience: CachingExperienceModel | None,
    real_metrics: Callable[[], tuple[Metrics, Metrics] | None] = lambda: None,
    *,
    standard_errors: float = 0.0,
) -> Choice:
    """Compare the policy `name` with the policy `start_name`, where it began.

    By real dev games, where it must be better; without an environment or enough dev
    tasks, or where a budget has no real steps left, by success in the dream, which must
    have risen by `dream_check.margin` (`is_better_in_dream`) while no more than half of
    the dreamed games broke off (`broken_refusals`). With neither, the trained policy is
    kept.

    Args:
      start: the metrics of the policy it began at, `real` and `dreamed`.
      real_metrics: returns the metrics of the same real dev games for the start and for
        the trained policy, None where there are none.
      standard_errors: by how many it must win more of real dev games (`is_better`).
    """
    real, broken = real_metrics(), list[str]()
    if real is not None:
        side, where = "real", "real dev games"
        before, after = real
        better = is_better(after, before, standard_errors=standard_errors)
    elif experience is not None:
        side, where = "dreamed", "dev tasks in the dream"
        before = start.get("dreamed", {})
        folder = remedy_folder(run)
        games = dreamed_dev_games(run, experience, policy, folder)
        after, margin = dev_metrics(games), run.config.dream_check.margin
        # Of the few that did not break off nothing follows: they are of short tasks.
        broken = [fault.text for fault in broken_refusals(games)] if games else []
        better = not broken and is_better_in_dream(after, before, margin=margin)
    else:
        say_unchecked(run, name)
        return Choice(True, {}, dict(start))
    rates = {
        "dev_success_before": before.get("real_success"),
        "dev_success_after": after.get("real_success"),
    }
    if better:
        return Choice(True, rates | {"kept": name}, {**start, side: after})
    change = success_change(
        rates["dev_success_after"],
        rates["dev_success_before"],
        destroyed_families(after, before),
    )
    if standard_errors and side == "real" and is_better(after, before):
        change += ", less than one standard error more"
    few = "" if side == "real" else few_dev_tasks(run)
    if few:
        change += f", and no real dev games are played{few}"
    elif side == "dreamed" and (
        min(map(scored_games, (before, after))) < ENOUGH_DREAMED
    ):
        change += f", of fewer than {ENOUGH_DREAMED} games, which decide nothing"
    change = ", and ".join([change, *broken])
    verb = no_gain_text("it", rates["dev_success_after"], rates["dev_success_before"])
    note = f"{verb}, so the policy is {start_name}: of the {where} {change}"
    print(f"{name}: {note}", file=sys.stderr)
    return Choice(False, rates | {"kept": start_name, "choice": note}, dict(start))


def say_unchecked(run: Run, name: str) -> None:
    """Say that a stage keeps its policy unchecked for a lack of dev tasks."""
    if few := few_dev_tasks(run):
        print(
            f"{name}: its policy is kept, and no real dev games are played{few}",
            file=sys.stderr,
        )


def warmstart_method(run: Run) -> str:
    """Return the run's method of early experience, also where it is "auto"."""
    return run.config.warmstart.method_with(dev_games(run))


def nothing_to_gain(
    run: Run, metrics: Metrics, policy: str, what: str
) -> dict[str, Any] | None:
    """Return what a marker says where a policy wins all its real dev games, else None.

    Whatever is trained from it could not be seen to be better. `dream_check.force` goes
    on all the same.

    Args:
      metrics: those of the real dev games of the policy, by `dev_metrics`.
      policy: the name of the policy, which is kept.
      what: says in the note what is left out, such as "not fine-tuned".
    """
    if run.config.dream_check.force or not wins_all(metrics):
        return None
    note = f"{what}: there is nothing to gain, {policy} wins all real dev games"
    return {"nothing_to_gain": True, "kept": policy, "note": note}


Player = tuple[str, Policy | PlanningPolicy]
"""Whoever plays dev games: the name of their record, and the policy."""


def compare_on_dev_games(
    run: Run,
    before: Player,
    after: Player,
    *,
    start: str,
    what: str,
    expected_better: bool = False,
    standard_errors: float = 1.0,
) -> dict[str, Any]:
    """Compare two players on real dev games; return what a marker says of the choice.

    `kept` is the name of the second one if it is better, else `start`, with a `note`.
    Empty where no dev games are played, or a budget has no real steps left for them.

    Args:
      start: the policy that is kept otherwise.
      what: names in the note what did not help, such as "fine-tuning".
      expected_better: whether something else speaks for the second one: then it is kept
        unless it is worse by more than so many `standard_errors` of the paired
        difference, or destroys a family's success.
    """
    if not plays_dev_games(run, before[0], after[0]):
        return {}
    games = paired_dev_games(run, before, after)
    first, second = map(dev_metrics, games)
    success_before, success_after = (m.get("real_success") for m in (first, second))
    numbers = {
        "dev_success_before": success_before,
        "dev_success_after": success_after,
    }
    destroyed = destroyed_families(second, first)
    accepts = expected_better and not destroyed
    accepts = accepts and not _is_worse(*games, standard_errors=standard_errors)
    if accepts or is_better(second, first):
        return numbers | {"kept": after[0]}
    change = success_change(success_after, success_before, destroyed)
    verb = no_gain_text(what, success_after, success_before)
    note = f"{verb}, so it is {start}: of the real dev games {change}"
    print(f"{after[0]}: {note}", file=sys.stderr)
    return numbers | {"kept": start, "note": note}


def no_gain_text(what: str, after: float | None, before: float | None) -> str:
    """Return the words for a stage whose help was not seen."""
    if after == before == 1.0:
        return f"whether {what} helped cannot be told by games that both win"
    return f"{what} did not help"


def _is_worse(
    before: Sequence[Trajectory],
    after: Sequence[Trajectory],
    *,
    standard_errors: float,
) -> bool:
    """Return whether games were lost by more than so many errors of the difference.

    The games are paired. Where each was won by both or by neither, what they earned is
    compared. With fewer than two that are scored in both, it is worse.
    """
    scored = [
        (a.episode, b.episode)
        for a, b in zip(before, after, strict=True)
        if a.error is None and b.error is None
    ]
    differences = [float(bool(b.success)) - float(bool(a.success)) for a, b in scored]
    if not any(differences):
        differences = [b.episode_return - a.episode_return for a, b in scored]
    if len(differences) < 2:
        return True
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    # The margin is for one pair that differs: there both are equal up to rounding.
    return float(np.mean(differences)) < -standard_errors * error - 1e-9


def player_of(run: Run, policy: str) -> str:
    """Return the name under which a policy's dev games are played, mostly already.

    A stage that kept no policy of its own names the one that it kept.
    """
    stages = {"dream": "train"}
    while True:
        name = run.numbers(stages.get(policy, policy)).get("kept", policy)
        if name == policy:
            return policy
        policy = name


def original_policy(run: Run, policy: str) -> str:
    """Return the policy that this one is a copy of, or its own name.

    It is no copy where it plans in another model at test games, or does not plan.
    """
    origin = player_of(run, policy)
    if origin == "warmstart" and run.config.warmstart.method == "bc":
        origin = "bc" if run.done("warmstart") else origin
    return origin if _plan_alike(run, policy, origin) else policy


def _plan_alike(run: Run, *policies: str) -> bool:
    """Return whether no policy plans at test games, or all do in the same way."""
    plans = [plan_of(run, policy) for policy in policies]
    if all(plan.method == "none" for plan in plans):
        return True
    folders = {paid_folder(run, policy) for policy in policies}
    return len(set(plans)) == len(folders) == 1
