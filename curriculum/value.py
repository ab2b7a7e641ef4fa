"""Task values: how much a group of rollouts of one task can teach."""

from collections.abc import Sequence


def task_value(successes: Sequence[bool]) -> float:
    """Variance of a group's successes ("reward entropy", papers.md Eq. 7).

    p (1 - p) for 0/1 outcomes: at most 1/4, 0 where all are the same or none is scored.
    """
    if not successes:
        return 0.0
    mean = sum(successes) / len(successes)
    return mean * (1.0 - mean)
