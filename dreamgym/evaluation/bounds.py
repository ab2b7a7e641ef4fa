"""The bound of Theorem 1 of DreamGym (arXiv:2511.03773, App. B.1, Eq. 9 and 26).

surrogate gain in the dream - trust-region term - experience-model term -> a lower
bound on how much better the new policy is in the real environment. Returns are
discounted sums of rewards in [0, Rmax], so they lie in [0, Rmax / (1 - gamma)].
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class BoundSizeError(ValueError):
    """Numbers are finite, and so large that what follows from them is not."""


class Bound(NamedTuple):
    """The terms of Theorem 1: the improvement is at least `gain - trust - model`.

    `span` is the largest possible difference between two returns.
    """

    gain: float
    trust: float
    model: float
    span: float

    @property
    def total(self) -> float:
        """The lower bound on the improvement in the real environment."""
        return self.gain - self.trust - self.model


def lemma1(*, eps_r: float, eps_p: float, discount: float, r_max: float) -> float:
    """Return how far a policy's returns in dream and reality can be apart (Eq. 26).

    Args:
      eps_r: the supremum over (state, action) of the error of the reward.
      eps_p: the supremum of the total variation between real and dreamed next states.

    Raises:
      ValueError: a discount outside [0, 1), a negative size, a number that is not
        finite, or numbers so large that the result is not.
    """
    _check(discount, r_max, eps_r=eps_r, eps_p=eps_p)
    rest = 1.0 - discount
    distance = eps_r / rest + 2.0 * discount * r_max / rest**2 * eps_p
    if not math.isfinite(distance):
        raise BoundSizeError(
            f"eps_r, eps_p and r_max are too large for a bound, got {distance}"
        )
    return distance


def theorem1(
    *,
    gain: float,
    delta: float,
    eps_r: float,
    eps_p: float,
    discount: float,
    r_max: float,
) -> Bound:
    """Return Eq. 9 for an update whose KL(new || old) is at most `delta` everywhere.

    Args:
      gain: the mean advantage, in the dream, of the new policy's actions in the states
        that the old policy visits; it is divided by 1 - discount here.

    Raises:
      ValueError: a discount outside [0, 1), a negative size, a number that is not
        finite, or numbers so large that a term is not.
    """
    _check(discount, r_max, delta=delta)
    if not math.isfinite(gain):
        raise ValueError(f"gain must be finite, got {gain}")
    rest = 1.0 - discount
    v_max = r_max / rest
    trust = 4.0 * discount / rest**2 * v_max * delta
    model = 2.0 * lemma1(eps_r=eps_r, eps_p=eps_p, discount=discount, r_max=r_max)
    bound = Bound(gain / rest, trust, model, v_max)
    if not all(map(math.isfinite, (*bound, bound.total))):
        raise BoundSizeError(
            f"gain, r_max, delta and the errors are too large for a bound, got {bound}"
        )
    return bound


def _check(discount: float, r_max: float, **sizes: float) -> None:
    if not 0.0 <= discount < 1.0:
        raise ValueError(f"discount must be in [0, 1), got {discount}")
    for name, value in {"r_max": r_max, **sizes}.items():
        if not 0.0 <= value < math.inf:  # also where it is no number
            raise ValueError(f"{name} must be >= 0 and finite, got {value}")


def sentence(bound: Bound, *, discount: float, measured: int) -> str:
    """Return a sentence on what the bound says, if anything.

    `measured` is the number of transitions from which eps_r and eps_p are estimated.
    The largest error among them is at most the supremum, so that the terms which are
    subtracted are underestimated.
    """
    _, worst = max((bound.trust, "The step"), (bound.model, "The experience model"))
    if bound.total > 0:
        verdict = "the new policy is better in the real environment, if no error is"
        verdict += " larger than those seen."
    elif bound.total > -bound.span:
        verdict = f"it promises no gain. {worst} costs most."
    else:
        verdict = f"it says nothing, as no policy can lose more than {bound.span:.3g}."
        verdict += f" {worst} costs most."
    return (
        f"Theorem 1 at discount {discount:g}: {bound.gain:.3g} gained in the dream, "
        f"less {bound.trust:.3g} for the step and {bound.model:.3g} for the experience "
        f"model, leaves {bound.total:.3g}: {verdict} Errors are the largest among "
        f"{measured} transitions, lower estimates of suprema: the truth may be worse."
    )


def says_something(bound: Mapping[str, Any]) -> bool:
    """Return whether a bound, as `best_bound` gives it, is more than trivial.

    It is trivial unless it excludes the largest possible loss.
    """
    total, span = bound.get("total"), bound.get("span")
    return total is not None and span is not None and total > -span


def best_bound(
    curve: Sequence[Mapping[str, float | int]],
    *,
    discount: float,
    eps_r: float,
    eps_p: float,
    r_max: float,
    measured: int,
) -> dict[str, Any] | None:
    """Return the largest bound among the updates of a curve, in numbers and words.

    The rows have `surrogate_gain` and `update_kl_max_turn`, the largest KL of a turn.
    No advantage exceeds r_max / (1 - discount): a larger gain shows that there are
    larger rewards, and raises r_max. None if there was no update, if returns are not
    discounted, or if rewards are so large that a bound is no finite number.
    """
    rows = [
        row
        for row in curve
        if "surrogate_gain" in row
        and "reverted" not in row
        and math.isfinite(row["surrogate_gain"] + row["update_kl_max_turn"])
    ]
    if not rows or discount >= 1.0:
        return None
    r_max = max(r_max, *(row["surrogate_gain"] * (1.0 - discount) for row in rows))
    constants = {"discount": discount, "eps_r": eps_r, "eps_p": eps_p, "r_max": r_max}
    try:
        candidates = [
            theorem1(
                gain=row["surrogate_gain"],
                delta=max(row["update_kl_max_turn"], 0.0),
                **constants,
            )
            for row in rows
        ]
    except BoundSizeError:
        return None
    best = max(range(len(rows)), key=lambda i: candidates[i].total)
    return {
        "update": rows[best].get("update"),
        "updates": len(rows),
        **constants,
        "delta": rows[best]["update_kl_max_turn"],
        **candidates[best]._asdict(),
        "total": candidates[best].total,
        "measured": measured,
        "needed_eps_p": max_eps_p(
            gain=rows[best]["surrogate_gain"], discount=discount, r_max=r_max
        ),
        "sentence": f"Best of {len(rows)} updates: "
        + sentence(candidates[best], discount=discount, measured=measured),
    }


def max_eps_p(*, gain: float, discount: float, r_max: float) -> float | None:
    """Return the largest eps_p for which the bound is positive, all else perfect.

    None where it does not depend on eps_p.
    """
    _check(discount, r_max)
    if discount == 0.0 or r_max == 0.0:
        return None
    rest = 1.0 - discount
    return max(gain, 0.0) * rest / (4.0 * discount * r_max)
