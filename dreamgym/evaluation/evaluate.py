"""The success of a policy on given tasks, with intervals, pooled and by family."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.base import counts_as_invalid
from dreamgym.envs.vector import VectorEnv
from dreamgym.evaluation.statistics import (
    mean_of_games,
    paired_by_game,
    rate,
    worst_of_games,
)
from worldmodel.data.records import Task, Transition, read_episodes

CostCounters = Mapping[str, Callable[[Sequence[Transition]], float]]
"""What counts a cost in the transitions of an episode, by name of the cost."""


def play(
    policy: Policy | PlanningPolicy,
    envs: VectorEnv,
    tasks: Sequence[Task],
    *,
    seed: int,
    temperature: float,
    max_transitions: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Play one episode for each task; all policies draw the same noise in task i.

    With `max_transitions` the last tasks are missing where that many steps might not be
    enough for them (see `rollout`).

    So does a real environment that draws lots and is seeded by `reset`: policies that
    act alike get the same results.

    Actions that a state has refused are drawn again at temperature 1 or more: a policy
    that is sure of such an action would draw it again and again at a lower one.
    """
    return rollout(
        policy,
        envs,
        tasks,
        key=jax.random.key(seed),
        temperature=temperature,
        redraw_temperature=max(temperature, 1.0),
        reset_seed=seed,
        source="test",
        max_transitions=max_transitions,
        progress=progress,
    )


def summary(
    trajectories: Sequence[Trajectory],
    *,
    real_transitions: int,
    counters: CostCounters | None = None,
    worst_shares: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the results of one policy, in one run or several.

    Unscored episodes are counted, and left out of all means. `counters` and
    `worst_shares` are those of `costs`.
    """
    scored = [t for t in trajectories if t.error is None]
    games: dict[str, list[bool]] = {}
    for t in scored:
        games.setdefault(t.episode.task.id, []).append(bool(t.episode.success))
    success = rate(games)
    steps = [x for t in scored for x in t.episode.transitions]
    returns = [t.episode.episode_return for t in scored]
    return {
        "success": {
            "mean": success["mean"] if scored else None,
            "low": success["low"],
            "high": success["high"],
            "episodes": len(scored),
            "unscored": len(trajectories) - len(scored),
        },
        "errors": errors(trajectories),
        "mean_return": float(np.mean(returns)) if scored else None,
        "mean_steps": len(steps) / len(scored) if scored else None,
        "invalid_action_rate": float(np.mean([counts_as_invalid(x) for x in steps]))
        if steps
        else None,
        "real_transitions": real_transitions,
        "costs": costs(scored, counters, worst_shares),
    }


def costs(
    trajectories: Sequence[Trajectory],
    counters: CostCounters | None = None,
    worst_shares: Mapping[str, float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the mean cost of an episode by name, with an interval over games.

    Names are those that the environment reports in these episodes; `counters` count
    further ones, such as those that other policies have paid (`reported_costs`). Those
    of `worst_shares` have the mean of the costliest share of episodes besides, as
    `worst`.
    """
    out: dict[str, dict[str, Any]] = {}
    for name, games in game_costs(trajectories, counters).items():
        out[name] = dict(mean_of_games(games, seed=0))
        if (share := (worst_shares or {}).get(name)) is not None:
            out[name]["worst"] = worst_of_games(games, share, seed=0)
    return out


def reported_costs(trajectories: Iterable[Trajectory]) -> CostCounters:
    """Return a counter of each cost that the environment reports in any episode.

    An environment may report a cost only where it arises. A policy that never pays it
    costs 0 by the counters of the episodes of all policies.
    """
    steps = (x for t in trajectories for x in t.episode.transitions)
    return reported_counters(k for x in steps for k in x.costs)


def reported_counters(names: Iterable[str]) -> CostCounters:
    """Return a counter of each of these costs, as the environment reports them."""
    return {name: functools.partial(_reported_cost, name) for name in names}


def game_costs(
    trajectories: Sequence[Trajectory], counters: CostCounters | None = None
) -> dict[str, dict[str, list[float]]]:
    """Return the costs of episodes, by name and by task id, in order of name."""
    counts = {**reported_costs(trajectories), **(counters or {})}
    out: dict[str, dict[str, list[float]]] = {}
    for name, count in sorted(counts.items()):
        for t in trajectories:
            games = out.setdefault(name, {})
            cost = count(t.episode.transitions)
            games.setdefault(t.episode.task.id, []).append(float(cost))
    return out


def _reported_cost(name: str, steps: Sequence[Transition]) -> float:
    return sum(t.costs.get(name, 0.0) for t in steps)


def errors(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Return the number of unscored episodes by reason."""
    return dict(Counter(t.error for t in trajectories if t.error is not None))


def by_family(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return the trajectories of each family, in order of name."""
    out: dict[str, list[Trajectory]] = {}
    for t in trajectories:
        out.setdefault(t.episode.task.family, []).append(t)
    return dict(sorted(out.items()))


def paired(
    a: Sequence[Trajectory], b: Sequence[Trajectory], *, seed: int
) -> dict[str, float | None]:
    """Return the success of a minus b in tasks that both have played.

    Where both are scored. A task that was played several times is paired in order.
    """
    others: dict[str, list[Trajectory]] = {}
    for y in b:
        others.setdefault(y.episode.task.id, []).append(y)
    rows = []
    for x in a:
        if not (rest := others.get(x.episode.task.id)):
            continue
        y = rest.pop(0)
        if x.error is None and y.error is None:
            won = float(bool(x.episode.success)), float(bool(y.episode.success))
            rows.append((x.episode.task.id, *won))
    return paired_by_game(rows, seed=seed, of_wins=True)


def trajectories(path: Path) -> list[Trajectory]:
    """Return the test episodes of a file as trajectories, scored or not."""
    return [
        Trajectory(e, (), None if e.success is not None else e.error or "unscored")
        for e in read_episodes(path)
    ]
