"""Signs that a policy breaks down while it trains, and what is done about them.

rows of the training curve -> alarms (pure) -> stop, or go back and turn the weights of
the loss. A policy may earn ever more in a dream because it found what the dream gets
wrong: the one sign that counts is what it earns on real dev games.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ANSWERS = ("say", "stop", "back")
REMEDIES = ("entropy", "kl", "supervised", "rewards")
NOT_FINITE = "not finite"
RECENT = 8
"""Updates that make up what is usual."""
SKILL_WINDOW = 4
"""Updates over which a family's success is pooled."""
SURE = 3.0
"""Standard errors by which a family's success must fall to be called lost."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """When to call it a breakdown, and what then; 0 does not look.

    `entropy` is a floor in nats; `length` how many times the turns of the first update
    a turn may be long; `invalid` the largest share of refused actions; `jump` how many
    times the median KL of the updates before one may be; `gap` how far success on real
    dev games may fall below its best while that in the dream rises. They are played
    after every `probe` updates, `games` of them, and count as real transitions.

    A `skill` is lost when a family's success in the rollouts of the last SKILL_WINDOW
    updates is so much below that of the best SKILL_WINDOW updates before, and by more
    than SURE standard errors: a policy may win more in one family and forget another,
    and the success over both shows nothing of it.

    `answer` "say" goes on, "stop" ends training before the update, "back" undoes it and
    applies `remedies`: double the weight of the entropy, of the KL, of supervised
    examples, or halve that of rewards that are no outcome's. A loss that is not finite
    is an error where the answer is "say". After `patience` undone updates in a row
    training stops.

    With `keep` training ends with the policy that did best on those games, the first of
    equals, and an undone `gap` goes back to it rather than to the update before.
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


class Weights(NamedTuple):
    """What is turned while training runs: weights beside the surrogate's 1.

    `dense` multiplies rewards that are no outcome's (docs/REWARDS.md).
    """

    kl: float
    entropy: float = 0.0
    beside: float = 0.0
    dense: float = 1.0


def weights_of(row: Mapping[str, Any], start: Weights) -> Weights:
    """The weights that a row of the curve ended with; `start` where it tells none."""
    return Weights(
        *(row.get(f"{name}_weight", value) for name, value in start._asdict().items())
    )


def alarms(
    before: Sequence[Mapping[str, Any]], row: Mapping[str, Any], config: WatchConfig
) -> list[str]:
    """What is wrong with an update, by its row and those before it.

    Rows hold `entropy`, `tokens_per_turn`, `invalid` (or `unchanged`, where nobody says
    which action was refused), `moved`, `success` and, where games were played, `probe`.
    """
    c, out = config, []
    if c.entropy and row.get("entropy", c.entropy) < c.entropy:
        out.append("entropy")
    first = next((r["tokens_per_turn"] for r in before if "tokens_per_turn" in r), None)
    if c.length and first and row.get("tokens_per_turn", 0.0) > c.length * first:
        out.append("length")
    if c.invalid and row.get("invalid", row.get("unchanged", 0.0)) > c.invalid:
        out.append("invalid")
    usual = [r["moved"] for r in before[-RECENT:] if r.get("moved")]
    if c.jump and len(usual) >= 3:
        if row.get("moved", 0.0) > c.jump * statistics.median(usual):
            out.append("jump")
    if c.gap and _parted([*before, row], c.gap):
        out.append("gap")
    if c.skill:
        lost = lost_families([*before, row], c.skill)
        out += [f"skill: {name or 'the only family'}" for name in lost]
    return out


def lost_families(rows: Sequence[Mapping[str, Any]], drop: float) -> list[str]:
    """Return the families that win less than they did, by more than `drop`.

    Rows hold `success/NAME` and the number `scored/NAME` of rollouts that it is of.
    Compared are the last SKILL_WINDOW rows with each so many rows before them that do
    not overlap; the difference must also exceed SURE standard errors. Updates that were
    undone do not count.
    """
    kept = [r for r in rows if not r.get("undone")]
    names = sorted({k.partition("/")[2] for r in kept for k in r if "scored/" in k})
    return [name for name in names if _has_dropped(kept, name, drop)]


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
    rates = [(sum(w for w, _ in x), sum(n for _, n in x)) for x in windows]
    *_, (won, total) = rates
    now = won / total
    for before, many in rates[: len(rates) - size]:
        then, pooled = before / many, (before + won) / (many + total)
        error = math.sqrt(pooled * (1 - pooled) * (1 / many + 1 / total))
        if then - now > max(drop, SURE * error):
            return True
    return False


def due(config: WatchConfig, update: int) -> bool:
    """Whether real dev games are played after an update."""
    return config.probe > 0 and update % config.probe == 0


def best(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The row whose update did best on real dev games, the first of equals.

    Updates that were undone do not count; None where no game was played yet.
    """
    probed = [i for i, r in enumerate(rows) if "probe" in r and not r.get("undone")]
    return max(probed, key=lambda i: rows[i]["probe"], default=None)


def _parted(rows: Sequence[Mapping[str, Any]], gap: float) -> bool:
    """Whether the dream's success rose since the best probe, and the real one fell."""
    before = best(rows[:-1])
    if before is None or "probe" not in rows[-1]:
        return False
    fell = rows[before]["probe"] - rows[-1]["probe"]
    then, now = (
        [r["success"] for r in rows[max(i - 2, 0) : i + 1] if "success" in r]
        for i in (before, len(rows) - 1)
    )
    if not then or not now:  # no rollout was scored
        return False
    return fell > gap and statistics.fmean(now) > statistics.fmean(then)


def remedied(weights: Weights, remedies: Sequence[str]) -> Weights:
    """The weights after the remedies; one that was 0 begins small."""
    w = weights
    if "entropy" in remedies:
        w = w._replace(entropy=max(2 * w.entropy, 1e-3))
    if "kl" in remedies:
        w = w._replace(kl=max(2 * w.kl, 1e-2))
    if "supervised" in remedies:
        w = w._replace(beside=max(2 * w.beside, 0.1))
    if "rewards" in remedies:
        w = w._replace(dense=0.5 * w.dense)
    return w
