"""How far an experience model can be trusted: agreement with held-out transitions."""

from worldmodel.fidelity.card import calibrated, score, threshold
from worldmodel.fidelity.rows import kind_of

__all__ = ["calibrated", "kind_of", "score", "threshold"]
