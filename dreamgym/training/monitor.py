"""Signs that a policy breaks down while it trains, and the remedies for them.

rows of the training curve -> alarms -> weights of the loss after the remedies. All are
pure functions; recovery.py stops training or reverts updates by them. A policy may earn
ever more in a dream because it exploits what the dream gets wrong, so the sign that
counts most is what it earns on real dev games.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dreamgym.rl.config import LossWeights

ANSWERS = ("say", "stop", "back")
REMEDIES = ("entropy", "kl", "supervised", "rewards")
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
    "auxiliary": "beside_weight",
    "dense_rewards": "dense_weight",
}
"""The metric in which a row of the curve holds each of the LossWeights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """When an update counts as a breakdown, and what is done then; 0 disables a check.

    `entropy` is the smallest mean entropy in nats. `length` is how many times longer
    than in the first update turns may become, in tokens. `invalid` is the largest share
    of invalid actions. `jump` is how many times the median KL of the recent updates the
    KL of one may be. `gap` is how far success on real dev games may fall below its best
    while success in the dream rises; those games are played after every `probe`
    updates, `games` of them, and count as real transitions.

    `skill` compares families of tasks: a family raises an alarm when its success in the
    rollouts of the last SKILL_WINDOW updates is lower than in the best SKILL_WINDOW
    updates before, by more than `skill` and by more than SURE standard errors. A policy
    may improve in one family and forget another; success over all families hides that.

    With `answer` "say" training goes on, "stop" ends training before the update, and
    "back" reverts the update and applies the `remedies`: they double the weight of the
    entropy bonus, of the KL penalty or of supervised examples, or halve the weight of
    rewards that are not outcomes. A loss that is not finite is an error with "say".
    Training stops after `patience` reverted updates in a row.

    With `keep` training ends with the policy that did best on the real dev games (the
    first of equals), and an alarm of `gap` reverts to that policy.
    """

    entropy: float = 0.0
    length: float = 0.0
    invalid: float = 0.0
    jump: float = 0.0
    gap: float = 0.0
    skill: float = 0.15
    probe: int = 0
    games: int = 16
    keep: bool = False
    answer: str = "say"
    remedies: tuple[str, ...] = ("entropy", "kl")
    patience: int = 3

    def __post_init__(self):
        for name in (
            "entropy", "length", "invalid", "jump", "gap", "skill", "probe",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.answer not in ANSWERS:
            raise ValueError(f"answer must be one of {ANSWERS}, got {self.answer!r}")
        if unknown := [r for r in self.remedies if r not in REMEDIES]:
            raise ValueError(f"remedies must be among {REMEDIES}, got {unknown}")
        if self.gap and not self.probe:
            raise ValueError("gap is seen on real dev games: probe must be >= 1, got 0")
        if self.keep and not self.probe:
            raise ValueError("keep asks real dev games: probe must be >= 1, got 0")
        if self.games < 1 or self.patience < 1:
            raise ValueError(
                f"games and patience must be >= 1, got {self.games}, {self.patience}"
            )


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
    previous: Sequence[Mapping[str, Any]], row: Mapping[str, Any], config: WatchConfig
) -> list[str]:
    """Return the alarms that an update raises, by its row and those of updates before.

    Rows hold `entropy`, `tokens_per_turn`, `invalid` (or `unchanged`, where the
    environment does not say which actions are invalid), `moved`, `success` and, where
    real dev games were played, `probe`.
    """
    c, out = config, []
    if c.entropy and row.get("entropy", c.entropy) < c.entropy:
        out.append("entropy")
    lengths = (r["tokens_per_turn"] for r in previous if "tokens_per_turn" in r)
    first = next(lengths, None)
    if c.length and first and row.get("tokens_per_turn", 0.0) > c.length * first:
        out.append("length")
    if c.invalid and row.get("invalid", row.get("unchanged", 0.0)) > c.invalid:
        out.append("invalid")
    recent_kl = [r["moved"] for r in previous[-RECENT:] if r.get("moved")]
    if c.jump and len(recent_kl) >= 3:
        if row.get("moved", 0.0) > c.jump * statistics.median(recent_kl):
            out.append("jump")
    if c.gap and _dream_and_reality_diverge([*previous, row], c.gap):
        out.append("gap")
    if c.skill:
        lost = lost_families([*previous, row], c.skill)
        out += [f"skill: {name or 'the only family'}" for name in lost]
    return out


def lost_families(rows: Sequence[Mapping[str, Any]], drop: float) -> list[str]:
    """Return the families whose success fell by more than `drop`.

    Rows hold `success/NAME` and `scored/NAME`, the number of rollouts that the success
    is measured on. The last SKILL_WINDOW rows are compared with each window of as many
    earlier rows that does not overlap them; the difference must also exceed SURE
    standard errors. Reverted updates do not count.
    """
    valid = [r for r in rows if not r.get("undone")]
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
        pooled = (earlier_wins + wins) / (earlier_rollouts + rollouts)
        error = math.sqrt(pooled * (1 - pooled) * (1 / earlier_rollouts + 1 / rollouts))
        if earlier_rate - rate > max(drop, SURE * error):
            return True
    return False


def real_eval_due(config: WatchConfig, update: int) -> bool:
    """Return whether real dev games are played after update number `update`."""
    return config.probe > 0 and update % config.probe == 0


def best_row(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the index of the row with the best success on real dev games.

    The first of equals; reverted updates do not count. None where no game was played.
    """
    evaluated = [i for i, r in enumerate(rows) if "probe" in r and not r.get("undone")]
    return max(evaluated, key=lambda i: rows[i]["probe"], default=None)


def _dream_and_reality_diverge(rows: Sequence[Mapping[str, Any]], gap: float) -> bool:
    """Whether dream success rose since the best real evaluation, and real success fell.

    Dream success is the mean over the three rows that end with the evaluation.
    """
    best = best_row(rows[:-1])
    if best is None or "probe" not in rows[-1]:
        return False
    real_drop = rows[best]["probe"] - rows[-1]["probe"]
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
