"""Backtracking and the weight that follows, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl.controllers import adapted
from dreamgym.rl.trust_region import Distance, backtracked, between

OLD, NEW = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, -2.0])}


def square(params):
    """As a KL grows: with the square of the step, 1 for the whole of it."""
    share = float((params["w"][0] - 1.0) / 2.0)
    return Distance(share**2, 2 * share**2)


def test_between_by_hand():
    np.testing.assert_allclose(between(OLD, NEW, 0.25)["w"], [1.5, 1.0])


@pytest.mark.parametrize(
    ("radius", "share"), [(1.0, 1.0), (0.99, 0.5), (0.25, 0.5), (0.2, 0.25)]
)
def test_the_longest_half_within_the_radius(radius, share):
    params, far, taken = backtracked(OLD, NEW, square, radius)
    assert taken == share
    assert far == Distance(share**2, 2 * share**2)
    np.testing.assert_allclose(params["w"], between(OLD, NEW, share)["w"])


def test_one_turn_that_goes_far_shortens_the_step_too():
    def rare(params):
        share = float((params["w"][0] - 1.0) / 2.0)
        return Distance(1e-3 * share, 1.0, turn=8 * share)

    for limit, want in ((9.0, 1.0), (4.0, 0.5), (1.5, 0.125)):
        *_, taken = backtracked(OLD, NEW, rare, 1.0, max_turn_kl=limit)
        assert taken == want
    nan = Distance(0.0, 0.0, turn=float("nan"))
    assert backtracked(OLD, NEW, lambda _: nan, 1.0, max_turn_kl=9.0)[2] == 0.0


def test_where_nothing_is_near_enough_the_policy_stays():
    params, far, taken = backtracked(OLD, NEW, square, 1e-9, most=4)
    assert (params is OLD, far, taken) == (True, Distance(0.0, 0.0), 0.0)
    nan = Distance(float("nan"), float("nan"))
    assert backtracked(OLD, NEW, lambda _: nan, 1.0)[2] == 0.0


def test_the_weight_follows_by_a_tenth_at_most():
    assert adapted(0.5, measured=0.2, target=0.2) == pytest.approx(0.5)
    assert adapted(0.5, measured=9.0, target=0.2) == pytest.approx(0.55)
    assert adapted(0.5, measured=0.0, target=0.2) == pytest.approx(0.45)
    assert adapted(0.5, measured=0.22, target=0.2) == pytest.approx(0.525)
