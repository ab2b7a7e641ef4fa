"""Calibration of a model's probabilities by Platt scaling.

answers on held-out transitions -> a scaling for each of three probabilities (the answer
is correct, the reward is not 0, the episode ends) -> calibrated answers.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
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
        """Return the calibrated probability; NaN (unknown) stays NaN."""
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
    weights: Float[np.ndarray, " N"] | None = None,
    strength: float | int = 1.0,
) -> Platt:
    """Fit penalised logistic regression of labels on the logit of p (Platt, 1999).

    Each case counts with its weight, relative to their mean; by default all equally.

    A Gaussian prior of precision `strength` has its mode at slope and offset (1, 0),
    which is the answer without cases. The order of the probabilities is kept: a slope
    below MIN_SLOPE becomes MIN_SLOPE, and the offset is fitted to that.
    """
    x, one = _logit(p), np.ones(len(p))
    w = one if weights is None or not len(p) else weights / weights.mean()
    slope, offset = _logistic_regression(
        np.stack([x, one], 1), true, w, 0 * x, (1.0, 0.0), strength
    )
    if slope < MIN_SLOPE:
        (offset,) = _logistic_regression(
            one[:, None], true, w, MIN_SLOPE * x, (0.0,), strength
        )
        slope = MIN_SLOPE
    return Platt(float(slope), float(offset))


def _logistic_regression(x, labels, counts, base, prior, strength) -> np.ndarray:
    """Return the weights of x [N, K] that best predict the labels [N].

    They minimise the penalised logistic loss, which is strictly convex; `counts` [N]
    says how often each case counts. `base` [N] are logits that are added to x w.
    """
    prior = np.array(prior)

    def probability(w):
        return scipy.special.expit(x @ w + base)

    def loss(w):
        z = x @ w + base
        distance = ((w - prior) ** 2).sum()
        losses = np.logaddexp(0, np.where(labels, -z, z))
        return (counts * losses).sum() + strength * distance / 2

    def gradient(w):
        return x.T @ (counts * (probability(w) - labels)) + strength * (w - prior)

    def hessian(w):
        q = probability(w)
        curvature = (counts * q * (1 - q))[:, None]
        return (x * curvature).T @ x + strength * np.eye(len(prior))

    return scipy.optimize.minimize(
        loss,
        prior,
        jac=gradient,
        hess=hessian,
        method="trust-exact",
        options={"gtol": 1e-9},
    ).x


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """A scaling for each probability of an answer."""

    confidence: Platt = IDENTITY
    p_reward: Platt = IDENTITY
    p_terminal: Platt = IDENTITY

    def __call__(self, answer: Prediction) -> Prediction:
        """Return the answer with calibrated probabilities."""
        names = PROBABILITIES.values()
        scaled = {n: getattr(self, n)(getattr(answer, n)) for n in names}
        return answer._replace(**scaled)

    def json(self) -> dict[str, list[float]]:
        """Return the scalings as plain data."""
        return {key: list(getattr(self, n)) for key, n in PROBABILITIES.items()}

    @classmethod
    def parsed(cls, row: dict[str, Any]) -> "Calibration":
        """Return the calibration that `json` wrote."""
        return cls(**{n: Platt(*row[key]) for key, n in PROBABILITIES.items()})


def labels(
    answers: Sequence[Prediction], real: Sequence[Transition]
) -> dict[str, Bool[np.ndarray, " N"]]:
    """Return for each probability, by its key, whether its event really happened."""
    pairs = list(zip(answers, real, strict=True))
    out = {
        "confidence": [is_correct(a, t) for a, t in pairs],
        "earns": [t.reward != 0 for t in real],
        "ends": [t.terminated for t in real],
    }
    return {key: np.array(x, bool) for key, x in out.items()}


def calibration(
    answers: Sequence[Prediction],
    real: Sequence[Transition],
    weights: Sequence[float] | None = None,
) -> Calibration:
    """Fit a Calibration to held-out answers; unknown probabilities stay unscaled.

    `weights` say how many transitions each case stands for, where rare ones were drawn
    more often than others: else the rates of the draw would be learnt.
    """
    true, parts = labels(answers, real), {}
    counts = np.ones(len(answers)) if weights is None else np.array(weights, float)
    for key, name in PROBABILITIES.items():
        p = np.array([getattr(a, name) for a in answers], float)
        finite = np.isfinite(p)
        parts[name] = platt(p[finite], true[key][finite], weights=counts[finite])
    return Calibration(**parts)
