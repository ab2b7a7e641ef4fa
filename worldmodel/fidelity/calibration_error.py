"""Calibration of probabilities: of a correct answer, of a reward, of an end.

Calibrated probabilities are cross-fitted: the scaling of one half of the tasks is
fitted to the other half, so that nothing is evaluated on what it was fitted to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.experience.base import Prediction
from worldmodel.experience.calibration import PROBABILITIES, calibration, labels
from worldmodel.fidelity import metrics
from worldmodel.fidelity.cases import Case


def probability_calibration(
    cases: Sequence[Case], answers: Sequence[Prediction]
) -> dict[str, Any]:
    """Return for each probability its AUROC and its calibration errors.

    As given (`calibration_error`) and after scaling (`calibrated_error`); `positive` is
    the share of cases in which the event happened. Reveals are left out, because they
    cannot be predicted, and so are answers with unknown probabilities (NaN).
    """
    predictable = [i for i, c in enumerate(cases) if c.predictable]
    cases, predictions = (
        [cases[i] for i in predictable],
        [answers[i] for i in predictable],
    )
    scaled = _cross_fit(cases, predictions)
    true = labels(predictions, [c.transition for c in cases])
    weights = np.array([c.weight for c in cases], float)
    return {
        key: _calibration_row(name, predictions, scaled, true[key], weights)
        for key, name in PROBABILITIES.items()
    }


def _calibration_row(
    name: str,
    predictions: Sequence[Prediction],
    scaled: Sequence[Prediction],
    true: np.ndarray,
    weights: np.ndarray,
) -> dict[str, Any]:
    p = np.array([getattr(a, name) for a in predictions], float)
    finite = np.isfinite(p)
    calibrated = np.array([getattr(a, name) for a in scaled], float)[finite]
    p, true, weights = p[finite], true[finite], weights[finite]
    return {
        "count": int(finite.sum()),
        "positive": metrics.weighted_mean(true, weights) if len(true) else None,
        "auroc": metrics.auroc(p, true),
        "calibration_error": metrics.calibration_error(
            metrics.reliability(p, true, weights)
        ),
        "calibrated_error": metrics.calibration_error(
            metrics.reliability(calibrated, true, weights)
        ),
    }


def _cross_fit(
    cases: Sequence[Case], answers: Sequence[Prediction]
) -> list[Prediction]:
    """Return the answers, each half of the tasks scaled by a fit to the other half."""
    half = {t: i % 2 for i, t in enumerate(sorted({c.query.task.id for c in cases}))}
    out = list(answers)
    for fold in (0, 1):
        others = [i for i, c in enumerate(cases) if half[c.query.task.id] != fold]
        scale = calibration(
            [answers[i] for i in others],
            [cases[i].transition for i in others],
            [cases[i].weight for i in others],
        )
        for i, c in enumerate(cases):
            if half[c.query.task.id] == fold:
                out[i] = scale(answers[i])
    return out
