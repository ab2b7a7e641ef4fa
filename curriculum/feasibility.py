"""Decide whether an invented task can be solved, from counts.

dreamgym/training/feasibility.py asks the dream and passes the numbers here. There are
two questions: does the dream know what happens at this start (several samples of its
answers agree), and does some plan win (one of n rollouts does, or, where tasks are to
be neither too easy nor too hard, about half of them)?
"""

import collections
from collections.abc import Callable, Hashable, Sequence

from curriculum.config import FeasibilityConfig
from worldmodel.data.records import Task

Feasible = Callable[[Sequence[Task]], Sequence[str | None]]
"""Returns for each task why it is refused, or None."""

NO_AGREEMENT = "disagreement"
NO_PLAN = "no plan"
UNSCORED = "unscored"
TOO_EASY, TOO_HARD = "too easy", "too hard"


def agreement(answers: Sequence[Sequence[Hashable | None]]) -> float:
    """Return the share of pairs of samples that are equal, in [0, 1].

    `answers[i]` are the samples for question i; None is a malformed sample, which
    agrees with nothing. Drawn with probabilities q, two samples agree with probability
    sum of q^2, of which the share of pairs is an unbiased estimate. The result is the
    mean over questions, and 0 where no question has two samples.
    """
    rates = []
    for samples in answers:
        n = len(samples)
        if n < 2:
            continue
        counts = collections.Counter(x for x in samples if x is not None)
        same = sum(k * (k - 1) for k in counts.values())
        rates.append(same / (n * (n - 1)))
    return sum(rates) / len(rates) if rates else 0.0


def refusal_reason(
    config: FeasibilityConfig,
    *,
    agreement_rate: float | int | None,
    won: int,
    scored: int,
) -> str | None:
    """Return why a task is refused after its test, or None.

    `agreement_rate` is the agreement of samples, None where there were none to compare.
    `scored` of the rollouts reached an outcome. A task whose rollouts all failed to
    reach one has a reason of its own, because that is a fault of the dream rather than
    of the task.
    """
    if config.samples and (agreement_rate is None or agreement_rate < config.agreement):
        return NO_AGREEMENT
    if config.rollouts and not scored:
        return UNSCORED
    if config.rollouts and not won:
        return NO_PLAN
    if config.rollouts and abs(won / scored - 0.5) > config.max_distance + 1e-9:
        return TOO_EASY if 2 * won > scored else TOO_HARD
    return None
