"""Chances as a model gives them, and as often as they come true.

answers on held-out transitions -> Platt scaling of three chances (the answer is right,
it earns something, the episode ends) -> the same answers with honest chances.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from worldmodel.data.records import Transition
from worldmodel.experience.base import Prediction, right

CHANCES = ("confidence", "earns", "ends")
LEAST = 1e-3
EDGE = 1e-6
"""Chances are read as if they lay this far inside (0, 1)."""


class Platt(NamedTuple):
    """p -> sigmoid(slope * logit(p) + offset); (1, 0) leaves p as it is."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, p: float) -> float:
        """The chance that p stands for; NaN, which is not known, stays NaN."""
        x = self.slope * _logit(np.array([p])) + self.offset
        return float(1 / (1 + np.exp(-x[0])))


AS_GIVEN = Platt()


def _logit(p: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    inside = np.clip(p, EDGE, 1 - EDGE)
    return np.log(inside) - np.log1p(-inside)


def platt(
    p: Float[np.ndarray, " N"],
    true: Bool[np.ndarray, " N"],
    *,
    strength: float | int = 1.0,
) -> Platt:
    """Penalised logistic regression of what came true on the logit of p (Platt 1999).

    A Gaussian prior of precision `strength` holds slope and offset at (1, 0): without
    cases that is the answer, and a few do not move it far. The order of chances is
    kept: where the best slope is not positive it is LEAST, and the offset fits that.
    """
    x, one = _logit(p), np.ones(len(p))
    slope, offset = _fitted(np.stack([x, one], 1), true, 0 * x, (1.0, 0.0), strength)
    if slope < LEAST:
        (offset,) = _fitted(one[:, None], true, LEAST * x, (0.0,), strength)
        slope = LEAST
    return Platt(float(slope), float(offset))


def _fitted(x, true, base, prior, strength) -> np.ndarray:
    """Weights of x [N, K] that tell best what is true [N], beside logits `base` [N].

    Newton's steps, halved where they go too far; the problem is strictly convex.
    """
    prior = np.array(prior)

    def loss(w) -> float:
        z = x @ w + base
        far = ((w - prior) ** 2).sum()
        return float(np.logaddexp(0, np.where(true, -z, z)).sum() + strength * far / 2)

    weight = prior
    for _ in range(100):
        q = 1 / (1 + np.exp(-(x @ weight + base)))
        slope = x.T @ (true - q) - strength * (weight - prior)
        curve = (x * (q * (1 - q))[:, None]).T @ x + strength * np.eye(len(prior))
        move = np.linalg.solve(curve, slope)
        while np.abs(move).max() > 1e-9 and loss(weight + move) > loss(weight):
            move = move / 2
        if np.abs(move).max() <= 1e-9:
            break
        weight = weight + move
    return weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """A scaling for each chance of an answer."""

    confidence: Platt = AS_GIVEN
    earns: Platt = AS_GIVEN
    ends: Platt = AS_GIVEN

    def __call__(self, answer: Prediction) -> Prediction:
        """The answer with its chances as they come true."""
        found = {n: getattr(self, n)(getattr(answer, n)) for n in CHANCES}
        return answer._replace(**found)

    def json(self) -> dict[str, list[float]]:
        """Plain data."""
        return {n: list(getattr(self, n)) for n in CHANCES}

    @classmethod
    def parsed(cls, told: dict[str, Any]) -> "Calibration":
        """What `json` wrote."""
        return cls(**{n: Platt(*told[n]) for n in CHANCES})


def came_true(
    answers: Sequence[Prediction], real: Sequence[Transition]
) -> dict[str, Bool[np.ndarray, " N"]]:
    """What each chance is the chance of, as it really was."""
    pairs = list(zip(answers, real, strict=True))
    found = {
        "confidence": [right(a, t) for a, t in pairs],
        "earns": [t.reward != 0 for t in real],
        "ends": [t.terminated for t in real],
    }
    return {n: np.array(x, bool) for n, x in found.items()}


def calibration(
    answers: Sequence[Prediction], real: Sequence[Transition]
) -> Calibration:
    """Fitted to held-out answers; a chance that is not known is left as it is."""
    true, parts = came_true(answers, real), {}
    for name in CHANCES:
        said = np.array([getattr(a, name) for a in answers], float)
        known = np.isfinite(said)
        parts[name] = platt(said[known], true[name][known])
    return Calibration(**parts)
