"""Task values: how much can still be learned from rollouts of a task.

outcomes of a group -> their variance (the paper's value), or counts of won and lost
rollouts -> the expected variance under a Beta posterior, which accounts for small
counts. Old outcomes are discounted, because the policy has changed since.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

LARGEST = 0.25
"""The largest variance of a 0/1 outcome, which is the value of an untried task."""


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
    # Divided by n, not n - 1: the paper's definition, and a group of one has value 0.
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
            f"won and lost must be >= 0 and prior > 0, got {won}, {lost} and {prior}"
        )
    # With the prior 1 (uniform) an untried task has mean 1/6 and deviation 0.075: with
    # optimism 1 its value is 0.24, nearly the largest there is.
    a, b = prior + won, prior + lost
    n = a + b
    mean = a * b / (n * (n + 1))
    square = mean * (a + 1) * (b + 1) / ((n + 2) * (n + 3))
    # The difference may fall below 0 by rounding where both are tiny.
    return Spread(mean, math.sqrt(max(square - mean * mean, 0.0)))


def optimistic(spread: Spread, optimism: float | int) -> float:
    """Return the mean plus `optimism` standard deviations, at most 1/4.

    An upper confidence bound: a task whose value is uncertain is worth a try.
    """
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
