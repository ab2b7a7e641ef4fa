"""What is turned while training runs: the weight of the KL term."""

STEP = 0.1
"""How much the weight changes at most, as a share of itself, an update."""


def adapted(weight: float, measured: float, target: float) -> float:
    """The KL's weight after an update whose distance was `measured` (arXiv:1909.08593).

    In proportion to how far it lies from `target`, 20 % of it at most.
    """
    error = min(max(measured / target - 1.0, -0.2), 0.2)
    return weight * (1.0 + STEP * error / 0.2)
