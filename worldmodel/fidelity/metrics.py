"""Metrics on plain values: weighted rates, changed lines, calibration, detection."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from worldmodel.text.records import State


@dataclasses.dataclass
class Rate:
    """A mean over weighted cases, kept as sums until it is printed.

    `count` is the number of cases; `weight` and `squared` are the sums of their weights
    and of the squares of these.
    """

    hits: float = 0.0
    weight: float = 0.0
    squared: float = 0.0
    count: int = 0

    def add(self, hit: float | int, weight: float = 1.0) -> None:
        """Count a case: a hit or a part of one, and how many cases it stands for."""
        self.hits += weight * hit
        self.weight += weight
        self.squared += weight**2
        self.count += 1

    @classmethod
    def of(cls, hits: int, count: int) -> "Rate":
        """Return the rate of so many hits among cases of equal weight."""
        return cls(float(hits), float(count), float(count), count)

    def json(self) -> dict[str, Any]:
        """Return {mean, count, effective}; the mean of no cases is None.

        `effective` is Kish's effective sample size, (sum w)^2 / sum w^2: as many cases
        of equal weight say as much. Intervals are computed from it.
        """
        return {
            "mean": self.hits / self.weight if self.weight else None,
            "count": self.count,
            "effective": self.weight**2 / self.squared if self.squared else 0.0,
        }


def changed_lines(before: State, after: State) -> Counter[tuple[str, str]]:
    """Return the lines that went and came, as a multiset of (sign, line)."""
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return Counter({("-", x): n for x, n in gone.items()}) + Counter(
        {("+", x): n for x, n in come.items()}
    )


def changed_line_overlap(
    before: State, real: State, predicted: State
) -> tuple[int, int, int]:
    """Return the numbers of changed lines (shared, predicted, real).

    Shared over predicted is the precision, shared over real the recall.
    """
    true, said = changed_lines(before, real), changed_lines(before, predicted)
    return (true & said).total(), said.total(), true.total()


def auroc(
    score: Float[np.ndarray, " N"], label: Bool[np.ndarray, " N"]
) -> float | None:
    """Return the chance that a positive case scores above a negative one.

    Ties count half. None where all cases have one label.
    """
    positive = int(label.sum())
    negative = len(label) - positive
    if not positive or not negative:
        return None
    _, place, number = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(number)
    rank = (last - (number - 1) / 2)[place]  # equal scores share their mean rank
    won = rank[label].sum() - positive * (positive + 1) / 2
    return float(won / (positive * negative))


def reliability(
    confidence: Float[np.ndarray, " N"], label: Bool[np.ndarray, " N"], bins: int = 10
) -> list[dict[str, float]]:
    """Return mean confidence and share of positives in bins of equal width over [0, 1].

    Values outside (a cosine may be) count into the first or the last bin.
    """
    place = np.clip((confidence * bins).astype(int), 0, bins - 1)
    out = []
    for b in range(bins):
        inside = place == b
        if inside.any():
            out.append(
                {
                    "confidence": float(confidence[inside].mean()),
                    "right": float(label[inside].mean()),
                    "count": int(inside.sum()),
                }
            )
    return out


def calibration_error(bins: Sequence[dict[str, float]]) -> float | None:
    """Return the ECE: the mean gap of confidence and share right, weighted by count."""
    total = sum(b["count"] for b in bins)
    if not total:
        return None
    return sum(b["count"] * abs(b["confidence"] - b["right"]) for b in bins) / total
