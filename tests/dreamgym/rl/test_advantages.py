"""Advantages of turns: by hand, by a loop, and with members left out."""

import inspect

import numpy as np
import pytest

from dreamgym.config.overrides import changed_by
from dreamgym.rl.advantages import (
    gae,
    group_advantages,
    has_signal,
    returns_to_go,
    state_advantages,
    turn_advantages,
    unit_rms,
    whiten,
)
from dreamgym.rl.config import ALGORITHMS, UpdateConfig
from dreamgym.rl.credit import TurnGrid


def once(returns):
    """Episodes of one turn: [N, G] as [N, G, 1]."""
    return np.asarray(returns, float)[..., None]


def advantages(
    rewards, counted=None, *, discount=1.0, divide_by_std=False, baseline="group_mean"
):
    if counted is None:
        counted = np.ones(rewards.shape, bool)
    return turn_advantages(
        rewards,
        counted,
        discount=discount,
        divide_by_std=divide_by_std,
        baseline=baseline,
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
    use = has_signal(counted, got)
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
                x = x / np.std(to_go)
            left = [g for g in range(5) if g not in members]
            assert (got[n, left, t] == 0).all()
            if members:
                np.testing.assert_allclose(got[n, members, t], x, rtol=1e-4, atol=1e-6)


def test_groups_that_cannot_be_compared_are_left_out():
    returns = once([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    counted = once([[1, 0], [0, 0], [1, 1], [1, 1]]).astype(bool)
    got = advantages(returns, counted)
    np.testing.assert_array_equal(got[..., 0], [[0, 0], [0, 0], [0, 0], [-0.5, 0.5]])
    assert has_signal(counted, got)[..., 0].tolist() == [
        [False, False],
        [False, False],
        [False, False],
        [True, True],
    ]


def test_turns_that_only_a_member_at_the_mean_has_count_with_one_advantage():
    """Under credit by episode, the whole group agrees or differs."""
    got = np.array([[[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]], np.zeros((3, 2))])
    counted = np.array([[[1, 0], [1, 0], [1, 1]], np.ones((3, 2))], bool)
    assert has_signal(counted, got)[0].tolist() == [[1, 0], [1, 0], [1, 0]]
    assert has_signal(counted, got, of_group=True)[0].tolist() == counted[0].tolist()
    assert not has_signal(counted, got, of_group=True)[1].any()


def test_a_member_at_the_mean_of_a_differing_group_is_usable():
    returns = once([[0.0, 1.0, 2.0, 1.0]])
    counted = np.ones(returns.shape, bool)
    assert has_signal(counted, advantages(returns)).all()


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


# --- other baselines ---------------------------------------------------------


def test_the_others_by_hand():
    returns = once([[1.0, 0.0, 0.0, 3.0]])
    # 1 - 3/3, 0 - 4/3, 0 - 4/3, 3 - 1/3
    expected = once([[0.0, -4 / 3, -4 / 3, 8 / 3]])
    np.testing.assert_allclose(
        advantages(returns, baseline="leave_one_out"), expected, atol=1e-6
    )


def test_the_batch_by_hand():
    returns = once([[1.0, 1.0], [0.0, 4.0]])
    expected = once([[-0.5, -0.5], [-1.5, 2.5]])
    got = advantages(returns, baseline="batch_mean")
    np.testing.assert_allclose(got, expected, atol=1e-6)
    # A group where all are equal teaches beside another one.
    assert has_signal(np.ones(returns.shape, bool), got).all()
    scaled = advantages(returns, baseline="batch_mean", divide_by_std=True)
    np.testing.assert_allclose(scaled.std(), 1.0, rtol=1e-3)


@pytest.mark.parametrize("baseline", ["group_mean", "leave_one_out", "batch_mean"])
def test_no_baseline_needs_more_than_what_counts(baseline):
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=(3, 4, 5))
    counted = np.arange(5) < rng.integers(1, 6, (3, 4, 1))
    counted[1, 2] = False
    got = advantages(rewards, counted, discount=0.8, baseline=baseline)
    dirty = np.where(counted, rewards, np.nan)
    np.testing.assert_array_equal(
        advantages(dirty, counted, discount=0.8, baseline=baseline), got
    )
    # The order of members and of groups changes nothing.
    order = rng.permutation(4)
    again = advantages(
        rewards[::-1, order], counted[::-1, order], discount=0.8, baseline=baseline
    )
    np.testing.assert_allclose(again, got[::-1, order], rtol=1e-5, atol=1e-6)
    assert (got[~counted] == 0).all()


def test_an_unknown_baseline_is_refused():
    with pytest.raises(ValueError, match="got 'luck'"):
        advantages(once([[1.0, 0.0]]), baseline="luck")


# --- a critic ----------------------------------------------------------------


def test_gae_by_hand():
    # discount 1/2, decay 1/2. Errors: 1 + 0.5 - 2 = -0.5 and 3 + 0.5 * 4 - 1 = 4.
    rewards, values = np.array([[1.0, 3.0]]), np.array([[2.0, 1.0]])
    taken = np.ones((1, 2), bool)
    adv, returns = gae(
        rewards, values, np.array([4.0]), taken, discount=0.5, gae_lambda=0.5
    )
    np.testing.assert_allclose(adv, [[-0.5 + 0.25 * 4.0, 4.0]])
    np.testing.assert_allclose(returns, [[2.5, 5.0]])


def test_gae_is_the_sum_it_stands_for():
    rng = np.random.default_rng(5)
    rewards, values = rng.normal(size=(2, 4, 6))
    last, discount, decay = rng.normal(size=4), 0.9, 0.7
    length = np.array([6, 1, 4, 3])
    taken = np.arange(6) < length[:, None]
    adv, returns = gae(
        rewards, values, last, taken, discount=discount, gae_lambda=decay
    )
    for b, n in enumerate(length):
        v = [*values[b, :n], last[b]]
        error = [rewards[b, t] + discount * v[t + 1] - v[t] for t in range(n)]
        for t in range(n):
            want = sum((discount * decay) ** k * error[t + k] for k in range(n - t))
            np.testing.assert_allclose(adv[b, t], want, rtol=1e-5)
            np.testing.assert_allclose(returns[b, t], want + values[b, t], rtol=1e-5)
    assert (adv[~taken] == 0).all()
    # Decay 1 is the discounted return, the last value with it, minus the value.
    adv, returns = gae(rewards, values, last, taken, discount=discount, gae_lambda=1.0)
    whole = np.where(taken, rewards, 0.0)
    whole[np.arange(4), length - 1] += discount * last
    go = returns_to_go(whole, discount)
    np.testing.assert_allclose(returns[taken], go[taken], rtol=1e-5)


def test_gae_skips_what_lies_between_however_long():
    # Tokens: the environment's lie between the policy's and count for no time.
    rng = np.random.default_rng(6)
    rewards, values = rng.normal(size=(2, 2, 5))
    last, taken = rng.normal(size=2), np.ones((2, 5), bool)
    adv, returns = gae(rewards, values, last, taken, discount=0.9, gae_lambda=0.8)
    places = [0, 3, 4, 8, 9]
    spread = np.zeros((2, 2, 11))
    spread[:] = np.nan
    spread[0][:, places], spread[1][:, places] = rewards, values
    where = np.zeros((2, 11), bool)
    where[:, places] = True
    got = gae(spread[0], spread[1], last, where, discount=0.9, gae_lambda=0.8)
    np.testing.assert_allclose(got[0][:, places], adv, rtol=1e-6)
    np.testing.assert_allclose(got[1][:, places], returns, rtol=1e-6)


@pytest.mark.peer
def test_gae_is_that_of_rlax():
    rlax = pytest.importorskip("rlax")
    rng = np.random.default_rng(7)
    rewards, values = rng.normal(size=(2, 8)).astype(np.float32)
    end = np.float32(rng.normal())
    want = rlax.truncated_generalized_advantage_estimation(
        rewards, np.full(8, 0.95, np.float32), 0.9, np.append(values, end)
    )
    got, _ = gae(
        rewards[None],
        values[None],
        np.array([end]),
        np.ones((1, 8), bool),
        discount=0.95,
        gae_lambda=0.9,
    )
    np.testing.assert_allclose(got[0], want, rtol=1e-5, atol=1e-6)


def test_whitened_by_hand():
    adv = np.array([[1.0, 3.0, 100.0]], np.float32)
    counted = np.array([[True, True, False]])
    np.testing.assert_allclose(whiten(adv, counted), [[-1.0, 1.0, 0.0]], rtol=1e-6)
    assert (whiten(adv, np.array([[True, False, False]])) == 0).all()


# --- what of a group is compared ---------------------------------------------


def credited(rewards, states=None, counted=None, *, credit, discount=1.0, **settings):
    rewards = np.asarray(rewards, float)
    counted = np.ones(rewards.shape, bool) if counted is None else counted
    states = np.zeros(rewards.shape, int) if states is None else np.asarray(states)
    return group_advantages(
        rewards,
        counted,
        states,
        discount=discount,
        credit=credit,
        divide_by_std=settings.pop("divide_by_std", False),
        **settings,
    )


def test_the_whole_return_is_credited_to_each_turn_by_hand():
    # Returns 1 and 3: -1 and +1 for all their turns. By turn the second one of the
    # second episode would get -0.5: 0 to go, where the other has 1.
    rewards = [[[0.0, 1.0], [3.0, 0.0]]]
    got = credited(rewards, credit="episode")
    np.testing.assert_allclose(got, [[[-1.0, -1.0], [1.0, 1.0]]])
    by_turn = credited(rewards, credit="turn")
    np.testing.assert_allclose(by_turn, [[[-1.0, 0.5], [1.0, -0.5]]])
    both = credited(rewards, credit="turn_and_episode")
    np.testing.assert_allclose(both, [[[-2.0, -0.5], [2.0, 0.5]]])


def test_grpo_by_hand_in_every_token_the_outcome_of_its_episode():
    """GRPO: (outcome - mean) / std of the group, the same at every turn.

    Wins after 1, 2 and 3 turns and a loss after 2: outcomes 1, 1, 1 and 0, mean 3/4,
    variance 3/4 * 1/4, so 1/4 / sqrt(3/16) = 1/sqrt(3), and -sqrt(3) for the loss. With
    the discount of `turn_grpo` the three wins would differ (0.81, 0.9 and 1).
    """
    config = changed_by(UpdateConfig(), ALGORITHMS["grpo"])
    rewards, length = [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [1, 2, 3, 2]
    grid = TurnGrid(np.array(length), np.ones(4, bool), np.zeros(4, int))
    got, use = grid.group_advantages(rewards, np.zeros(8, int), config, 4)
    np.testing.assert_allclose(got[:6], 1 / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(got[6:], -np.sqrt(3), rtol=1e-6)
    assert use.all()
    ours = changed_by(UpdateConfig(), ALGORITHMS["turn_grpo"])
    by_turn, _ = grid.group_advantages(rewards, np.zeros(8, int), ours, 4)
    # First turns: returns 1, 0.9, 0.81 and 0, minus their mean 0.6775.
    first = [0, 1, 3, 6]
    np.testing.assert_allclose(by_turn[first], [0.3225, 0.2225, 0.1325, -0.6775])
    dr = changed_by(UpdateConfig(), ALGORITHMS["dr_grpo"])
    undivided, _ = grid.group_advantages(rewards, np.zeros(8, int), dr, 4)
    np.testing.assert_allclose(undivided, [0.25] * 6 + [-0.75] * 2, rtol=1e-6)


@pytest.mark.parametrize("credit", ["episode", "state"])
def test_time_does_not_discount_the_outcome_of_an_episode(credit):
    # Both win, one a turn later, in states of their own: nothing tells them apart.
    rewards, states = [[[0.0, 1.0], [1.0, 0.0]]], [[[0, 1], [2, 3]]]
    counted = np.array([[[True, True], [True, False]]])
    got = credited(rewards, states, counted, credit=credit, discount=0.5)
    np.testing.assert_allclose(got, 0.0, atol=1e-7)


def test_a_member_that_is_not_counted_gets_no_credit_and_gives_none():
    rewards = np.array([[[0.0, 1.0], [3.0, 0.0], [99.0, 99.0]]])
    counted = np.array([[[True, True], [True, False], [False, False]]])
    got = credited(rewards, counted=counted, credit="episode")
    np.testing.assert_allclose(got, [[[-1.0, -1.0], [1.0, 0.0], [0.0, 0.0]]])


@pytest.mark.parametrize("divide_by_std", [False, True])
def test_states_are_compared_within_their_group_by_a_loop(divide_by_std):
    rng = np.random.default_rng(1)
    returns, states = rng.normal(size=(3, 4, 5)), rng.integers(0, 6, (3, 4, 5))
    counted = np.arange(5) < rng.integers(1, 6, (3, 4, 1))
    got = state_advantages(returns, counted, states, divide_by_std=divide_by_std)
    for n, g, t in np.ndindex(returns.shape):
        same = returns[n][counted[n] & (states[n] == states[n, g, t])]
        want = 0.0
        if counted[n, g, t] and len(same) > 1:
            want = (returns[n, g, t] - same.mean()) / (
                same.std() or 1.0
            ) ** divide_by_std
        assert got[n, g, t] == pytest.approx(want, abs=1e-5)


def test_an_action_is_not_credited_for_where_it_stands():
    """A coin that is already held earns nothing more, whatever is done with it.

    Both episodes take the coin (1) and win (2), one after the other's turn. By turn,
    the one that holds the coin is told that its next move was bad, because the other
    still has the coin to come. In the same state it is level.
    """
    rewards = [[[1.0, 0.0, 2.0, 0.0], [0.0, 1.0, 0.0, 2.0]]]
    states = [[[0, 1, 2, 3], [0, 0, 1, 2]]]
    counted = np.array([[[True, True, True, False], [True] * 4]])
    by_turn = credited(rewards, states, counted, credit="turn")
    assert by_turn[0, 0, 1] == -0.5  # 2 to come, where the other has 3
    by_state = credited(rewards, states, counted, credit="state")
    np.testing.assert_allclose(by_state, 0.0, atol=1e-6)


@pytest.mark.parametrize("credit", ["turn", "episode", "turn_and_episode", "state"])
@pytest.mark.parametrize("divide_by_std", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_size_of_rewards_does_not_matter(credit, divide_by_std, scale):
    rng = np.random.default_rng(2)
    rewards = rng.normal(size=(3, 4, 5)) * (rng.random((3, 4, 5)) < 0.5)
    states, counted = rng.integers(0, 4, (3, 4, 5)), np.ones((3, 4, 5), bool)
    rewards[0] = 0.1  # a group that agrees
    one, two = (
        credited(
            rewards * s, states, counted, credit=credit, divide_by_std=divide_by_std
        )
        for s in (1.0, scale)
    )
    assert (has_signal(counted, one) == has_signal(counted, two)).all()
    np.testing.assert_allclose(
        unit_rms(one, counted)[0], unit_rms(two, counted)[0], rtol=1e-4, atol=1e-6
    )


def test_unit_rms_by_hand():
    adv = np.array([3.0, -4.0, 9.0], np.float32)
    got, scale = unit_rms(adv, np.array([True, True, False]))
    assert scale == pytest.approx(np.sqrt(12.5))  # of 9 and 16; the last is not counted
    np.testing.assert_allclose(got, adv / scale, rtol=1e-6)
    zero = np.zeros(2, np.float32)
    assert unit_rms(zero, np.ones(2, bool)) == (pytest.approx(zero), 1.0)


def test_an_unknown_credit_is_refused():
    with pytest.raises(ValueError, match="credit must be one of"):
        credited([[[1.0]]], credit="luck")


@pytest.mark.parametrize("credit", ["turn", "episode"])
def test_a_reward_that_is_not_finite_is_named(credit):
    rewards = np.zeros((2, 2, 3), np.float32)
    rewards[1, 0, 2] = np.nan
    states, counted = np.zeros(rewards.shape, np.int32), np.ones(rewards.shape, bool)
    settings = {"discount": 1.0, "divide_by_std": True, "credit": credit}
    message = r"rewards\[1, 0, 2\] must be finite, got nan"
    with pytest.raises(FloatingPointError, match=message):
        group_advantages(rewards, counted, states, **settings)
    counted[1, 0, 2] = False  # outside the mask nothing is compared
    out = group_advantages(rewards, counted, states, **settings)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("name", ["rewards", "values"])
def test_a_critic_that_is_not_finite_is_named(name):
    arrays = {k: np.zeros((2, 3), np.float32) for k in ("rewards", "values")}
    arrays[name][1, 2] = np.inf
    counted, end = np.ones((2, 3), bool), np.zeros(2, np.float32)
    settings = {"discount": 1.0, "gae_lambda": 1.0}
    with pytest.raises(FloatingPointError, match=rf"{name}\[1, 2\] must be finite"):
        gae(arrays["rewards"], arrays["values"], end, counted, **settings)
    counted[1, 2] = False
    assert np.isfinite(
        gae(arrays["rewards"], arrays["values"], end, counted, **settings)
    ).all()


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_mask_of_numbers_is_refused(kind):
    x, mask = np.arange(12.0).reshape(2, 2, 3), np.ones((2, 2, 3), kind)
    row, rest = x[0], {"discount": 1.0}
    calls = [
        lambda: inspect.unwrap(whiten)(x, mask),
        lambda: inspect.unwrap(unit_rms)(x, mask),
        lambda: inspect.unwrap(turn_advantages)(x, mask, divide_by_std=True, **rest),
        lambda: inspect.unwrap(state_advantages)(
            x, mask, np.zeros(x.shape, np.int32), divide_by_std=True
        ),
        lambda: inspect.unwrap(gae)(
            row, row, np.zeros(2), mask[0], gae_lambda=1.0, **rest
        ),
    ]
    for call in calls:
        with pytest.raises(AssertionError, match="bool"):
            call()
