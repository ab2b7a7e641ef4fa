"""Metrics of the rollouts of an update, and a summary of a training curve."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.groups import Rollouts, groups_of, is_informative

UNSCORED = 0.25
"""Share of unscored rollouts from which on a run reports them."""
REASONS = {
    "dream": "the dream's answer was malformed",
    LOW_CONFIDENCE: "the dream's answer was below the confidence threshold",
}
"""Sentences for reasons that are not names of exceptions."""


def rollout_metrics(rollouts: Rollouts, config: LoopConfig) -> dict[str, float]:
    """Return the metrics that describe the rollouts of an update.

    All but the numbers of tokens are over rollouts from their task's start. `success`
    and `return` are means over scored rollouts, and are left out where there are none.
    For each family of tasks NAME: `success/NAME`, the number of scored rollouts
    `scored/NAME`, and `unscored_share/NAME`. `informative_groups` is the share of
    groups in which some rollouts succeed and others fail. `unscored_return` and
    `unscored_episode_length` are the means over unscored rollouts up to the error:
    where they exceed `return` and `episode_length`, what is left out is what went well.
    `success_at_least` and `success_at_most` are what `success` would be if all of these
    had been lost, or won: so large is the bias of leaving them out at most.
    `void_turn_share` is the share of rollouts with a void turn. `guided_success` is the
    success of scored guided retries.
    """
    rows = rollouts.started
    scored = [t for t in rows if t.error is None]
    unscored = [t for t in rows if t.error is not None]
    steps = [x for t in rows for x in t.episode.transitions]
    invalid = [x.invalid for x in steps if x.invalid is not None]
    reasons = Counter(t.error.partition(":")[0] for t in rows if t.error)
    turns = (x for t in rollouts.all for x in t.turns)
    tokens = [sum(x.sampled) for x in turns if not x.given]
    informative = [
        is_informative(group) for group in groups_of(rows, config.group_size)
    ]
    out = {
        "episode_length": _mean([len(t.turns) for t in rows]),
        "unscored_rollouts": float(len(unscored)),
        "unchanged_state_share": _mean([x.state == x.next_state for x in steps]),
        "rollouts": float(len(rows)),
        "tokens": float(sum(tokens)),
        "tokens_per_turn": _mean(tokens),
        "informative_groups": _mean(informative),
    }
    if scored:
        out["success"] = _mean([bool(t.episode.success) for t in scored])
        out["return"] = _mean([t.episode.episode_return for t in scored])
    if unscored:
        wins = sum(bool(t.episode.success) for t in scored)
        out["success_at_least"] = wins / len(rows)
        out["success_at_most"] = (wins + len(unscored)) / len(rows)
        out["unscored_return"] = _mean([t.episode.episode_return for t in unscored])
        out["unscored_episode_length"] = _mean([len(t.turns) for t in unscored])
    if invalid:
        out["invalid_action_share"] = _mean(invalid)
    if rollouts.forked:
        out["forks"] = float(len(rollouts.forked))
    if rollouts.guided:
        won = [bool(t.episode.success) for t in rollouts.guided if t.error is None]
        out["guided_rollouts"] = float(len(rollouts.guided))
        out["guided_success"] = _mean(won)
    if config.drop_void_turns:
        out["void_turn_share"] = _mean([t.has_void_turn for t in rollouts.all])
    out |= {f"unscored/{reason}": float(n) for reason, n in reasons.items()}
    return out | _family_metrics(rows) | dict(rollouts.reward_metrics)


def _family_metrics(rows: Sequence[Trajectory]) -> dict[str, float]:
    families: dict[str, list[Trajectory]] = {}
    for t in rows:
        families.setdefault(t.episode.task.family, []).append(t)
    out = {}
    for name, members in sorted(families.items()):
        successes = [bool(t.episode.success) for t in members if t.error is None]
        broken = [len(t.turns) for t in members if t.error is not None]
        if successes:
            out[f"success/{name}"] = _mean(successes)
        out[f"scored/{name}"] = float(len(successes))
        out[f"unscored_share/{name}"] = len(broken) / len(members)
        if broken:
            out[f"unscored_episode_length/{name}"] = _mean(broken)
    return out


def _mean(values: Sequence[float | int]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def training_note(curve: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence if training learned nothing, or many rollouts were unscored.

    Rows hold `rollouts`, `unscored_rollouts`, `unscored/REASON` and, where the policy
    was updated, `update_kl`. None where there is nothing to report.
    """
    if not curve:
        return "learned nothing: no update was made"
    rollouts = int(sum(row["rollouts"] for row in curve))
    unscored = int(sum(row["unscored_rollouts"] for row in curve))
    note = f"{unscored} of {rollouts} rollouts were not scored ({_reasons(curve)})"
    if not any("update_kl" in row for row in curve):
        if unscored == rollouts:
            return f"learned nothing: {note}"
        rates = [row["success"] for row in curve if "success" in row]
        cause = "all of them were lost" if max(rates) == 0.0 else "each group agreed"
        return (
            "learned nothing: in no update did the rollouts of one task differ, so "
            f"none was better than another ({cause})"
            + (f"; {note}" if unscored else "")
        )
    if unscored >= UNSCORED * rollouts:
        return f"{note}: success while training is of the others alone"
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
