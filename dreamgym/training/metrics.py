"""Metrics of rollouts, a row an update, and what the rows say as a whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import UNTRUSTED
from dreamgym.training.config import LoopConfig
from dreamgym.training.gather import Rollouts, differs, groups

UNSCORED = 0.25
"""Share of unscored rollouts from which on a run says so."""
REASONS = {
    "dream": "the dream's answer was malformed",
    UNTRUSTED: "the dream's answer was below the confidence threshold",
}
"""Sentences for reasons that are no names of exceptions."""


def rollout_metrics(found: Rollouts, config: LoopConfig) -> dict[str, float]:
    """Return what the rollouts of an update were like.

    All but tokens are of episodes from the task's start. Where none was scored nobody
    knows `success` and `return`: they are left out. Of each family NAME: `success/NAME`
    with the number of scored rollouts `scored/NAME`, and `unscored_share/NAME`.
    `informative_groups` is the share of groups whose members do not all end alike.
    `unscored_return` and `unscored_steps` are how much rollouts had earned and how far
    they had come when they broke: where that is more than `return` and `steps` of the
    others, leaving them out hides what is good from the policy.
    """
    rows = found.started
    good = [t for t in rows if t.error is None]
    lost = [t for t in rows if t.error is not None]
    steps = [x for t in rows for x in t.episode.transitions]
    invalid = [x.invalid for x in steps if x.invalid is not None]
    reasons = Counter(t.error.partition(":")[0] for t in rows if t.error)
    written = [sum(x.sampled) for t in found.all for x in t.turns]
    parts = [differs(group) for group in groups(rows, config.group_size)]
    out = {
        "steps": _mean([len(t.turns) for t in rows]),
        "unscored": float(len(lost)),
        "unchanged": _mean([x.state == x.next_state for x in steps]),
        "rollouts": float(len(rows)),
        "tokens": float(sum(written)),
        "tokens_per_turn": _mean(written),
        "informative_groups": _mean(parts),
    }
    if good:
        out["success"] = _mean([bool(t.episode.success) for t in good])
        out["return"] = _mean([t.episode.total_reward for t in good])
    if lost:
        out["unscored_return"] = _mean([t.episode.total_reward for t in lost])
        out["unscored_steps"] = _mean([len(t.turns) for t in lost])
    if invalid:
        out["invalid"] = _mean(invalid)
    if found.forked:
        out["forks"] = float(len(found.forked))
    if config.drop_void:
        out["void"] = _mean([any(x.void for x in t.turns) for t in found.all])
    out |= {f"unscored/{reason}": float(n) for reason, n in reasons.items()}
    return out | _by_family(rows) | dict(found.paid)


def _by_family(rows: Sequence[Trajectory]) -> dict[str, float]:
    families: dict[str, list[Trajectory]] = {}
    for t in rows:
        families.setdefault(t.episode.task.family, []).append(t)
    out = {}
    for name, part in sorted(families.items()):
        good = [bool(t.episode.success) for t in part if t.error is None]
        if good:
            out[f"success/{name}"] = _mean(good)
        out[f"scored/{name}"] = float(len(good))
        out[f"unscored_share/{name}"] = 1.0 - len(good) / len(part)
    return out


def _mean(values: Sequence[float | int]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


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
