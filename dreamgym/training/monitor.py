"""Signs that a policy breaks down while it trains, and the remedies for them.

rows of the training curve -> alarms -> weights of the loss after the remedies. All are
pure functions; recovery.py stops training or reverts updates by them. A policy may earn
ever more in a dream because it exploits what the dream gets wrong, so the sign that
counts most is what it earns on real dev games.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.rl.config import LossWeights
from dreamgym.training.config import MonitorConfig

NOT_FINITE = "not finite"
RECENT = 8
"""Number of earlier updates that define the usual KL of an update."""
SKILL_WINDOW = 4
"""Number of updates over which a family's success is pooled."""
SURE = 3.0
"""Standard errors by which a family's success must fall to raise an alarm."""
WEIGHT_METRICS = {
    "kl": "kl_weight",
    "entropy": "entropy_weight",
    "auxiliary": "auxiliary_weight",
    "dense_rewards": "dense_weight",
}
"""The metric in which a row of the curve holds each of the LossWeights."""


def loss_weights(row: Mapping[str, Any], initial: LossWeights) -> LossWeights:
    """Return the weights that a row of the curve ended with, `initial` by default."""
    return LossWeights(
        **{
            name: row.get(WEIGHT_METRICS[name], value)
            for name, value in initial._asdict().items()
        }
    )


def weight_metrics(weights: LossWeights) -> dict[str, float]:
    """Return the weights as metrics of a row of the curve."""
    return {WEIGHT_METRICS[k]: float(v) for k, v in weights._asdict().items()}


def alarms(
    previous: Sequence[Mapping[str, Any]], row: Mapping[str, Any], config: MonitorConfig
) -> list[str]:
    """Return the alarms that an update raises, by its row and those of updates before.

    An alarm is named after the setting whose bound was crossed.

    Rows hold `entropy`, `tokens_per_turn`, `invalid_action_share` (or
    `unchanged_state_share`, where the environment does not say which actions are
    invalid), `update_kl`, `success` and, where real dev games were played,
    `real_success`, and `flags/NAME` for each red flag of the lessons.
    """
    c, out = config, []
    if c.min_entropy and row.get("entropy", c.min_entropy) < c.min_entropy:
        out.append("min_entropy")
    lengths = (r["tokens_per_turn"] for r in previous if "tokens_per_turn" in r)
    first = next(lengths, None)
    if (
        c.max_length_ratio
        and first
        and row.get("tokens_per_turn", 0.0) > c.max_length_ratio * first
    ):
        out.append("max_length_ratio")
    unchanged = row.get("unchanged_state_share", 0.0)
    invalid = row.get("invalid_action_share", unchanged)
    if c.max_invalid_share and invalid > c.max_invalid_share:
        out.append("max_invalid_share")
    recent_kl = [r["update_kl"] for r in previous[-RECENT:] if r.get("update_kl")]
    # The median, because a single earlier jump must not excuse the next one.
    if c.max_kl_ratio and len(recent_kl) >= 3:
        if row.get("update_kl", 0.0) > c.max_kl_ratio * statistics.median(recent_kl):
            out.append("max_kl_ratio")
    if c.max_real_drop and _dream_and_reality_diverge(
        [*previous, row], c.max_real_drop
    ):
        out.append("max_real_drop")
    if c.max_family_drop:
        lost = lost_families([*previous, row], c.max_family_drop)
        out += [f"max_family_drop: {name or 'the only family'}" for name in lost]
    if c.skill_collapse:
        flags = sorted(k.partition("/")[2] for k in row if k.startswith("flags/"))
        out += [f"skill_collapse: {name}" for name in flags]
    return out


def lost_families(rows: Sequence[Mapping[str, Any]], drop: float) -> list[str]:
    """Return the families whose success fell by more than `drop`.

    Rows hold `success/NAME` and `scored/NAME`, the number of rollouts that the success
    is measured on. The last SKILL_WINDOW rows are compared with each window of as many
    earlier rows that does not overlap them; the difference must also exceed SURE
    standard errors. Reverted updates do not count.
    """
    valid = [r for r in rows if not r.get("reverted")]
    names = sorted({k.partition("/")[2] for r in valid for k in r if "scored/" in k})
    return [name for name in names if _has_dropped(valid, name, drop)]


def _has_dropped(rows: Sequence[Mapping[str, Any]], family: str, drop: float) -> bool:
    counts = [
        (r.get(f"success/{family}", 0.0) * r[f"scored/{family}"], r[f"scored/{family}"])
        for r in rows
        if r.get(f"scored/{family}")
    ]
    size = SKILL_WINDOW
    if len(counts) < 2 * size:
        return False
    windows = [counts[i : i + size] for i in range(len(counts) - size + 1)]
    sums = [(sum(w for w, _ in x), sum(n for _, n in x)) for x in windows]
    *_, (wins, rollouts) = sums
    rate = wins / rollouts
    for earlier_wins, earlier_rollouts in sums[: len(sums) - size]:
        earlier_rate = earlier_wins / earlier_rollouts
        # The standard error of a difference of two rates, if both are equal in truth
        # (two-proportion z-test): small windows differ by chance.
        pooled = (earlier_wins + wins) / (earlier_rollouts + rollouts)
        error = math.sqrt(pooled * (1 - pooled) * (1 / earlier_rollouts + 1 / rollouts))
        if earlier_rate - rate > max(drop, SURE * error):
            return True
    return False


def real_eval_due(config: MonitorConfig, update: int, last: int) -> bool:
    """Return whether real dev games are played after update number `update`.

    They also are after the `last` one: what training ends with is to be known.
    """
    every = config.real_eval_every
    return every > 0 and (update % every == 0 or update == last)


def best_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the row with the best success on real dev games.

    Of equal ones the row with the best return, and of these the first; reverted updates
    do not count, nor do those that destroyed a family's success (`destroyed/NAME`).
    None where no game was played.
    """
    evaluated = [
        i
        for i, r in enumerate(rows)
        if "real_success" in r
        and not r.get("reverted")
        and not any(k.startswith("destroyed/") for k in r)
    ]
    return max(evaluated, key=lambda i: dev_score(rows[i]), default=None)


def dev_score(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return what rows are ranked by: success on real dev games, then the return."""
    return row["real_success"], row.get("real_return", 0.0)


def _dream_and_reality_diverge(rows: Sequence[Mapping[str, Any]], gap: float) -> bool:
    """Whether dream success rose since the best real evaluation, and real success fell.

    Dream success is the mean over the three rows that end with the evaluation.
    """
    best = best_row(rows[:-1])
    if best is None or "real_success" not in rows[-1]:
        return False
    real_drop = rows[best]["real_success"] - rows[-1]["real_success"]
    dream_at_best, dream_at_end = (
        [r["success"] for r in rows[max(i - 2, 0) : i + 1] if "success" in r]
        for i in (best, len(rows) - 1)
    )
    if not dream_at_best or not dream_at_end:  # no rollout was scored
        return False
    rose = statistics.fmean(dream_at_end) > statistics.fmean(dream_at_best)
    return real_drop > gap and rose


def apply_remedies(weights: LossWeights, remedies: Sequence[str]) -> LossWeights:
    """Return the weights after the remedies; a weight of 0 becomes a small one."""
    # At least a small number: twice 0 would leave a weight at 0.
    w = weights
    if "entropy" in remedies:
        w = w._replace(entropy=max(2 * w.entropy, 1e-3))
    if "kl" in remedies:
        w = w._replace(kl=max(2 * w.kl, 1e-2))
    if "supervised" in remedies:
        w = w._replace(auxiliary=max(2 * w.auxiliary, 0.1))
    if "rewards" in remedies:
        w = w._replace(dense_rewards=0.5 * w.dense_rewards)
    return w
