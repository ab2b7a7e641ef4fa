"""A policy's success on given games, with intervals, pooled and by family."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.base import counts_as_invalid
from dreamgym.envs.vector import VectorEnv
from dreamgym.evaluation.statistics import paired_by_game, rate
from worldmodel.data.records import Task


def play(
    policy: Policy,
    envs: VectorEnv,
    tasks: Sequence[Task],
    *,
    seed: int,
    temperature: float,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """One episode a task; the noise of game i is the same for every policy."""
    return rollout(
        policy, envs, tasks, key=jax.random.key(seed), temperature=temperature,
        source="test", progress=progress,
    )  # fmt: skip


def summary(
    trajectories: Sequence[Trajectory], *, real_transitions: int
) -> dict[str, Any]:
    """The row of one policy, of one run or several; unscored episodes stand apart."""
    scored = [t for t in trajectories if t.error is None]
    games: dict[str, list[bool]] = {}
    for t in scored:
        games.setdefault(t.episode.task.id, []).append(bool(t.episode.success))
    found = rate(games)
    steps = [x for t in scored for x in t.episode.transitions]
    returns = [t.episode.total_reward for t in scored]
    return {
        "success": {
            "mean": found["mean"] if scored else None,
            "low": found["low"],
            "high": found["high"],
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
    }


def errors(trajectories: Sequence[Trajectory]) -> dict[str, int]:
    """Return how many episodes ended without a score, by reason."""
    return dict(Counter(t.error for t in trajectories if t.error is not None))


def by_family(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """Trajectories of each family, in order of name."""
    out: dict[str, list[Trajectory]] = {}
    for t in trajectories:
        out.setdefault(t.episode.task.family, []).append(t)
    return dict(sorted(out.items()))


def paired(
    a: Sequence[Trajectory], b: Sequence[Trajectory], *, seed: int
) -> dict[str, float | None]:
    """Success of a minus b where both were scored, resampled by game."""
    rows = [
        (
            x.episode.task.id, float(bool(x.episode.success)),
            float(bool(y.episode.success)),
        )
        for x, y in zip(a, b, strict=True)
        if x.error is None and y.error is None
    ]  # fmt: skip
    return paired_by_game(rows, seed=seed)
