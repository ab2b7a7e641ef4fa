"""The real-step factor on curves that are known, by hand."""

import math

import pytest

from dreamgym.evaluation.comparisons.step_factor import (
    Bounds,
    Factor,
    Played,
    Point,
    real_step_factor,
    step_factor,
    steps_to_reach,
)

REAL = [Point(1000, 0.2), Point(10_000, 0.4), Point(100_000, 0.8)]


@pytest.mark.parametrize(
    ("success", "low", "high"),
    [
        # Half of the way from 0.2 to 0.4 is half of the way in the logarithm:
        # 10^3.5. Interpolated in the steps themselves it would be 5,500.
        (0.3, 10**3.5, 10**3.5),
        (0.4, 10_000, 10_000),
        (0.5, 10**4.25, 10**4.25),  # a quarter of 0.4 to 0.8
        (0.8, 100_000, 100_000),
        (0.81, 100_000, math.inf),  # never reached
        (0.2, 0, 1000),  # reached by the first point, perhaps before
        (0.1, 0, 1000),
    ],
)
def test_the_steps_to_a_success_are_interpolated_in_their_logarithm(success, low, high):
    assert steps_to_reach(REAL, success) == pytest.approx((low, high))


def test_the_first_crossing_counts_where_a_curve_falls_again():
    curve = [Point(100, 0.0), Point(1000, 0.6), Point(10_000, 0.2), Point(10**5, 0.9)]
    assert steps_to_reach(curve, 0.6) == pytest.approx((1000, 1000))
    assert steps_to_reach(curve, 0.3) == pytest.approx((10**2.5, 10**2.5))


def test_the_factor_is_the_ratio_of_steps_at_equal_success():
    assert step_factor(Point(1000, 0.4), [REAL]) == pytest.approx((10, 10))
    assert step_factor(Point(20_000, 0.4), [REAL]) == pytest.approx((0.5, 0.5))
    assert step_factor(Point(5000, 0.9), [REAL]) == (20, math.inf)
    assert step_factor(Point(5000, 0.1), [REAL]) == (0, 0.2)
    # Of two curves the one that needs fewer steps counts.
    other = [Point(500, 0.1), Point(2000, 0.4), Point(4000, 0.5)]
    assert step_factor(Point(1000, 0.4), [REAL, other]) == pytest.approx((2, 2))
    # One that never gets there says nothing against one that does.
    assert step_factor(Point(1000, 0.8), [REAL, other]) == pytest.approx((4, 100))
    assert step_factor(Point(1000, 0.8), [REAL, []]) == pytest.approx((100, 100))


def played(steps, rates, *, tasks=100, seeds=2):
    """Every seed wins the first tasks, as many as the rate says."""
    games = {f"t{i}": float(i < round(rates * tasks)) for i in range(tasks)}
    return Played(
        dict.fromkeys(range(seeds), steps), dict.fromkeys(range(seeds), games)
    )


def test_the_factor_of_played_games_has_an_interval_that_holds_it():
    curve = [played(1000, 0.2), played(10_000, 0.4), played(100_000, 0.8)]
    factor = real_step_factor(played(1000, 0.4), [curve])
    assert factor.value == pytest.approx((10, 10))
    # The same tasks are drawn for both, which win the same ones: at 10,000 steps real
    # RL is where the dream is, in every draw.
    assert factor.interval == pytest.approx((10, 10))
    factor = real_step_factor(played(1000, 0.5), [curve])
    assert factor.value == pytest.approx((10**1.25, 10**1.25))
    assert 10 < factor.interval.low < 10**1.25 < factor.interval.high < 40
    again = real_step_factor(played(1000, 0.5), [curve])
    assert again == factor


def test_an_interval_is_open_where_a_curve_ends_in_some_draws():
    # Dream and real RL win other tasks, about as many: in half of the draws real RL
    # never gets there.
    dream = {f"t{i}": float(i % 2 == 0) for i in range(100)}
    real = {f"t{i}": float(i % 2 == 1) for i in range(100)}
    curve = [played(1000, 0.0), Played({0: 8000, 1: 8000}, {0: real, 1: real})]
    factor = real_step_factor(Played({0: 2000, 1: 2000}, {0: dream, 1: dream}), [curve])
    assert factor.value == pytest.approx((4, 4))
    assert factor.interval.low < 4
    assert factor.interval.high == math.inf
    never = real_step_factor(played(2000, 0.9), [curve])
    assert never.value == (4, math.inf)
    assert never.interval == (4, math.inf)


def test_seeds_are_drawn_too():
    # Seed 0 of the dream wins nothing and seed 1 everything.
    dream = Played(
        {0: 1000, 1: 1000},
        {s: {f"t{i}": float(s) for i in range(50)} for s in (0, 1)},
    )
    curve = [played(500, 0.1), played(4000, 0.6)]
    factor = real_step_factor(dream, [curve])
    assert factor.value.low == factor.value.high
    assert factor.interval.low == 0.0  # a draw of seed 0 alone
    assert factor.interval.high == math.inf


def test_a_point_without_all_seeds_changes_no_factor():
    curve = [played(1000, 0.2), played(10_000, 0.4), played(100_000, 0.8)]
    whole = real_step_factor(played(1000, 0.5), [curve])
    partial = [played(1000, 0.5, seeds=1)]  # would reach it at once, on one seed
    assert real_step_factor(played(1000, 0.5), [curve, partial]) == whole
    assert real_step_factor(played(1000, 0.5), [partial]) is None


def test_seeds_of_others_that_the_dream_lacks_do_not_count():
    one = Played({0: 1000}, {0: {"a": 1.0, "b": 0.0}})
    curve = [Played({0: 500, 1: 9}, {0: {"a": 0.0, "b": 0.0}, 1: {"a": 1.0}})]
    assert real_step_factor(one, [curve]).value == (0.5, math.inf)
    assert real_step_factor(one, [[Played({1: 9}, {1: {"a": 1.0}})]]) is None
    assert real_step_factor(one, [[]]) is None
    assert real_step_factor(Played({}, {}), [curve]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((2.34, 2.34), "2.3 [1.5, inf]"),
        ((4.0, math.inf), ">= 4 [1.5, inf]"),
        ((0.0, 0.25), "<= 0.25 [1.5, inf]"),
    ],
)
def test_bounds_are_said(value, text):
    assert Factor(Bounds(*value), Bounds(1.5, math.inf)).text() == text
