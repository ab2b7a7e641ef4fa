"""What the curve of a training loop says of it as a whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.envs.base import UNTRUSTED

UNSCORED = 0.25
"""Share of unscored rollouts from which on a run says so."""
REASONS = {
    "dream": "the dream's answer was malformed",
    UNTRUSTED: "the dream's answer was below the confidence threshold",
}
"""Sentences for reasons that are no names of exceptions."""


def training_note(curve: Sequence[Mapping[str, Any]]) -> str | None:
    """Return one sentence if a loop learned nothing, or from a part of its rollouts.

    Rows hold `rollouts`, `unscored`, `unscored/REASON`, `used_turns` and, where the
    policy was updated, `kl`. None where nothing is to be said.
    """
    if not curve:
        return "learned nothing: no update was made"
    rollouts = int(sum(row["rollouts"] for row in curve))
    unscored = int(sum(row["unscored"] for row in curve))
    lost = f"{unscored} of {rollouts} rollouts were not scored ({_reasons(curve)})"
    if not any("kl" in row for row in curve):
        if unscored == rollouts:
            return f"learned nothing: {lost}"
        won = [row["success"] for row in curve if "success" in row]
        cause = "all of them were lost" if max(won) == 0.0 else "each group agreed"
        return (
            "learned nothing: in no update did the rollouts of one task differ, so "
            f"none was better than another ({cause})"
            + (f"; {lost}" if unscored else "")
        )
    if unscored >= UNSCORED * rollouts:
        return f"{lost}: success while training is of the others alone"
    return None


def _reasons(curve: Sequence[Mapping[str, Any]]) -> str:
    reasons = Counter[str]()
    for row in curve:
        reasons.update(
            {k.partition("/")[2]: int(n) for k, n in row.items() if "unscored/" in k}
        )
    return ", ".join(
        f"{REASONS.get(reason, reason)}: {n}" for reason, n in reasons.most_common()
    )
