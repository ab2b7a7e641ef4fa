"""Task values: how much can still be learned from rollouts of a task.

outcomes of a group -> their variance (the paper's value), or counts of won and lost
rollouts -> the expected variance under a Beta posterior, which accounts for small
counts. Old outcomes are discounted, because the policy has changed since.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

LARGEST = 0.25
"""The largest variance of a 0/1 outcome, which is the value of an untried task."""

ESTIMATES = ("group", "posterior")
CLUSTERS = ("task", "family", "lexical")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """How the value of a task is estimated, and from which outcomes.

    `estimate` "group" is the variance of the last group (DreamGym, Eq. 7). "posterior"
    is the expected variance under Beta(`prior` + won, `prior` + lost), plus `optimism`
    times its standard deviation, at most 1/4. Outcomes of k updates ago have the weight
    `decay`**k, so that an old value drifts back to that of an untried task.

    Tasks of a `cluster` share their outcomes: "task" is each task alone, "family" all
    of a family, "lexical" `clusters` of them by their wording. PPO's single rollout a
    task has no variance; the DreamGym paper pools over such clusters.
    """

    estimate: str = "group"
    prior: float = 1.0
    optimism: float = 1.0
    decay: float = 1.0
    cluster: str = "task"
    clusters: int = 8

    def __post_init__(self):
        if self.estimate not in ESTIMATES:
            raise ValueError(
                f"estimate must be one of {ESTIMATES}, got {self.estimate!r}"
            )
        if self.cluster not in CLUSTERS:
            raise ValueError(f"cluster must be one of {CLUSTERS}, got {self.cluster!r}")
        if not 0 < self.prior < math.inf or not 0 <= self.optimism < math.inf:
            raise ValueError(
                "prior must be > 0 and optimism >= 0, both finite, got "
                f"{self.prior} and {self.optimism}"
            )
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], got {self.decay}")
        if self.clusters < 1:
            raise ValueError(f"clusters must be >= 1, got {self.clusters}")


class Spread(NamedTuple):
    """An uncertain variance: its mean and standard deviation."""

    mean: float
    deviation: float


def task_value(successes: Sequence[bool]) -> float:
    """Return the variance of a group's successes ("reward entropy", DreamGym, Eq. 7).

    p (1 - p) for 0/1 outcomes: at most 1/4; 0 where all are equal or none is scored.
    """
    if not successes:
        return 0.0
    mean = sum(successes) / len(successes)
    return mean * (1.0 - mean)


def posterior(won: float | int, lost: float | int, *, prior: float | int) -> Spread:
    """Return the posterior of the variance p (1 - p) of a task's outcomes.

    p ~ Beta(a, b) with a = prior + won, b = prior + lost, n = a + b. The moments are
    E[p] = a / n and E[p^2] = a (a + 1) / (n (n + 1)), so
      E[p (1 - p)] = a (n + 1 - a - 1) / (n (n + 1)) = a b / (n (n + 1)),
    and, because p^2 (1 - p)^2 is Beta(a + 2, b + 2) up to its normaliser,
      E[(p (1 - p))^2] = a (a + 1) b (b + 1) / (n (n + 1) (n + 2) (n + 3)).
    Counts may be fractions, because old ones are decayed.

    Raises:
      ValueError: a count is negative, or the prior is not positive.
    """
    if min(won, lost) < 0 or prior <= 0:
        raise ValueError(
            "won and lost must be >= 0 and prior > 0, got "
            f"{won}, {lost} and {prior}"
        )  # fmt: skip
    a, b = prior + won, prior + lost
    n = a + b
    mean = a * b / (n * (n + 1))
    square = mean * (a + 1) * (b + 1) / ((n + 2) * (n + 3))
    return Spread(mean, math.sqrt(max(square - mean * mean, 0.0)))


def optimistic(spread: Spread, optimism: float | int) -> float:
    """Return the mean plus `optimism` standard deviations, at most 1/4."""
    return min(spread.mean + optimism * spread.deviation, LARGEST)


def decayed(value: float | int, toward: float | int, weight: float | int) -> float:
    """Return `value` at weight 1 and `toward` at weight 0, linear between."""
    return toward + (value - toward) * weight


def target_proximity(
    success: float | int, target: float | int, width: float | int
) -> float:
    """Return the proximity of a success to the target: 1 at it, exp(-1/2) `width` away.

    The form of GenEnv's reward of a task, exp(-beta (p - alpha)^2) with alpha = 0.5;
    beta is 1 / (2 width^2).
    """
    return math.exp(-0.5 * ((success - target) / width) ** 2)
