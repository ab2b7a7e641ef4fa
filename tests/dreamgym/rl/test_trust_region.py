"""Backtracking and the weight that follows, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl.trust_region import (
    UpdateSize,
    adapt_kl_coefficient,
    backtracking_line_search,
    interpolate,
)

OLD, NEW = {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, -2.0])}


def square(params):
    """As a KL grows: with the square of the step, 1 for the whole of it."""
    share = float((params["w"][0] - 1.0) / 2.0)
    return UpdateSize(share**2, 2 * share**2)


def test_between_by_hand():
    np.testing.assert_allclose(interpolate(OLD, NEW, 0.25)["w"], [1.5, 1.0])


def test_parameters_of_two_models_have_nothing_between():
    with pytest.raises(AssertionError, match="shape"):
        interpolate(OLD, {"w": jnp.ones((2, 2))}, 0.5)
    with pytest.raises(AssertionError):
        interpolate(OLD, {"v": OLD["w"]}, 0.5)


@pytest.mark.parametrize(
    ("radius", "share"), [(1.0, 1.0), (0.99, 0.5), (0.25, 0.5), (0.2, 0.25)]
)
def test_the_longest_half_within_the_radius(radius, share):
    params, far, taken = backtracking_line_search(OLD, NEW, square, radius)
    assert taken == share
    assert far == UpdateSize(share**2, 2 * share**2)
    np.testing.assert_allclose(params["w"], interpolate(OLD, NEW, share)["w"])


def test_one_turn_that_goes_far_shortens_the_step_too():
    def rare(params):
        share = float((params["w"][0] - 1.0) / 2.0)
        return UpdateSize(1e-3 * share, 1.0, max_turn_kl=8 * share)

    for limit, want in ((9.0, 1.0), (4.0, 0.5), (1.5, 0.125)):
        *_, taken = backtracking_line_search(OLD, NEW, rare, 1.0, max_turn_kl=limit)
        assert taken == want
    nan = UpdateSize(0.0, 0.0, max_turn_kl=float("nan"))
    assert (
        backtracking_line_search(OLD, NEW, lambda _: nan, 1.0, max_turn_kl=9.0)[2]
        == 0.0
    )


def test_where_nothing_is_near_enough_the_policy_stays():
    params, far, taken = backtracking_line_search(OLD, NEW, square, 1e-9, max_steps=4)
    assert (params is OLD, far, taken) == (True, UpdateSize(0.0, 0.0), 0.0)
    nan = UpdateSize(float("nan"), float("nan"))
    assert backtracking_line_search(OLD, NEW, lambda _: nan, 1.0)[2] == 0.0


def test_the_weight_follows_by_a_tenth_at_most():
    assert adapt_kl_coefficient(0.5, kl=0.2, target=0.2) == pytest.approx(0.5)
    assert adapt_kl_coefficient(0.5, kl=9.0, target=0.2) == pytest.approx(0.55)
    assert adapt_kl_coefficient(0.5, kl=0.0, target=0.2) == pytest.approx(0.45)
    assert adapt_kl_coefficient(0.5, kl=0.22, target=0.2) == pytest.approx(0.525)
