"""Chances held against what came true: is the answer right, does it earn, does it end.

Calibrated ones are cross-fitted: the scaling of one half of the tasks is fitted to the
other half, so that nothing is judged by what it was fitted to.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from worldmodel.experience.base import Prediction
from worldmodel.experience.calibration import CHANCES, calibration, came_true
from worldmodel.fidelity import measures
from worldmodel.fidelity.rows import Row


def chances(asked: Sequence[Row], answers: Sequence[Prediction]) -> dict[str, Any]:
    """For each chance: how well it ranks, its calibration error as given and scaled.

    Reveals are left out: nobody can be right there. Answers without a chance (NaN) too.
    """
    kept = [i for i, r in enumerate(asked) if r.kind != "reveal"]
    rows, given = [asked[i] for i in kept], [answers[i] for i in kept]
    scaled = _cross_fitted(rows, given)
    true = came_true(given, [r.transition for r in rows])
    return {name: _judged(name, given, scaled, true[name]) for name in CHANCES}


def _judged(
    name: str,
    given: Sequence[Prediction],
    scaled: Sequence[Prediction],
    true: np.ndarray,
) -> dict[str, Any]:
    said = np.array([getattr(a, name) for a in given], float)
    known = np.isfinite(said)
    fair = np.array([getattr(a, name) for a in scaled], float)[known]
    said, true = said[known], true[known]
    return {
        "count": int(known.sum()),
        "came_true": float(true.mean()) if len(true) else None,
        "auroc": measures.auroc(said, true),
        "calibration_error": measures.calibration_error(
            measures.reliability(said, true)
        ),
        "calibrated_error": measures.calibration_error(
            measures.reliability(fair, true)
        ),
    }


def _cross_fitted(
    rows: Sequence[Row], answers: Sequence[Prediction]
) -> list[Prediction]:
    """Each half of the tasks scaled by what the other half says."""
    half = {t: i % 2 for i, t in enumerate(sorted({r.query.task.id for r in rows}))}
    out = list(answers)
    for mine in (0, 1):
        others = [i for i, r in enumerate(rows) if half[r.query.task.id] != mine]
        scale = calibration(
            [answers[i] for i in others], [rows[i].transition for i in others]
        )
        for i, r in enumerate(rows):
            if half[r.query.task.id] == mine:
                out[i] = scale(answers[i])
    return out
