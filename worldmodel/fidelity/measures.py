"""Measures on plain values: rates, overlap of lines, calibration, detection."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from worldmodel.data.records import State


def changed_lines(before: State, after: State) -> Counter[tuple[str, str]]:
    """The lines that went and came, as a multiset of (sign, line)."""
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return Counter({("-", x): n for x, n in gone.items()}) + Counter(
        {("+", x): n for x, n in come.items()}
    )


def overlap(before: State, truth: State, said: State) -> tuple[int, int, int]:
    """(shared, said, true) numbers of changed lines: what precision and recall need."""
    real, told = changed_lines(before, truth), changed_lines(before, said)
    return (real & told).total(), told.total(), real.total()


def auroc(
    score: Float[np.ndarray, " N"], right: Bool[np.ndarray, " N"]
) -> float | None:
    """The chance that a right case scores above a wrong one, ties counting half.

    None where all cases are of one kind.
    """
    positive = int(right.sum())
    negative = len(right) - positive
    if not positive or not negative:
        return None
    _, place, number = np.unique(score, return_inverse=True, return_counts=True)
    last = np.cumsum(number)
    rank = (last - (number - 1) / 2)[place]  # equal scores share their mean rank
    won = rank[right].sum() - positive * (positive + 1) / 2
    return float(won / (positive * negative))


def reliability(
    confidence: Float[np.ndarray, " N"], right: Bool[np.ndarray, " N"], bins: int = 10
) -> list[dict[str, float]]:
    """Mean confidence and share right in bins of equal width over [0, 1].

    What lies outside (a cosine may) is of the first or the last bin.
    """
    place = np.clip((confidence * bins).astype(int), 0, bins - 1)
    out = []
    for b in range(bins):
        inside = place == b
        if inside.any():
            out.append(
                {
                    "confidence": float(confidence[inside].mean()),
                    "right": float(right[inside].mean()),
                    "count": int(inside.sum()),
                }
            )
    return out


def calibration_error(bins: Sequence[dict[str, float]]) -> float | None:
    """ECE: the mean gap of confidence and share right, weighted by count."""
    total = sum(b["count"] for b in bins)
    if not total:
        return None
    return sum(b["count"] * abs(b["confidence"] - b["right"]) for b in bins) / total
