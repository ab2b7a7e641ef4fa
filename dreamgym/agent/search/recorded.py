"""Recorded actions as candidates of a search, next to what the policy draws.

collected episodes -> the actions that many of them take -> candidates that the policy
does not draw. A policy that is sure of a wrong action draws no other one, and then a
search has nothing to compare. In an environment with few actions it may try them all.
"""

from collections import Counter
from collections.abc import Sequence

from dreamgym.agent.policy import Turn
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode

MAX_ACTIONS = 32
"""Recorded actions that a search tries in each state, at most."""
MIN_SHARE = 0.02
"""Share of the collected episodes that take an action, if it is to be tried."""


def frequent_actions(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return the actions that are valid in many episodes, the most frequent first.

    There are at most `MAX_ACTIONS`, each in at least `MIN_SHARE` of the episodes:
    names that only one task has are not among them.
    """
    counts: Counter[str] = Counter()
    for e in episodes:
        counts.update({t.action for t in e.transitions if not is_invalid(t)})
    minimum = max(2.0, MIN_SHARE * len(episodes))
    return tuple(a for a, n in counts.most_common(MAX_ACTIONS) if n >= minimum)


def with_recorded(turns: Sequence[Turn], actions: Sequence[str]) -> list[Turn]:
    """Return distinct candidates: the non-void turns, then the actions they lack.

    The latter have no tokens: they are for moments of the dream alone, in which nothing
    is learnt from them.
    """
    distinct: dict[str, Turn] = {}
    for turn in turns:
        if not turn.void:
            distinct.setdefault(turn.action, turn)
    for action in actions:
        bare = Turn((), (), (), (True,), (), action, None, given=True)
        distinct.setdefault(action, bare)
    return list(distinct.values() or turns[:1])
