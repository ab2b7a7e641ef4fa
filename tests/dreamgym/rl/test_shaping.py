"""Shaping of advantages after the comparison: by entropy (AEM), by calls (ASPO)."""

import jax
import numpy as np
import pytest

from dreamgym.rl.advantages import early_call_shaped, entropy_modulated
from dreamgym.rl.config import ShapingConfig, UpdateConfig
from dreamgym.rl.credit import FirstCalls, TurnGrid
from tests import doubles
from tests.dreamgym.rl import updates as base
from worldmodel.backbone.model import forward
from worldmodel.fitting.batches import pack


def modulated(advantages, entropy, mask=None, rate=1.0):
    advantages, entropy = np.array(advantages, float), np.array(entropy, float)
    mask = np.ones(advantages.shape, bool) if mask is None else np.array(mask)
    return entropy_modulated(advantages, entropy, mask, rate=rate)


# --- entropy -----------------------------------------------------------------


def test_a_turn_that_the_policy_was_sure_of_counts_more_by_hand():
    # Entropies 1, 2, 3, 2 are 0, 1/2, 1, 1/2 in the group. The factors e^0, e^-1/2,
    # e^-1 and e^-1/2 have the mean 0.64524 and become 1.5498, 0.9400, 0.5701, 0.9400.
    got = modulated([[[1.0, 1.0], [-1.0, -2.0]]], [[[1.0, 2.0], [3.0, 2.0]]])
    mean = (1 + 2 * np.exp(-0.5) + np.exp(-1)) / 4
    want = np.array([1.0, np.exp(-0.5), -np.exp(-1), -2 * np.exp(-0.5)]) / mean
    np.testing.assert_allclose(got.ravel(), want, rtol=1e-6)
    np.testing.assert_allclose(got[0, 0, 0], 1.5498, rtol=1e-4)


def test_the_factors_of_a_group_have_the_mean_1_and_do_not_depend_on_units():
    rng = np.random.default_rng(0)
    mask = rng.random((3, 4, 5)) < 0.7
    entropy = rng.random((3, 4, 5)) + np.arange(3)[:, None, None]
    factor = modulated(np.ones((3, 4, 5)), entropy, mask, rate=2.0)
    for group, rows in zip(factor, mask, strict=True):
        np.testing.assert_allclose(group[rows].mean(), 1.0, rtol=1e-5)
    assert (factor[~mask] == 1.0).all()
    same = modulated(np.ones((3, 4, 5)), 7 * entropy + 3, mask, rate=2.0)
    np.testing.assert_allclose(same, factor, rtol=1e-5)
    by_loop = np.ones((3, 4, 5))
    for n in range(3):
        own = entropy[n][mask[n]]
        e = np.exp(-2.0 * (own - own.min()) / (own.max() - own.min()))
        by_loop[n][mask[n]] = e / e.mean()
    np.testing.assert_allclose(factor, by_loop, rtol=1e-5)


def test_what_is_not_counted_has_no_part_in_it():
    entropy, mask = [[[1.0, 2.0], [50.0, 1.5]]], [[[True, True], [False, True]]]
    got = modulated([[[1.0, 1.0], [1.0, 1.0]]], entropy, mask)
    other = modulated([[[1.0, 1.0], [1.0, 1.0]]], [[[1.0, 2.0], [0.0, 1.5]]], mask)
    np.testing.assert_array_equal(got, other)


@pytest.mark.parametrize(
    ("entropy", "mask", "rate"),
    [
        ([[[1.0, 1.04], [1.09, 1.0]]], None, 1.0),  # hardly a difference
        ([[[1.0, 2.0], [3.0, 0.0]]], None, 0.0),  # no rate
        ([[[1.0, 2.0], [3.0, 0.0]]], np.zeros((1, 2, 2), bool), 1.0),  # nobody
    ],
)
def test_advantages_stay_as_they_are_where_nothing_tells_turns_apart(
    entropy, mask, rate
):
    given = np.array([[[1.0, -1.0], [0.5, 0.0]]])
    np.testing.assert_allclose(modulated(given, entropy, mask, rate), given)


@pytest.mark.medium
def test_the_entropy_of_a_turn_is_the_mean_over_its_tokens_by_a_loop():
    learner, given = base.updater(), base.examples()
    # Far from uniform, so that turns differ.
    params = jax.tree.map(lambda x: 6.0 * x, learner.learner.init().params)
    definition = doubles.model().definition
    got = learner.mean_entropy(params, given)
    masks = base.masks_of(doubles.policy(action_tokens=5))
    for e, value in zip(given, got, strict=True):
        tokens = pack([e], 80)
        layout = (tokens.ids, tokens.position, tokens.segment)
        logits = forward(definition, params, *layout)
        rows = np.asarray(base.distribution(logits, tokens, masks, base.HOT))
        each = []
        for i in np.flatnonzero(tokens.mask[0]):
            p = np.exp(rows[0, i - 1].astype(float))
            each.append(-(p[p > 0] * np.log(p[p > 0])).sum())
        assert value == pytest.approx(np.mean(each), rel=1e-4)
    assert np.ptp(got) > 0.1
    # However turns are packed.
    again = base.updater(batch_rows=2, row_tokens=40).mean_entropy(params, given[::-1])
    np.testing.assert_allclose(again[::-1], got, rtol=1e-5)


# --- early calls -------------------------------------------------------------


def early(advantages, position, length=None, compared=None, weight=2.0, bound=0.7):
    position = np.array(position)
    length = np.full(position.shape, 10) if length is None else np.array(length)
    ok = np.ones(position.shape, bool) if compared is None else np.array(compared)
    return early_call_shaped(
        np.array(advantages, float), ok, position, length, weight=weight, bound=bound
    )


def test_an_early_call_is_preferred_by_hand():
    # First calls after 2, 4 and 6 of 8, 10 and 12 tokens: means 4 and 10. So 2 (4 - p)
    # / 10 is 0.4, 0 and -0.4, of which at most half of the advantage counts.
    got = early(
        [[[1.0, 0.5], [1.0, 1.0], [0.2, 2.0]]],
        [[2, 4, 6]],
        [[8, 10, 12]],
        bound=0.5,
    )
    want = [[[1.4, 0.75], [1.0, 1.0], [0.1, 1.6]]]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_lost_episodes_and_those_without_a_call_are_as_they_were():
    given = [[[1.0], [1.0], [-1.0], [1.0]]]
    compared = [[True, True, False, False]]
    got = early(given, [[2, 4, 0, 99]], compared=compared)
    np.testing.assert_allclose(got, [[[1.2], [0.8], [-1.0], [1.0]]], rtol=1e-6)


def test_a_group_that_agrees_and_a_lone_call_gain_nothing():
    # Where all win the advantages are 0, and a share of 0 is 0: no success is punished.
    assert not early([[[0.0], [0.0]]], [[1, 9]]).any()
    lone = early([[[1.0], [1.0]]], [[1, 9]], compared=[[True, False]])
    np.testing.assert_array_equal(lone, [[[1.0], [1.0]]])
    none = early([[[1.0], [1.0]]], [[1, 9]], compared=[[False, False]])
    np.testing.assert_array_equal(none, [[[1.0], [1.0]]])


def test_no_advantage_changes_its_sign_and_early_calls_never_lose():
    rng = np.random.default_rng(0)
    given = rng.normal(size=(6, 5, 3))
    position, length = rng.integers(1, 40, (6, 5)), rng.integers(40, 60, (6, 5))
    compared = rng.random((6, 5)) < 0.8
    got = early(given, position, length, compared, weight=50.0)
    assert (np.sign(got) == np.sign(given)).all()
    change = np.abs(got - given) / np.abs(given)
    assert 0.69 < change.max() < 0.7 + 1e-6
    for n in range(6):
        first = position[n] < position[n][compared[n]].mean()
        assert (got[n][compared[n] & first] >= given[n][compared[n] & first]).all()


def test_turns_of_episodes_come_back_in_their_order():
    # Two groups of two, of 2, 1, 1 and 2 turns; only the second one differs.
    grid = TurnGrid(np.array([2, 1, 1, 2]), np.ones(4, bool), np.zeros(4, int))
    calls = FirstCalls(
        np.ones(4, bool), np.array([5, 5, 2, 4]), np.array([10, 10, 8, 12])
    )
    given = np.array([1.0, 1.0, -1.0, 1.0, 1.0, 0.5])
    config = ShapingConfig(early_call=2.0)
    won = np.array([True, False, True, True])
    got = grid.early_call_shaped(given, won, calls, config, 2)
    np.testing.assert_allclose(got, [1.0, 1.0, -1.0, 1.2, 0.8, 0.3], rtol=1e-6)
    entropy = np.array([1.0, 1.0, 1.0, 2.0, 1.0, 1.0])
    got = grid.entropy_modulated(given, entropy, ShapingConfig(entropy_rate=1.0), 2)
    mean = (2 + np.exp(-1)) / 3
    want = [1.0, 1.0, -1.0, np.exp(-1) / mean, 1 / mean, 0.5 / mean]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    # Without the score of the last episode nothing is left to compare with.
    scored = np.array([True, True, True, False])
    grid = TurnGrid(np.array([2, 1, 1, 2]), scored, np.zeros(4, int))
    np.testing.assert_array_equal(
        grid.early_call_shaped(given, won, calls, config, 2), given
    )
    alone = ShapingConfig(entropy_rate=1.0)
    np.testing.assert_array_equal(
        grid.entropy_modulated(given, entropy, alone, 2), given
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_policy_learns_to_call_early_and_without_it_does_not(seed):
    """Of three ways an early and a late call both win, and the third one loses."""

    def share_of_early_calls(weight):
        rng, logits = np.random.default_rng(seed), np.zeros(3)
        for _ in range(150):
            odds = np.exp(logits) / np.exp(logits).sum()
            ways = rng.choice(3, size=(4, 8), p=odds)
            won = (ways < 2).astype(float)
            advantages = (won - won.mean(1, keepdims=True))[..., None]
            shaped = early_call_shaped(
                advantages,
                won > 0,
                np.where(ways == 0, 2, 8),
                np.full(ways.shape, 10),
                weight=weight,
                bound=0.7,
            )[..., 0]
            for way in range(3):
                logits[way] += 0.1 * shaped[ways == way].sum()
        odds = np.exp(logits) / np.exp(logits).sum()
        assert odds[2] < 0.1  # to lose is unlearnt in any case
        return odds[0] / odds[:2].sum()

    assert share_of_early_calls(2.0) > 0.85
    assert 0.2 < share_of_early_calls(0.0) < 0.8


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entropy_rate": -1.0}, "entropy_rate and early_call must be >= 0"),
        ({"early_call": -2.0}, "entropy_rate and early_call must be >= 0"),
        ({"early_call": 2.0, "early_call_bound": 1.0}, r"early_call_bound must be in"),
        ({"early_call_bound": 0.9}, "has no effect without early_call"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        ShapingConfig(**settings)


def test_shaping_needs_groups_and_is_no_difference_of_returns():
    shaping = ShapingConfig(entropy_rate=1.0)
    with pytest.raises(ValueError, match=r"over a group.*gae"):
        UpdateConfig(advantage_estimator="gae", shaping=shaping)
    assert UpdateConfig().in_returns
    assert not UpdateConfig(shaping=shaping).in_returns
