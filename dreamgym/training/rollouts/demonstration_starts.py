"""Rollouts that begin on the way of a won demonstration, at first near its end.

the last row of the curve -> a distance from the end -> states of demonstrations -> a
group of rollouts from each -> their success -> the distance of the next update. Near
the end a policy finds by chance what pays; from there the starts move backwards
(arXiv:1812.03381; starts in earlier trajectories: Snapshot RL, arXiv:2403.00673).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from curriculum.config import DemonstrationStartsConfig
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.vector import Snapshot
from worldmodel.data.records import Episode

DISTANCE, SUCCESS = "demonstration_distance", "demonstration_success"
"""Metrics: the distance of an update, and the success of the rollouts from there."""


def next_distance(
    row: Mapping[str, Any], config: DemonstrationStartsConfig, longest: int
) -> int:
    """Return the distance from the end after an update with this row of the curve.

    It stays within 1 and the steps of the `longest` demonstration.
    """
    # Read from the curve, which a checkpoint holds: a resumed run goes on with it.
    distance, success = row.get(DISTANCE, config.distance), row.get(SUCCESS)
    if success is not None:
        distance += int(success >= config.grow_above)
        distance -= int(success < config.shrink_below)
    return max(min(int(distance), longest), 1)


def draw_starts(
    demonstrations: Sequence[Episode],
    distance: int,
    count: int,
    max_steps: int,
    rng: np.random.Generator,
) -> list[Snapshot]:
    """Return at most `count` states, each of another demonstration.

    Each is so many steps before the end. Demonstrations of more than `max_steps` are
    left out: steps count from the task's start, and none would be left to win.
    """
    within = [e for e in demonstrations if len(e.transitions) <= max_steps]
    return [_moment(within[i], distance) for i in rng.permutation(len(within))[:count]]


def _moment(episode: Episode, distance: int) -> Snapshot:
    """Return the moment so many steps before the end of an episode."""
    steps = episode.transitions
    at = max(len(steps) - distance, 0)
    return Snapshot(
        episode.task,
        tuple(t.action for t in steps[:at]),
        steps[at].state,
        tuple(t.state for t in steps[:at]),
    )


def success_metric(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    """Return the success of scored rollouts, nothing where there are none."""
    scored = [bool(t.episode.success) for t in rollouts if t.error is None]
    return {SUCCESS: float(np.mean(scored))} if scored else {}
