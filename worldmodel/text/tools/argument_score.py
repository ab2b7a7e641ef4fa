"""How well the arguments of a call match those of the expected one.

arguments of both -> a score in [0, 1]
"""

import difflib
from collections.abc import Mapping
from typing import Any

_LONG = 2000
"""Characters above which texts are compared for equality only: matching takes long."""


def argument_score(actual: Mapping[str, Any], gold: Mapping[str, Any]) -> float:
    """Return how well arguments match the gold ones, in [0, 1].

    The mean over all names that either has; 1.0 where neither has any. A number `a`
    scores 1 - |a - g| / max(|g|, 1), at least 0 (the primer has -|a - g|, which is
    unbounded); a text scores its similarity to the gold text (difflib, ignoring case
    and blanks); an object scores as arguments do; anything else scores 1 if equal. A
    name that only one side has scores 0.
    """
    names = actual.keys() | gold.keys()
    if not names:
        return 1.0
    both = actual.keys() & gold.keys()
    # Sorted, because a sum of floats must not depend on the hashes of names.
    return sum(_similarity(actual[k], gold[k]) for k in sorted(both)) / len(names)


def _similarity(actual: Any, gold: Any) -> float:
    try:
        if _number(actual) and _number(gold):
            if actual == gold:
                return 1.0
            return max(0.0, 1.0 - abs(actual - gold) / max(abs(gold), 1))
        if isinstance(actual, str) and isinstance(gold, str):
            return _likeness(_plain(actual), _plain(gold))
        if isinstance(actual, Mapping) and isinstance(gold, Mapping):
            return argument_score(actual, gold)
        return float(type(actual) is type(gold) and actual == gold)
    except (OverflowError, RecursionError):  # huge integers, deep nesting
        return 0.0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _likeness(actual: str, gold: str) -> float:
    if actual == gold or max(len(actual), len(gold)) > _LONG:
        return float(actual == gold)
    return difflib.SequenceMatcher(None, actual, gold, autojunk=False).ratio()
