"""How far an update moved the policy, and the way back where that was too far.

KL(new || old) over whole vocabularies on the batch that the update was made from. A
clipped loss only takes gradients away; it does not hold a policy within any distance.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array


class Distance(NamedTuple):
    """What an update did on its batch: KL(new || old) in nats, and what it gained.

    `mean` and `largest` are of the policy's tokens; `turn` is the largest sum over a
    turn, `turn_mean` the mean over turns; `gain` is the mean advantage of turns under
    the new policy, by importance.
    """

    mean: float
    largest: float
    turn: float = 0.0
    gain: float = 0.0
    turn_mean: float = 0.0


def backtracked(
    old: Any,
    new: Any,
    measure: Callable[[Any], Distance],
    radius: float,
    *,
    max_turn_kl: float = math.inf,
    most: int = 8,
) -> tuple[Any, Distance, float]:
    """Return the longest of the step's halves that stays within the trust region.

    That is a mean KL of at most `radius` a token, and of at most `max_turn_kl` in any
    one turn. Returned are (parameters, their distance, share of the step taken): 1,
    1/2, 1/4, ... and 0 where none of `most` is near enough (or its distance is no
    number), which is to stay.
    """
    share, params = 1.0, new
    for _ in range(most):
        found = measure(params)
        # Comparisons are false where a distance is no number.
        if found.mean <= radius and found.turn <= max_turn_kl:
            return params, found, share
        share /= 2
        params = between(old, new, share)
    return old, Distance(0.0, 0.0), 0.0


@jax.jit
def between(old: Any, new: Any, share: float | Array) -> Any:
    """Parameters that share of the way from `old` to `new`."""
    return jax.tree.map(lambda a, b: a + share * (b - a), old, new)
