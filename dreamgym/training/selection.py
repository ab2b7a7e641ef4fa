"""The choice between the policy that enters a stage and the one that leaves it.

metrics of real dev games, pooled and by family -> whether a policy is better. All are
pure functions of metrics: `real_success`, `real_return` and its standard error
`real_return_error`, and for each family NAME `real_success/NAME` and `real_games/NAME`,
the number of scored games.
"""

import math
from collections.abc import Mapping
from typing import Any

FAMILY_DROP = 0.15
"""The fall in a family's success that is not accepted, where it is no accident."""
STANDARD_ERRORS = 2.0
"""Standard errors by which it must have fallen."""
ENOUGH_DREAMED = 4
"""Dreamed dev games of both policies below which they decide nothing."""
ENOUGH_WON = 16
"""Dev games that must all be won for a policy to count as one that wins them all."""


def destroyed_families(
    row: Mapping[str, Any], baseline: Mapping[str, Any]
) -> list[str]:
    """Return the families whose success is lower than in the baseline, by name.

    Lower means by more than FAMILY_DROP and by more than STANDARD_ERRORS standard
    errors of the difference.
    """
    names = [k.partition("/")[2] for k in baseline if k.startswith("real_success/")]
    return [name for name in sorted(names) if _is_destroyed(row, baseline, name)]


def _is_destroyed(
    row: Mapping[str, Any], baseline: Mapping[str, Any], name: str
) -> bool:
    if f"real_success/{name}" not in row:
        return False
    before, after = baseline[f"real_success/{name}"], row[f"real_success/{name}"]
    n, m = baseline[f"real_games/{name}"], row[f"real_games/{name}"]
    error = _difference_error((before, n), (after, m))
    return before - after > max(FAMILY_DROP, STANDARD_ERRORS * error)


def wins_all(row: Mapping[str, Any]) -> bool:
    """Return whether a policy won every dev game, of ENOUGH_WON games or more.

    No training of it can then be seen to help.
    """
    return row.get("real_success") == 1.0 and scored_games(row) >= ENOUGH_WON


def _standard_error(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> float:
    """Return the standard error of the difference in success, families pooled."""
    rates = [(r["real_success"], scored_games(r)) for r in (row, baseline)]
    return _difference_error(*rates)


def scored_games(row: Mapping[str, Any]) -> float | int:
    """Return how many games the metrics are of."""
    return sum(n for key, n in row.items() if key.startswith("real_games/"))


def _difference_error(
    a: tuple[float, float | int], b: tuple[float, float | int]
) -> float:
    """Return the standard error of a difference of two rates, each with its games.

    Both are taken for equal in truth (two-proportion z-test).
    """
    (p, n), (q, m) = a, b
    pooled = (p * n + q * m) / (n + m)
    return math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))


def is_better(
    row: Mapping[str, Any], baseline: Mapping[str, Any], *, standard_errors: float = 0.0
) -> bool:
    """Return whether a policy may take the place of the one that it began at.

    It wins more often or, where both win as often, it earns more, and it destroys no
    family's success. Equal policies leave the first in place. A policy that nobody
    scored may not take the place, and any that was scored takes that of one that was
    not.

    Args:
      standard_errors: how many standard errors of the difference it must win more
        often, where that is above 0: the best of several checkpoints on some games
        wins more of these games than of others. Where both win as often, as in an
        environment that pays for progress and is never won, it must earn so many more.
    """
    if "real_success" not in row:
        return False
    if "real_success" not in baseline:
        return True
    if destroyed_families(row, baseline):
        return False
    gain = row["real_success"] - baseline["real_success"]
    earned = row.get("real_return", 0.0) - baseline.get("real_return", 0.0)
    if not standard_errors:
        return gain > 0.0 or (gain == 0.0 and earned > 0.0)
    if gain:
        return gain > standard_errors * _standard_error(row, baseline)
    errors = [r.get("real_return_error", math.inf) for r in (row, baseline)]
    return earned > standard_errors * math.hypot(*errors)


def is_better_in_dream(
    row: Mapping[str, Any], baseline: Mapping[str, Any], *, margin: float
) -> bool:
    """Return whether dreamed games speak for a policy: a dream may flatter.

    Its success must have risen by more than `margin`, with no family's destroyed, over
    ENOUGH_DREAMED games or more. What nobody scored is not compared.
    """
    if min(scored_games(row), scored_games(baseline)) < ENOUGH_DREAMED:
        return False
    if destroyed_families(row, baseline):
        return False
    return row["real_success"] > baseline["real_success"] + margin
