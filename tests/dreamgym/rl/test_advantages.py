"""Group-relative advantages: by hand, by a loop, and with members left out."""

import numpy as np
import pytest

from dreamgym.rl.advantages import group_advantages, usable

ALL = np.ones((2, 4), bool)


def test_advantages_by_hand():
    # Means 0.25 and 2 along each group; along the tasks they would be 1, 1, 0.5, 2.
    returns = np.array([[1.0, 0.0, 0.0, 0.0], [1.0, 2.0, 1.0, 4.0]])
    got = group_advantages(returns, ALL, divide_by_std=False)
    expected = [[0.75, -0.25, -0.25, -0.25], [-1.0, 0.0, -1.0, 2.0]]
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_dividing_by_the_std_by_hand():
    # Population std of (1, 0, 0, 0): sqrt(3) / 4; the sample std would be 1/2.
    returns = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]])
    got = group_advantages(returns, ALL, divide_by_std=True)
    row = np.array([3.0, -1.0, -1.0, -1.0]) / np.sqrt(3)
    np.testing.assert_allclose(got, [row, row[[1, 0, 2, 3]]], rtol=2e-3)


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_a_member_without_a_score_counts_for_nothing(divide_by_std):
    returns = np.array([[1.0, 0.0, np.nan, 1.0], [0.0, 2.0, 1.0, np.inf]])
    scored = np.array([[True, True, False, True], [True, True, True, False]])
    got = group_advantages(returns, scored, divide_by_std=divide_by_std)
    for row, (kept, values) in enumerate(zip(scored, returns, strict=True)):
        x = values[kept]
        expected = x - x.mean()
        if divide_by_std:
            expected = expected / (x.std() + 1e-4)
        np.testing.assert_allclose(got[row, kept], expected, rtol=1e-5, atol=1e-7)
        assert (got[row, ~kept] == 0).all()
    assert usable(scored, got).tolist() == scored.tolist()


def test_groups_that_cannot_be_compared_are_left_out():
    returns = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    scored = np.array([[True, False], [False, False], [True, True], [True, True]])
    got = group_advantages(returns, scored, divide_by_std=False)
    np.testing.assert_array_equal(got, [[0, 0], [0, 0], [0, 0], [-0.5, 0.5]])
    assert usable(scored, got).tolist() == [
        [False, False], [False, False], [False, False], [True, True],
    ]  # fmt: skip


def test_a_member_at_the_mean_of_a_differing_group_is_usable():
    returns = np.array([[0.0, 1.0, 2.0, 1.0]])
    adv = group_advantages(returns, ALL[:1], divide_by_std=False)
    assert usable(ALL[:1], adv).tolist() == [[True] * 4]


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_advantages_sum_to_zero_and_ignore_a_shift_of_the_returns(divide_by_std):
    returns = np.random.default_rng(0).normal(size=(5, 6))
    scored = np.ones((5, 6), bool)
    one, two = (
        group_advantages(r, scored, divide_by_std=divide_by_std)
        for r in (returns, returns + np.arange(5)[:, None])
    )
    np.testing.assert_allclose(one.sum(1), 0.0, atol=1e-5)
    np.testing.assert_allclose(one, two, atol=1e-5)
    order = [3, 0, 5, 1, 4, 2]
    swapped = group_advantages(returns[:, order], scored, divide_by_std=divide_by_std)
    np.testing.assert_allclose(swapped, one[:, order], atol=1e-6)
