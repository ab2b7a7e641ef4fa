"""The choice between the policy that enters a stage and the one that leaves it.

metrics of real dev games, pooled and by family -> whether a policy is better. All are
pure functions of metrics: `real_success`, `real_return`, and for each family NAME
`real_success/NAME` and `real_games/NAME`, the number of scored games.
"""

import math
from collections.abc import Mapping
from typing import Any

FAMILY_DROP = 0.15
"""The fall in a family's success that is not accepted, where it is no accident."""
STANDARD_ERRORS = 2.0
"""Standard errors by which it must have fallen."""


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
    pooled = (before * n + after * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return before - after > max(FAMILY_DROP, STANDARD_ERRORS * error)


def is_better(row: Mapping[str, Any], baseline: Mapping[str, Any]) -> bool:
    """Return whether a policy may take the place of the one that it began at.

    It wins more often or, where both win as often, it earns more, and it destroys no
    family's success. Equal policies leave the first in place: the trained one is
    often the best of several on these games, so that a tie flatters it. A policy that
    nobody scored may not take the place, and any that was scored takes that of one
    that was not.
    """
    if "real_success" not in row:
        return False
    if "real_success" not in baseline:
        return True
    if destroyed_families(row, baseline):
        return False
    if row["real_success"] != baseline["real_success"]:
        return row["real_success"] > baseline["real_success"]
    return row.get("real_return", 0.0) > baseline.get("real_return", 0.0)
