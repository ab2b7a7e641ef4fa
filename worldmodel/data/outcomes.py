"""The outcome and the reward of a transition, as models read and write them.

transition -> "go", "lose" or "win"; reward -> text of a few digits; episodes -> the
reward that a step usually has
"""

import math
from collections import Counter
from collections.abc import Sequence

from worldmodel.data.records import Episode, Transition

OUTCOMES = ("go", "lose", "win")


def outcome_of(transition: Transition) -> str:
    """Return "go" while the episode lasts, "win" or "lose" at its end.

    An end without a success flag counts as "lose".
    """
    if not transition.terminated:
        return "go"
    return "win" if transition.success else "lose"


def number_text(value: float) -> str:
    """Return a reward as text, with at most three decimals, or three digits below 0.1.

    Rewards below 1e-6 are written as 0.
    """
    small = 1e-6 <= abs(value) < 0.1
    places = 2 - math.floor(math.log10(abs(value))) if small else 3
    text = f"{value:.{places}f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def commonest_reward(episodes: Sequence[Episode]) -> float:
    """Return the most frequent reward of a step, or 0 where there are none.

    In a task with a cost for each step it is that cost; predicting it finds no reward.
    """
    rewards = Counter(t.reward for e in episodes for t in e.transitions)
    return max(rewards, key=lambda r: (rewards[r], -abs(r)), default=0.0)
