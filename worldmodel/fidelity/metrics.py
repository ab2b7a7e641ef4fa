"""Metrics on plain values: changed lines, calibration, detection."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

from worldmodel.data.records import State


def changed_lines(before: State, after: State) -> Counter[tuple[str, str]]:
    """Return the removed and added lines as a multiset of (sign, line)."""
    removed, added = Counter(before) - Counter(after), Counter(after) - Counter(before)
    return Counter({("-", x): n for x, n in removed.items()}) + Counter(
        {("+", x): n for x, n in added.items()}
    )


def changed_line_overlap(
    before: State, real: State, predicted: State
) -> tuple[int, int, int]:
    """Return the numbers of changed lines: (shared, predicted, real).

    Shared over predicted is the precision, shared over real the recall.
    """
    real_lines = changed_lines(before, real)
    predicted_lines = changed_lines(before, predicted)
    shared = (real_lines & predicted_lines).total()
    return shared, predicted_lines.total(), real_lines.total()


def auroc(
    score: Float[np.ndarray, " N"], label: Bool[np.ndarray, " N"]
) -> float | None:
    """Return the probability that a positive case scores above a negative one.

    Ties count half; scores that are unknown (NaN) are left out. None where all cases
    have one label.
    """
    finite = np.isfinite(score)
    score, label = score[finite], label[finite]
    positive = int(label.sum())
    negative = len(label) - positive
    if not positive or not negative:
        return None
    rank = scipy.stats.rankdata(score)  # equal scores share their mean rank
    wins = rank[label].sum() - positive * (positive + 1) / 2
    return float(wins / (positive * negative))


def reliability(
    confidence: Float[np.ndarray, " N"],
    label: Bool[np.ndarray, " N"],
    weights: Float[np.ndarray, " N"] | None = None,
    *,
    bins: int = 10,
) -> list[dict[str, float]]:
    """Return mean confidence and share of positives in bins of equal width over [0, 1].

    Values outside (a cosine may be) count into the first or the last bin. Means are
    weighted; `count` is the number of cases of a bin, `weight` the sum of their
    weights.
    """
    weights = np.ones(len(confidence)) if weights is None else weights
    place = np.clip((confidence * bins).astype(int), 0, bins - 1)
    out = []
    for b in range(bins):
        inside = place == b
        if inside.any():
            out.append(
                {
                    "confidence": weighted_mean(confidence[inside], weights[inside]),
                    "right": weighted_mean(label[inside], weights[inside]),
                    "count": int(inside.sum()),
                    "weight": float(weights[inside].sum()),
                }
            )
    return out


def calibration_error(bins: Sequence[dict[str, float]]) -> float | None:
    """Return the ECE: the mean gap of confidence and share right, by weight of bins."""
    total = sum(b["weight"] for b in bins)
    if not total:
        return None
    return sum(b["weight"] * abs(b["confidence"] - b["right"]) for b in bins) / total


def weighted_mean(
    values: Float[np.ndarray, " N"] | Bool[np.ndarray, " N"],
    weights: Float[np.ndarray, " N"],
) -> float:
    """Return the mean of at least one value, each as often as its weight says."""
    return float((values * weights).sum() / weights.sum())


def weighted_quantile(
    values: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"], share: float
) -> float:
    """Return the value below which a share of the weight lies, interpolated.

    With equal weights it is NumPy's quantile. There is at least one value.
    """
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    if len(values) == 1:
        return float(values[0])
    steps = (weights[1:] + weights[:-1]) / 2
    positions = np.concatenate([[0.0], np.cumsum(steps)]) / steps.sum()
    return float(np.interp(share, positions, values))
