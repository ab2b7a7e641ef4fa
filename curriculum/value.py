"""Task values: how much more rollouts of a task can teach.

outcomes of a group -> their variance (the paper's), or counts of won and lost rollouts
-> the variance expected under a Beta posterior, which knows how few they are. What was
seen long ago weighs less: the policy has changed since.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

LARGEST = 0.25
"""The largest variance a 0/1 outcome can have: what an untried task may be worth."""

ESTIMATES = ("group", "posterior")
CLUSTERS = ("task", "family", "lexical")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """How the value of a task is estimated, and from whose outcomes.

    `estimate` is "group", the variance of the last group (papers.md Eq. 7), or
    "posterior": the variance expected under Beta(`prior` + won, `prior` + lost), and
    `optimism` of its standard deviations on top, never above 1/4. What was seen k
    updates ago weighs `decay`**k, so an old value drifts back to an untried task's.

    Tasks of a `cluster` share their outcomes: "task" is each alone, "family" those of a
    family, "lexical" `clusters` of them by their wording (PPO's one rollout a task says
    nothing of a variance: papers.md 1.2 pools them over such clusters).
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
    """A variance that is not known for sure: its mean and standard deviation."""

    mean: float
    deviation: float


def task_value(successes: Sequence[bool]) -> float:
    """Variance of a group's successes ("reward entropy", papers.md Eq. 7).

    p (1 - p) for 0/1 outcomes: at most 1/4, 0 where all are the same or none is scored.
    """
    if not successes:
        return 0.0
    mean = sum(successes) / len(successes)
    return mean * (1.0 - mean)


def posterior(won: float | int, lost: float | int, *, prior: float | int) -> Spread:
    """Variance p (1 - p) of the outcomes of a task after so many won and lost.

    p ~ Beta(a, b) with a = prior + won, b = prior + lost, n = a + b. The moments are
    E[p] = a / n and E[p^2] = a (a + 1) / (n (n + 1)), so
      E[p (1 - p)] = a (n + 1 - a - 1) / (n (n + 1)) = a b / (n (n + 1)),
    and, as p^2 (1 - p)^2 is Beta(a + 2, b + 2) but for its normaliser,
      E[(p (1 - p))^2] = a (a + 1) b (b + 1) / (n (n + 1) (n + 2) (n + 3)).
    Counts may be fractions, as aged ones are.

    Raises:
      ValueError: a negative count, or a prior that is not positive.
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
    """What the variance may well be: so many deviations above its mean, at most 1/4."""
    return min(spread.mean + optimism * spread.deviation, LARGEST)


def decayed(value: float | int, toward: float | int, weight: float | int) -> float:
    """`value` where its `weight` is 1, `toward` where it is 0."""
    return toward + (value - toward) * weight


def target_proximity(
    success: float | int, target: float | int, width: float | int
) -> float:
    """How near an estimated success is to the target: 1 there, exp(-1/2) `width` away.

    The form of GenEnv's reward of a task, exp(-beta (p - alpha)^2) with alpha = 0.5
    (papers.md 3.1); beta is 1 / (2 width^2).
    """
    return math.exp(-0.5 * ((success - target) / width) ** 2)
