"""Advantages of turns: by hand, by a loop, and with members left out."""

import numpy as np
import pytest

from dreamgym.rl.advantages import returns_to_go, turn_advantages, usable


def once(returns):
    """Episodes of one turn: [N, G] as [N, G, 1]."""
    return np.asarray(returns, float)[..., None]


def advantages(rewards, counted=None, *, discount=1.0, divide_by_std=False):
    if counted is None:
        counted = np.ones(rewards.shape, bool)
    return turn_advantages(
        rewards, counted, discount=discount, divide_by_std=divide_by_std
    )


def test_returns_to_go_by_hand():
    rewards = np.array([[0.0, 1.0, 4.0], [2.0, 0.0, 0.0]])
    expected = [[1.5, 3.0, 4.0], [2.0, 0.0, 0.0]]
    np.testing.assert_allclose(returns_to_go(rewards, 0.5), expected)
    np.testing.assert_allclose(returns_to_go(rewards, 0.0), rewards)


def test_episodes_of_one_turn_by_hand():
    # Means 0.25 and 2 along each group; along the tasks they would be 1, 1, 0.5, 2.
    returns = once([[1.0, 0.0, 0.0, 0.0], [1.0, 2.0, 1.0, 4.0]])
    expected = once([[0.75, -0.25, -0.25, -0.25], [-1.0, 0.0, -1.0, 2.0]])
    np.testing.assert_allclose(advantages(returns), expected, atol=1e-6)


def test_turns_by_hand():
    # Discount 1/2. To go: (1/2, 1) and (0, 0, 1); at turn 2 one member is left.
    rewards = np.array([[[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    counted = np.array([[[True, True, False], [True, True, True]]])
    got = advantages(rewards, counted, discount=0.5)
    expected = [[[0.125, 0.25, 0.0], [-0.125, -0.25, 0.0]]]
    np.testing.assert_allclose(got, expected, atol=1e-6)
    use = usable(counted, got)
    assert use.tolist() == [[[True, True, False], [True, True, False]]]


def test_dividing_by_the_std_by_hand():
    # Population std of (1, 0, 0, 0): sqrt(3) / 4; the sample std would be 1/2.
    returns = once([[1.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0]])
    got = advantages(returns, divide_by_std=True)
    row = np.array([3.0, -1.0, -1.0, -1.0]) / np.sqrt(3)
    np.testing.assert_allclose(got, once([row, row[[1, 0, 2, 3]]]), rtol=2e-3)


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_turns_by_a_loop_and_a_member_without_a_score(divide_by_std):
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(3, 5, 4))
    counted = np.arange(4) < rng.integers(1, 5, (3, 5, 1))
    counted[0, 1] = counted[1] = False
    counted[1, 2, 0] = True
    rewards[~counted] = np.nan  # what is not counted is never read
    got = advantages(rewards, counted, discount=0.7, divide_by_std=divide_by_std)
    for n in range(3):
        for t in range(4):
            members = [g for g in range(5) if counted[n, g, t]]
            to_go = []
            for g in members:
                row = rewards[n, g, : counted[n, g].sum()]
                to_go.append(sum(0.7 ** (k - t) * row[k] for k in range(t, len(row))))
            x = np.array(to_go) - np.mean(to_go) if len(members) > 1 else np.zeros(1)
            if divide_by_std and len(members) > 1:
                x = x / (np.std(to_go) + 1e-4)
            left = [g for g in range(5) if g not in members]
            assert (got[n, left, t] == 0).all()
            if members:
                np.testing.assert_allclose(got[n, members, t], x, rtol=1e-4, atol=1e-6)


def test_groups_that_cannot_be_compared_are_left_out():
    returns = once([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    counted = once([[1, 0], [0, 0], [1, 1], [1, 1]]).astype(bool)
    got = advantages(returns, counted)
    np.testing.assert_array_equal(got[..., 0], [[0, 0], [0, 0], [0, 0], [-0.5, 0.5]])
    assert usable(counted, got)[..., 0].tolist() == [
        [False, False], [False, False], [False, False], [True, True],
    ]  # fmt: skip


def test_a_member_at_the_mean_of_a_differing_group_is_usable():
    returns = once([[0.0, 1.0, 2.0, 1.0]])
    counted = np.ones(returns.shape, bool)
    assert usable(counted, advantages(returns)).all()


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_advantages_sum_to_zero_and_ignore_a_shift_of_the_returns(divide_by_std):
    returns = np.random.default_rng(0).normal(size=(5, 6))
    one, two = (
        advantages(once(r), divide_by_std=divide_by_std)
        for r in (returns, returns + np.arange(5)[:, None])
    )
    np.testing.assert_allclose(one.sum(1), 0.0, atol=1e-5)
    np.testing.assert_allclose(one, two, atol=1e-5)
    order = [3, 0, 5, 1, 4, 2]
    swapped = advantages(once(returns[:, order]), divide_by_std=divide_by_std)
    np.testing.assert_allclose(swapped, one[:, order], atol=1e-6)
