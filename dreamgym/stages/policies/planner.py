"""Stage: the fine-tuned policy plans in the dream at play, where that helps.

s2r -> real dev games with a plan -> the same policy with a plan, or without one. The
weights stay as they are, and no real step is taken but those of the dev games.
"""

from typing import Any

from dreamgym.build.costs import dev_games, game_seconds, plan_cost
from dreamgym.build.experience import read_scorecard
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.planning import (
    OFF,
    PLANNER,
    chosen_plan,
    paid_folder,
    planning_policy,
    why_without_plan,
)
from dreamgym.build.real.dev_choice import (
    compare_on_dev_games,
    nothing_to_gain,
    player_of,
)
from dreamgym.build.real.dev_play import few_dev_tasks, play_dev_games, plays_dev_games
from dreamgym.build.real.environments import NO_ENV
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.evaluation.leading_numbers import is_trusted
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run

START = "s2r"
"""The policy whose weights it has."""
LOTS = "the environment draws lots"
"""Why nobody plans without dev games there: the best of many sequences is luck."""


def body(run: Run) -> dict[str, Any]:
    """Write policies/planner: s2r, which plans at play as `planner` says.

    Real dev games decide whether it does. In a dream whose leading numbers reach what
    is required it does unless it clearly loses games, in any other it has to win more.
    Without dev games it does in such a dream alone, unless the environment draws lots:
    then the best of several dreamed sequences is the luckiest one. It does not in a
    dream that was refused, or where every dev game is won without a plan. The marker
    says what is `kept`: "planner" with the plan, another policy without one.
    """
    plan = run.config.planner
    if not run.config.env.id:
        return {"status": NO_ENV}
    reason = why_without_plan(run)
    if reason == OFF:
        return {"status": OFF}
    policy = load_policy(run, START)
    save_policy(run, PLANNER, policy)
    if reason:
        return {"kept": START, "note": f"it does not plan: {reason}"}
    start = player_of(run, START)
    if plays_dev_games(run, start):
        metrics = dev_metrics(play_dev_games(run, start, policy))
        if numbers := nothing_to_gain(run, metrics, START, "it does not plan"):
            return numbers
    folder = paid_folder(run, START)
    plan = chosen_plan(run, policy, plan)
    player = planning_policy(run, policy, plan, stage=PLANNER, folder=folder)
    trusted = is_trusted(read_scorecard(run, folder))
    numbers = compare_on_dev_games(
        run,
        (start, policy),
        (PLANNER, player),
        start=START,
        what="planning",
        expected_better=trusted,
    )
    if not numbers and (reason := _reason_not_to_plan(run, trusted)):
        note = f"it does not plan: {reason}, and no dev games were played"
        note += few_dev_tasks(run)
        by_rule = {"by_rule": True} if reason == LOTS else {}
        return {"kept": START, "note": note} | by_rule
    return {"kept": PLANNER, "method": plan.method} | numbers


def _reason_not_to_plan(run: Run, trusted: bool) -> str | None:
    """Return why nobody plans where no real dev games can tell, or None."""
    if not run.numbers("collect").get("deterministic", True):
        return LOTS
    if not trusted and not run.config.dream_check.force:
        return "too little of the scorecard reaches what is required"
    return None


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dev games take, and what the plan dreams in them at most."""
    plan = config.planner
    games = dev_games(config, workload)
    if not config.env.id or plan.method == "none" or not games:
        return Cost()
    dreamed = plan_cost(config, workload, plan, games * workload.episode_steps)
    seconds = games * game_seconds(workload) + dreamed.seconds
    return Cost(seconds, disk=workload.model_bytes, answers=dreamed.answers)
