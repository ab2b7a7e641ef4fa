"""The trust region: the size of an update, a line search, the KL controller.

Sizes are KL(new || old) over whole vocabularies, on the batch of the update. A clipped
loss only removes gradients; it does not keep a policy within any distance of the old
one (arXiv:2005.12729).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
from jaxtyping import Array

CONTROLLER_STEP = 0.1
"""Largest relative change of the KL coefficient per update."""


class UpdateSize(NamedTuple):
    """The size of an update on its batch, KL(new || old) in nats, and its gain.

    `mean_kl` and `max_kl` are over the policy's tokens. `max_turn_kl` is the largest
    sum over a turn, `mean_turn_kl` the mean of these sums. `gain` is the mean advantage
    of turns under the new policy, by importance sampling.
    """

    mean_kl: float
    max_kl: float
    max_turn_kl: float = 0.0
    gain: float = 0.0
    mean_turn_kl: float = 0.0


def backtracking_line_search(
    old: Any,
    new: Any,
    measure: Callable[[Any], UpdateSize],
    max_mean_kl: float,
    *,
    max_turn_kl: float = math.inf,
    max_steps: int = 8,
) -> tuple[Any, UpdateSize, float]:
    """Halve a step until it lies within the trust region (TRPO, arXiv:1502.05477, C).

    Within it the mean KL of a token is at most `max_mean_kl`, and the KL of every turn
    at most `max_turn_kl`. Returns (parameters, their size, fraction of the step): the
    fraction is 1, 1/2, 1/4, ..., or 0 with the old parameters where none of `max_steps`
    fractions is small enough, or where sizes are not finite.
    """
    # The KL is measured anew at each point: its quadratic approximation is poor for the
    # long steps that are to be cut.
    fraction, params = 1.0, new
    for _ in range(max_steps):
        size = measure(params)
        # Comparisons with NaN are false, so such a step is never accepted.
        if size.mean_kl <= max_mean_kl and size.max_turn_kl <= max_turn_kl:
            return params, size, fraction
        fraction /= 2
        params = interpolate(old, new, fraction)
    return old, UpdateSize(0.0, 0.0), 0.0


@jax.jit
def interpolate(old: Any, new: Any, fraction: float | Array) -> Any:
    """Return the parameters at that fraction of the way from `old` to `new`."""
    chex.assert_trees_all_equal_shapes_and_dtypes(old, new)  # or they are broadcast
    # `fraction` is an argument of the program, so that all fractions share one.
    return jax.tree.map(lambda a, b: a + fraction * (b - a), old, new)


def adapt_kl_coefficient(coefficient: float, kl: float, target: float) -> float:
    """Return the coefficient of the KL penalty after an update (arXiv:1909.08593).

    It changes in proportion to the relative error of `kl`, clipped to 20 %: by
    CONTROLLER_STEP of itself at most.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return coefficient * (1.0 + CONTROLLER_STEP * error / 0.2)
