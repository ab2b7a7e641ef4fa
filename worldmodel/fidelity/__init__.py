"""How far an experience model can be trusted: agreement with held-out transitions."""

from worldmodel.fidelity.card import calibrated, score, threshold
from worldmodel.fidelity.errors import Errors, largest_errors
from worldmodel.fidelity.rows import kind_of

__all__ = [
    "Errors", "calibrated", "kind_of", "largest_errors", "score", "threshold",
]  # fmt: skip
