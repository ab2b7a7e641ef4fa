"""Skill collapse: a skill lost while another is learned, calls that vanish or explode.

measures of the checks so far, oldest first -> red flags by measure. The list is the
primer's ("Detecting Skill Collapse"); the thresholds are ours.
"""

import math
from collections.abc import Mapping, Sequence

from curriculum.config import LessonConfig
from curriculum.lessons import LessonState

NAMED = {
    "valid_json": "syntax collapse",
    "valid_schema": "syntax collapse",
    "call_precision": "call collapse",
    "tool_accuracy": "which collapse",
    "execution": "argument collapse",
}
"""The primer's names for the fall of a measure, in the order in which one breaks the
next: of a call that cannot be read, the tool is wrong and the execution fails."""

LOWER_IS_BETTER = (
    "calls_per_success",
    "steps_per_success",
    "unnecessary_calls",
    "missed_calls",
    "repeated_calls",
    "redundant_calls",
    "repeated_wrong_tool",
    "void_turns",
)
RATES = ("call_rate", "due_rate")
"""Measures of which neither more nor less is better."""
IMPLIED = {
    "calls explode": ("call_precision",),
    "calls vanish": ("call_recall", "success"),
}
"""Measures that fall with the calls, which need no flag of their own: of calls that
explode most are not expected, and without calls nothing is found out."""
Check = tuple[Mapping[str, float], Mapping[str, float]]
"""The measures of a check, and how many cases each is a mean of."""

FLAT = 0.02
"""The largest range over the window in which success counts as flat."""
SURE = 3.0
"""Standard errors of the difference by which a measure must have fallen."""
VANISHED = 0.1
EXPLODED = 3.0
"""Calls per expected call."""


def flags(
    state: LessonState, config: LessonConfig, *, checks: int | None = None
) -> dict[str, str]:
    """Return the red flags of the last check in the state's history (`red_flags`).

    Only checks of one lesson are compared, because others play other tasks: the last
    `checks`, those of the state's lesson unless given.
    """
    checks = max(state.lesson_checks if checks is None else checks, 1)
    return red_flags(
        state.history[-checks:],
        drop=config.collapse_drop,
        counts=state.counts[-checks:],
    )


def red_flags(
    history: Sequence[Mapping[str, float]],
    *,
    drop: float | int,
    window: int = 4,
    counts: Sequence[Mapping[str, float]] = (),
) -> dict[str, str]:
    """Return the red flags of the last check by measure; empty where there are none.

    A measure has collapsed if it is more than `drop` below one of the `window` checks
    before. With `counts`, how many cases the measures of each check are means of, the
    difference must also be SURE standard errors: shares of a few cases differ by
    chance. Those of NAMED form a chain: of a call that cannot be read all that
    follows fails, too, so that only the first one that fell is named. Of another
    measure it is a collapse only where one has risen since its best: else it is a
    worse policy rather than one skill traded for another. Calls vanish below a tenth
    of the expected ones, which lowers recall and success besides, and explode above
    three times as many. Flat success while the mean of the other skills rose by more
    than `drop` over a whole window is a plateau "due to overfitting on shaping
    rewards".

    Raises:
      ValueError: `drop` is not positive, `window` is below 1, or `counts` are not those
        of the history.
    """
    if drop <= 0 or window < 1:
        raise ValueError(f"drop must be > 0 and window >= 1, got {drop} and {window}")
    if counts and len(counts) != len(history):
        raise ValueError(f"{len(counts)} counts of {len(history)} checks")
    if not history:
        return {}
    latest, before = history[-1], list(history[-1 - window : -1])
    out, calls = {}, _calls(latest)
    implied = IMPLIED.get(calls.get("call_rate", ""), ())
    rows = list(zip(history, counts or [{}] * len(history), strict=True))
    compared = rows[-1 - window : -1]
    fallen = [
        name
        for name in _skills(latest)
        if name not in implied and _has_fallen(name, rows[-1], compared, drop)
    ]
    if in_chain := [name for name in NAMED if name in fallen]:
        out[in_chain[0]] = NAMED[in_chain[0]]
    else:
        traded = [name for name in fallen if _another_rose(name, latest, before)]
        out |= dict.fromkeys(traded, "skill collapse")
    out |= calls
    if len(before) == window and _plateau(before[0], latest, before, drop):
        out["success"] = "plateau"
    return out


def _has_fallen(name: str, latest: Check, before: Sequence[Check], drop: float) -> bool:
    """Return whether a measure is surely below what it was in one of the checks."""
    value, cases = latest[0][name], latest[1].get(name)
    for measures, counts in before:
        if name not in measures:
            continue
        past_cases, error = counts.get(name), 0.0
        if cases and past_cases:  # as if both were equal in truth (two-proportion z)
            mean = value * cases + measures[name] * past_cases
            mean = min(max(mean / (cases + past_cases), 0.0), 1.0)
            error = math.sqrt(mean * (1 - mean) * (1 / cases + 1 / past_cases))
        if measures[name] - value > max(drop, SURE * error):
            return True
    return False


def _another_rose(
    name: str, latest: Mapping[str, float], before: Sequence[Mapping[str, float]]
) -> bool:
    """Return whether another measure has risen since a measure was best."""
    best = max((x for x in before if name in x), key=lambda x: x[name])
    return any(latest[k] > best[k] for k in _skills(latest) if k != name and k in best)


def _skills(measures: Mapping[str, float]) -> list[str]:
    """Return the measures of which more is better."""
    return [k for k in measures if k not in (*LOWER_IS_BETTER, *RATES)]


def _calls(latest: Mapping[str, float]) -> dict[str, str]:
    call_rate, due_rate = latest.get("call_rate"), latest.get("due_rate")
    if call_rate is None or not due_rate:
        return {}
    if call_rate < VANISHED * due_rate:
        return {"call_rate": "calls vanish"}
    return {"call_rate": "calls explode"} if call_rate > EXPLODED * due_rate else {}


def _plateau(
    first: Mapping[str, float],
    latest: Mapping[str, float],
    before: Sequence[Mapping[str, float]],
    drop: float,
) -> bool:
    won = [x["success"] for x in (*before, latest) if "success" in x]
    others = [k for k in _skills(latest) if k != "success" and k in first]
    if len(won) <= len(before) or not others:
        return False
    rise = sum(latest[k] - first[k] for k in others) / len(others)
    return max(won) - min(won) <= FLAT and rise > drop
