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
from worldmodel.experience.base import Prediction, is_correct

PROBABILITIES = {"confidence": "confidence", "earns": "p_reward", "ends": "p_terminal"}
"""The fields of a Prediction that are probabilities, by their key in run files."""
MIN_SLOPE = 1e-3
EDGE = 1e-6
"""Probabilities are clipped to [EDGE, 1 - EDGE] before their logit is taken."""


class Platt(NamedTuple):
    """p -> sigmoid(slope * logit(p) + offset); (1, 0) leaves p as it is."""

    slope: float = 1.0
    offset: float = 0.0

    def __call__(self, p: float) -> float:
        """The chance that p stands for; NaN, which is not known, stays NaN."""
        x = self.slope * _logit(np.array([p])) + self.offset
        return float(1 / (1 + np.exp(-x[0])))


IDENTITY = Platt()


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
    cases that is the answer, and a few do not move it far. The order of the
    probabilities is kept: a slope below MIN_SLOPE becomes MIN_SLOPE, and the offset is
    fitted to that.
    """
    x, one = _logit(p), np.ones(len(p))
    slope, offset = _newton(np.stack([x, one], 1), true, 0 * x, (1.0, 0.0), strength)
    if slope < MIN_SLOPE:
        (offset,) = _newton(one[:, None], true, MIN_SLOPE * x, (0.0,), strength)
        slope = MIN_SLOPE
    return Platt(float(slope), float(offset))


def _newton(x, true, base, prior, strength) -> np.ndarray:
    """Weights of x [N, K] that tell best what is true [N], beside logits `base` [N].

    Newton's steps, halved where they go too far; the problem is strictly convex.
    """
    prior = np.array(prior)

    def loss(w) -> float:
        z = x @ w + base
        distance = ((w - prior) ** 2).sum()
        return float(
            np.logaddexp(0, np.where(true, -z, z)).sum() + strength * distance / 2
        )

    weight = prior
    for _ in range(100):
        q = 1 / (1 + np.exp(-(x @ weight + base)))
        gradient = x.T @ (true - q) - strength * (weight - prior)
        hessian = (x * (q * (1 - q))[:, None]).T @ x + strength * np.eye(len(prior))
        step = np.linalg.solve(hessian, gradient)
        while np.abs(step).max() > 1e-9 and loss(weight + step) > loss(weight):
            step = step / 2
        if np.abs(step).max() <= 1e-9:
            break
        weight = weight + step
    return weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """A scaling for each chance of an answer."""

    confidence: Platt = IDENTITY
    p_reward: Platt = IDENTITY
    p_terminal: Platt = IDENTITY

    def __call__(self, answer: Prediction) -> Prediction:
        """The answer with its chances as they come true."""
        names = PROBABILITIES.values()
        scaled = {n: getattr(self, n)(getattr(answer, n)) for n in names}
        return answer._replace(**scaled)

    def json(self) -> dict[str, list[float]]:
        """Plain data."""
        return {key: list(getattr(self, n)) for key, n in PROBABILITIES.items()}

    @classmethod
    def parsed(cls, row: dict[str, Any]) -> "Calibration":
        """What `json` wrote."""
        return cls(**{n: Platt(*row[key]) for key, n in PROBABILITIES.items()})


def labels(
    answers: Sequence[Prediction], real: Sequence[Transition]
) -> dict[str, Bool[np.ndarray, " N"]]:
    """What each chance is the chance of, as it really was."""
    pairs = list(zip(answers, real, strict=True))
    out = {
        "confidence": [is_correct(a, t) for a, t in pairs],
        "earns": [t.reward != 0 for t in real],
        "ends": [t.terminated for t in real],
    }
    return {key: np.array(x, bool) for key, x in out.items()}


def calibration(
    answers: Sequence[Prediction], real: Sequence[Transition]
) -> Calibration:
    """Fitted to held-out answers; a chance that is not known is left as it is."""
    true, parts = labels(answers, real), {}
    for key, name in PROBABILITIES.items():
        p = np.array([getattr(a, name) for a in answers], float)
        finite = np.isfinite(p)
        parts[name] = platt(p[finite], true[key][finite])
    return Calibration(**parts)
