"""Compares how well two models tell rewards and ends apart, by family of tasks.

the scorecards of a model before and after a refit, on the same dev episodes -> shares
of events found less shares of false alarms -> sentences on what became worse
"""

import math
from collections.abc import Mapping
from typing import Any

from dreamgym.evaluation.statistics import wilson_of

EVENTS = (
    ("unusual rewards", ("reward", "recall"), ("reward", "false_positives")),
    ("ends", ("done", "recall"), ("done", "false_positives")),
    ("rewards and wins one step too early", (), ("reward", "near_misses")),
)
"""What is told apart: its name, and the rates of a scorecard of events that are found
and of false alarms."""


def lost_discrimination(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[str]:
    """Return what a model tells apart less well than the one before; empty if nothing.

    Compared are found rewards and ends less false alarms (Youden's index), so that a
    model may find more at the price of some false alarms; and how often a winning
    action is paid one step too early, for which no found reward makes up. They are
    those of all tasks and of each family. Worse is a lower index, where it or one of
    its shares is worse by more than a 95 % interval: Wilson's of each share, combined
    by MOVER (Zou and Donner, Statistics in Medicine 27, 2008) as if the models had
    answered different cases. So small changes pass.
    """
    families = before.get("families", {}).keys() & after.get("families", {}).keys()
    pairs = [("all tasks", before, after)]
    pairs += [
        (f"family {name!r}", before["families"][name], after["families"][name])
        for name in sorted(families)
    ]
    out = []
    for name, old, new in pairs:
        for event, recall, alarms in EVENTS:
            if change := _loss(old, new, recall, alarms):
                out.append(f"{event} in {name}: {change}")
    return out


def _loss(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    recall: tuple[str, ...],
    alarms: tuple[str, ...],
) -> str:
    """Return how the shares changed where their index is worse, else ''."""
    changes, margins, texts = list[float](), list[float](), list[str]()
    for title, path, sign in (("found", recall, 1), ("false alarms", alarms, -1)):
        old, new = _rate(before, path), _rate(after, path)
        if old is None or new is None:
            continue
        texts.append(f"{title} {100 * old[0]:.0f} % before, {100 * new[0]:.0f} % after")
        # As shares of which more is better: (share, lower bound, upper bound).
        (p_old, low_old, _), (p_new, _, high_new) = (
            rate if sign > 0 else (-rate[0], -rate[2], -rate[1]) for rate in (old, new)
        )
        changes.append(p_new - p_old)
        margins.append(math.hypot(high_new - p_new, p_old - low_old))
    clear = any(c + m < 0 for c, m in zip(changes, margins, strict=True))
    clear = clear or sum(changes) + math.hypot(*margins) < 0
    return ", ".join(texts) if clear and sum(changes) < 0 else ""


def _rate(
    scorecard: Mapping[str, Any], path: tuple[str, ...]
) -> tuple[float, float, float] | None:
    """Return a share with its interval, None where it was not measured."""
    rate: Any = scorecard
    for name in path:
        rate = rate.get(name, {})
    if not path or rate.get("mean") is None:
        return None
    count = max(rate.get("effective", rate["count"]), 1.0)
    return (rate["mean"], *wilson_of(rate["mean"], count))
