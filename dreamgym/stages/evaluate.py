"""Stages: each policy plays the same real test tasks."""

import sys
import time
from collections.abc import Sequence
from typing import Any

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.costs import games_cost, plan_cost
from dreamgym.build.planning import PLANNER, load_player, plan_of, plan_settings
from dreamgym.build.real.environments import NO_ENV, play_floor, play_test_games
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.evaluate import summary
from dreamgym.evaluation.report import counts_text
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run, policy: str) -> dict[str, Any]:
    """Play the real test tasks with a policy; write test/POLICY.jsonl.

    A policy that plans (`evaluate.plan.method`, or `planner`) has the numbers of its
    planning: dreamed steps and seconds for each real step, and the share of steps whose
    action it changed.
    """
    if not run.config.env.id:
        return {"status": NO_ENV}
    if policy == PLANNER and not run.path(f"policies/{PLANNER}").is_dir():
        return {"status": run.numbers(PLANNER)["status"]}
    if plan_of(run, policy).method == "none":
        return _numbers(policy, play_test_games(run, policy))
    player, begin = load_player(run, policy), time.perf_counter()
    played = play_test_games(run, policy, load=lambda: player)
    seconds = time.perf_counter() - begin
    assert isinstance(player, PlanningPolicy)
    counts, steps = player.counts, sum(len(t.episode.transitions) for t in played)
    numbers = _numbers(policy, played)
    if counts.steps and steps:  # else they were played before an interruption
        numbers |= {
            "dreamed_per_step": counts.dreamed_steps / steps,
            "overruled": counts.overruled / counts.steps,
            "seconds_per_step": seconds / steps,
        }
    return numbers


def floor_body(run: Run, name: str) -> dict[str, Any]:
    """Play the real test tasks with a baseline of FLOORS; write test/NAME.jsonl.

    A baseline needs no training; it shows what trained policies must exceed.
    """
    if not run.config.env.id:
        return {"status": NO_ENV}
    played = play_floor(run, name)
    if not played:
        return {"status": "skipped: the environment has no expert"}
    return _numbers(name, played)


def _numbers(name: str, played: Sequence[Trajectory]) -> dict[str, Any]:
    """The numbers of the stage; says how many games were not scored, and why."""
    row = summary(played, real_transitions=0)
    success = row["success"]
    out = {"success": success["mean"], "games": success["episodes"]}
    out["steps"] = row["mean_steps"]
    if row["costs"]:
        out["costs"] = {cost: value["mean"] for cost, value in row["costs"].items()}
    if row["errors"]:
        out["unscored"] = success["unscored"]
        print(
            f"evaluate: {name}: {success['unscored']} games were not scored: "
            f"{counts_text(row['errors'])}",
            file=sys.stderr,
        )
    return out


def cost(config: RunConfig, workload: Workload, policy: str) -> Cost:
    """Return what the test games of a policy take, and what a plan dreams at most.

    The first policy that plays compiles what the others use, too.
    """
    plan = plan_settings(config, policy)
    exists = policy != PLANNER or plan.method != "none"
    count = config.evaluate.tasks * bool(config.env.id and exists)
    games = games_cost(workload, count)
    compile_seconds = 5 * (policy == "untrained")
    if plan.method == "none":
        return games._replace(compile_seconds=compile_seconds)
    dreamed = plan_cost(config, workload, plan, count * workload.episode_steps)
    return games._replace(
        seconds=games.seconds + dreamed.seconds,
        compile_seconds=compile_seconds,
        answers=dreamed.answers,
    )


def floor_cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the test games of a baseline take: it computes nothing."""
    games = config.evaluate.tasks * bool(config.env.id)
    return games_cost(workload, games, policy=False)
