"""Credit of turns in the shape of episodes, by hand."""

import numpy as np
import pytest

from dreamgym.rl.config import CriticConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.credit import Fork, TurnGrid


def grid(length, scored=None, cut=None):
    lost = np.zeros(len(length), int) if cut is None else np.array(cut, int)
    scored = [True] * len(length) if scored is None else scored
    return TurnGrid(np.array(length), np.array(scored), lost)


def test_turns_come_back_in_their_order():
    # Two groups of two; to go with discount 1/2: (1/2, 1), (0); (2), (1).
    config = UpdateConfig(discount=0.5)
    rewards, states = [0.0, 1.0, 0.0, 2.0, 1.0], np.arange(5)
    adv, use = grid([2, 1, 1, 1]).group_advantages(rewards, states, config, 2)
    np.testing.assert_allclose(adv, [0.25, 0.0, -0.25, 0.5, -0.5])
    assert use.tolist() == [True, False, True, True, True]


def test_under_credit_by_episode_a_whole_group_carries_a_signal_or_none():
    """Rewards 1, 0 and 0.5: only the third, which is at the mean, has a second turn."""
    rewards, states = [1.0, 0.0, 0.0, 0.5], np.zeros(4, int)
    by_episode = UpdateConfig(discount=1.0, credit="episode")
    adv, use = grid([1, 1, 2]).group_advantages(rewards, states, by_episode, 3)
    np.testing.assert_allclose(adv, [0.5, -0.5, 0.0, 0.0])
    assert use.all()
    _, use = grid([1, 1, 2]).group_advantages(
        [0.5] * 2 + [0.0, 0.5], states, by_episode, 3
    )
    assert not use.any()


def test_turns_are_compared_in_the_state_they_begin_in():
    # One group: both episodes pass state 7, and the second one only there does better.
    config = UpdateConfig(discount=1.0, credit="state")
    states = np.array([3, 7, 7, 4])
    adv, use = grid([2, 2]).group_advantages([0.0, 0.0, 0.0, 2.0], states, config, 2)
    # Whole returns 0 and 2; in state 7 returns-to-go 0 and 2: -1 and +1 each.
    np.testing.assert_allclose(adv, [-1.0, -2.0, 2.0, 1.0])
    assert use.all()


def test_what_is_not_scored_teaches_nobody():
    config = UpdateConfig(discount=1.0)
    one = grid([1, 1, 1], scored=[True, False, True])
    adv, use = one.group_advantages([1.0, 9.0, 0.0], np.zeros(3, int), config, 3)
    np.testing.assert_allclose(adv, [0.5, 0.0, -0.5])
    assert use.tolist() == [True, False, True]


CRITIC = UpdateConfig(
    advantage_estimator="gae",
    critic=CriticConfig(gae_lambda=1.0),
    normalize_advantages="none",
)


def test_a_critic_judges_each_turn_by_itself():
    values = np.array([1.0, 2.0, 4.0], np.float32)
    adv, use, returns = grid([2, 1]).gae_advantages(
        [0.0, 6.0, 3.0], values, 0.5, CRITIC
    )
    # Returns 3, 6 and 3, less the values; an episode's end is worth nothing more.
    np.testing.assert_allclose(returns, [3.0, 6.0, 3.0])
    np.testing.assert_allclose(adv, [2.0, 4.0, -1.0])
    assert use.all()


def test_an_episode_that_was_cut_goes_to_its_last_trusted_state():
    values = np.array([1.0, 2.0, 8.0, 5.0], np.float32)
    cut = grid([3, 1], scored=[False, False], cut=[True, False])
    adv, use, returns = cut.gae_advantages([0.5, 0.0, -9.0, 7.0], values, 0.5, CRITIC)
    # The third turn's outcome is not known: 8 stands for all that follows its state.
    assert use.tolist() == [True, True, False, False]  # the second one just broke
    np.testing.assert_allclose(returns[:2], [0.5 + 0.5 * 4.0, 4.0])
    np.testing.assert_allclose(adv[:2], [1.5, 2.0])
    assert (adv[2:] == 0).all()
    # Cut at its first turn an episode says nothing.
    none = grid([1, 2], scored=[False, True], cut=[True, False])
    _, use, _ = none.gae_advantages([0.0, 0.0, 1.0], values[:3], 0.5, CRITIC)
    assert use.tolist() == [False, True, True]


def test_without_its_group_a_turn_may_be_whitened():
    config = UpdateConfig(
        discount=1.0,
        advantage_estimator="gae",
        critic=CriticConfig(gae_lambda=1.0),
    )
    adv, _, _ = grid([1, 1]).gae_advantages(
        [1.0, 3.0], np.zeros(2, np.float32), 1.0, config
    )
    np.testing.assert_allclose(adv, [-1.0, 1.0], rtol=1e-6)


def test_over_tokens_time_passes_between_turns_alone():
    # One episode of two turns of two tokens: 1 is paid at its end, nothing before. The
    # second turn is cut in another: the state before it is worth 4.
    rewards = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 9.0]
    rate = np.array([1.0, 0.5, 1.0, 0.5] * 2)
    values = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0], np.float32)
    tokens = TurnGrid(np.array([4, 4]), np.array([True, False]), np.array([0, 2]))
    adv, use, returns = tokens.gae_advantages(rewards, values, rate, CRITIC)
    np.testing.assert_allclose(returns[:4], [0.5, 0.5, 1.0, 1.0])
    np.testing.assert_allclose(adv[:6], [0.5, 0.5, 1.0, 1.0, 2.0, 2.0])
    assert use.tolist() == [True] * 6 + [False] * 2


def test_filtered_imitation_keeps_what_was_won_and_scored():
    one = grid([2, 1, 1], scored=[True, True, False])
    adv, use = one.success_filter(np.array([True, False, True]))
    np.testing.assert_allclose(adv, [1.0, 1.0, 0.0, 0.0])
    assert use.tolist() == [True, True, False, False]


def test_a_pair_prefers_the_won_episode_by_how_wrong_the_policy_still_is():
    # Margins 1 + 1 and 0: already preferred, so the pair weighs beta sigmoid(-2 beta).
    config = UpdateConfig(
        advantage_estimator="preference_pairs",
        dpo_beta=0.5,
        surrogate=SurrogateConfig(importance_level="none", loss_aggregation="episode"),
    )
    won, written = np.array([True, False]), np.array([4, 3])
    adv, use = grid([2, 1]).dpo_weights([1.0, 1.0, 0.0], won, written, config, 2)
    weight = 0.5 / (1 + np.exp(1.0)) * 2  # two episodes in one pair
    np.testing.assert_allclose(adv, [4 * weight] * 2 + [-3 * weight], rtol=1e-6)
    assert use.all()
    # Of the compared turns alone, whose margin is 1; equal choices are no pair.
    first = np.array([True, False, True])
    for choices, pairs in (([0, 1], 1), ([0, 0], 0)):
        adv, use = grid([2, 1]).dpo_weights(
            [1.0, 1.0, 0.0],
            won,
            written,
            config,
            2,
            compared=first,
            choices=np.array(choices),
        )
        weight = 0.5 / (1 + np.exp(0.5)) * 2 * pairs
        np.testing.assert_allclose(adv[first], [4 * weight, -3 * weight], rtol=1e-6)
        assert use.tolist() == (first if pairs else np.zeros(3, bool)).tolist()
    # Without an opponent nothing is preferred, and an unscored one is none.
    for scored in ([True, False], [False, True]):
        _, use = grid([2, 1], scored=scored).dpo_weights(
            [1.0, 1.0, 0.0], won, written, config, 2
        )
        assert not use.any()


# A wins at its third turn, B does not; C and D continue from where A was after one.
FORK = Fork(members=(0,), continuations=(2, 3), depth=1)
A, B = [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]


def forked(c, d, forks=(FORK,), discount=1.0, scored=None, **settings):
    """Advantages and signals of the turns of A, B, C and D."""
    more = {k: settings.pop(k) for k in ("fork_weight", "prefix_mean") if k in settings}
    rewards = [*A, *B, *c, *d]
    lengths = [3, 3, len(c), len(d)]
    config = UpdateConfig(discount=discount, **settings)
    states = np.arange(len(rewards))
    values, mask = grid(lengths, scored).group_advantages(
        rewards, states, config, 2, forks, **more
    )
    ends = np.cumsum(lengths)[:-1]
    return np.split(values, ends), np.split(mask, ends)


def test_a_fork_is_compared_with_its_siblings_and_with_the_group_it_left():
    # C wins and D does not. Over its sibling C has 1 - 1/2; over the group, which it
    # joins, 1 - (1 + 0 + 1) / 3, and D has 0 - (1 + 0 + 0) / 3.
    (a, _, c, d), _ = forked([0.0, 1.0], [0.0, 0.0], fork_weight=0.25)
    np.testing.assert_allclose(c, [0.25 * 0.5 + 0.75 / 3] * 2, rtol=1e-6)
    np.testing.assert_allclose(d, [-0.25 * 0.5 - 0.75 / 3] * 2, rtol=1e-6)
    np.testing.assert_allclose(a, [0.5] * 3)  # the group is compared as before


def test_continuations_that_agree_still_differ_from_the_group():
    _, (_, _, c, d) = forked([0.0, 1.0], [0.0, 1.0])
    assert not c.any()
    assert not d.any()
    (_, _, c, d), (_, _, used, _) = forked([0.0, 1.0], [0.0, 1.0], fork_weight=0.5)
    assert used.all()
    np.testing.assert_allclose([c, d], np.full((2, 2), 0.5 / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "want"),
    [
        # A and B alone are the others, whatever the sibling wins: 1 - 1/2.
        ({"advantage_estimator": "leave_one_out"}, 0.5),
        # Outcomes of whole trajectories: 1 and 0 and 1, as the turns before count.
        ({"credit": "episode"}, 1 / 3),
        ({"credit": "turn_and_episode"}, 2 / 3),
        # Divided by the standard deviation of 1, 0, 1, which is sqrt(2) / 3.
        ({"normalize_advantages": "group"}, 1 / 2**0.5),
    ],
)
def test_the_group_is_compared_with_as_the_settings_say(settings, want):
    (_, _, c, _), _ = forked([0.0, 1.0], [0.0, 1.0], fork_weight=0.0, **settings)
    np.testing.assert_allclose(c, [want] * 2, rtol=1e-5)


def test_what_is_not_scored_joins_no_comparison():
    (*_, c, _), (*_, c_used, d_used) = forked(
        [0.0, 1.0], [0.0, 9.0], fork_weight=0.0, scored=[True, False, True, False]
    )
    np.testing.assert_allclose(c, [0.0, 0.0])  # A won, too
    assert not c_used.any()
    assert not d_used.any()
    (a, *_), _ = forked(
        [0.0, 0.0], [0.0, 9.0], prefix_mean=True, scored=[True, True, True, False]
    )
    np.testing.assert_allclose(a[0], 0.25)  # (1 + 0) / 2, less the mean with B


def test_a_longer_continuation_is_compared_as_far_as_the_group_goes():
    (*_, c, _), _ = forked([0.0, 0.0, 0.0, 1.0], [0.0], fork_weight=0.0)
    # At its third and fourth turn it is alone.
    np.testing.assert_allclose(c, [1 / 3, 1 / 3, 0.0, 0.0], rtol=1e-6)


def test_turns_before_a_fork_have_the_mean_return_of_what_shares_them():
    # With discount 1/2 the returns after A's first turn are 1/2, C's 1/2 and D's 0:
    # that turn has half of their mean, 1/6. Less the mean with B's 0: 1/12.
    (a, b, _, _), _ = forked([0.0, 1.0], [0.0, 0.0], discount=0.5, prefix_mean=True)
    np.testing.assert_allclose(a, [1 / 12, 0.25, 0.5], rtol=1e-6)
    np.testing.assert_allclose(b, [-1 / 12, -0.25, -0.5], rtol=1e-6)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_forks_behind_one_another_are_a_tree(order):
    both = (
        Fork(members=(0,), continuations=(2, 3), depth=1),
        Fork(members=(0,), continuations=(4, 5), depth=2),
    )
    rewards = [*A, *B, *[0.0, 1.0], *[0.0, 1.0], 0.0, 0.0]
    values, _ = grid([3, 3, 2, 2, 1, 1]).group_advantages(
        rewards,
        np.arange(12),
        UpdateConfig(discount=1.0),
        2,
        [both[i] for i in order],
        prefix_mean=True,
    )
    # After A's second turn the mean is (1 + 0 + 0) / 3, after its first
    # (1/3 + 1 + 1) / 3; each is compared with B's 0.
    np.testing.assert_allclose(values[:3], [7 / 18, 1 / 6, 0.5], rtol=1e-6)


def test_any_member_leads_to_its_group():
    fork = FORK._replace(members=(1,))
    (*_, c, d), _ = forked([0.0, 3.0], [0.0, 0.0], forks=[fork], fork_weight=0.0)
    # C joins A and B: 3 - (1 + 0 + 3) / 3; D: 0 - (1 + 0 + 0) / 3.
    np.testing.assert_allclose(c, [5 / 3] * 2, rtol=1e-6)
    np.testing.assert_allclose(d, [-1 / 3] * 2, rtol=1e-6)
