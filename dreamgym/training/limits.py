"""Limits of costs: what a step costs, and the Lagrange multipliers that keep limits.

transitions -> costs by name -> the reward lowered by multiplier times cost; the mean
cost of rollouts -> the next multipliers. With E[cost] <= limit as the constraint this
is dual ascent on the Lagrangian (CPO's problem, arXiv:1705.10528, by the method of
arXiv:1805.11074).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dreamgym.agent.rollout import Trajectory
from dreamgym.training.limit_config import LimitConfig
from worldmodel.data.rates import mean_of_worst
from worldmodel.data.records import Transition


def step_cost(transition: Transition, limit: LimitConfig) -> float:
    """Return what a step costs: what the environment says, else 1 for the pattern."""
    if limit.name in transition.costs or not limit.pattern:
        return float(transition.costs.get(limit.name, 0.0))
    text = transition.action
    if limit.search_in == "next_state":
        text = "\n".join(transition.next_state)
    return float(bool(re.search(limit.pattern, text, re.MULTILINE)))


def episode_cost(transitions: Sequence[Transition], limit: LimitConfig) -> float:
    """Return the sum of a cost over an episode."""
    return sum(step_cost(t, limit) for t in transitions)


def cost_counters(
    limits: Iterable[LimitConfig],
) -> dict[str, Callable[[Sequence[Transition]], float]]:
    """Return for each limited cost the function that counts it in an episode."""
    return {
        limit.name: lambda steps, limit=limit: episode_cost(steps, limit)
        for limit in limits
    }


def worst_shares(limits: Iterable[LimitConfig]) -> dict[str, float]:
    """Return the share of each limit that is not of the mean of all episodes."""
    return {x.name: x.worst_share for x in limits if x.worst_share < 1}


def multipliers(
    row: Mapping[str, Any], limits: Sequence[LimitConfig]
) -> dict[str, float]:
    """Return the multipliers that a row of the curve ended with, by name."""
    return {x.name: row.get(_metric(x), float(x.initial_weight)) for x in limits}


def limit_metrics(
    rollouts: Sequence[Trajectory],
    weights: Mapping[str, float],
    limits: Sequence[LimitConfig],
) -> dict[str, float]:
    """Return the mean cost of an episode by name, and the next multipliers.

    Rollouts without a score count, too: what they did was done. The multipliers follow
    the mean cost, or that of the worst share of the rollouts, where the limit is of
    these; in rewards every cost has its price all the same.
    """
    out = {}
    for x in limits:
        costs = [episode_cost(t.episode.transitions, x) for t in rollouts]
        out[f"cost/{x.name}"] = float(np.mean(costs)) if costs else 0.0
        worst = mean_of_worst(costs, x.worst_share) if costs else 0.0
        if x.worst_share < 1:
            out[f"tail_cost/{x.name}"] = worst
        step = x.learning_rate * (worst - x.limit) * bool(costs)
        out[_metric(x)] = max(0.0, weights[x.name] + step)
    return out


def _metric(limit: LimitConfig) -> str:
    return f"limit_weight/{limit.name}"
