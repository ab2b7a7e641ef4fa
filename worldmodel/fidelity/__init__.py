"""How far an experience model can be trusted: agreement with held-out transitions."""

from worldmodel.fidelity.cases import kind_of
from worldmodel.fidelity.confidences import confidence_threshold, fit_calibration
from worldmodel.fidelity.scorecard import ends_recalled, score
from worldmodel.fidelity.worst_case import Errors, largest_errors

__all__ = [
    "Errors",
    "confidence_threshold",
    "ends_recalled",
    "fit_calibration",
    "kind_of",
    "largest_errors",
    "score",
]
