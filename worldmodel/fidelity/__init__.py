"""How far an experience model can be trusted: agreement with held-out transitions."""

from worldmodel.fidelity.card import score, threshold
from worldmodel.fidelity.rows import kind_of

__all__ = ["kind_of", "score", "threshold"]
