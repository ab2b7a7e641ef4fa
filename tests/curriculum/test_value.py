"""Task values: the variance of a group's successes, and what few of them leave open."""

import itertools

import numpy as np
import pytest

from curriculum.config import ValueConfig
from curriculum.value import (
    decayed,
    optimistic,
    posterior,
    target_proximity,
    task_value,
)


def test_value_by_hand():
    # p = 1/4: 1/4 * 3/4 = 3/16; the sample variance (n - 1) would give 1/4.
    assert task_value([True, False, False, False]) == pytest.approx(3 / 16)
    assert task_value([True, False]) == pytest.approx(1 / 4)


@pytest.mark.parametrize("same", [[True] * 5, [False] * 5, [True], []])
def test_a_group_that_agrees_or_is_empty_teaches_nothing(same):
    assert task_value(same) == 0.0


def test_value_is_the_population_variance_of_every_group_of_four():
    for group in itertools.product([False, True], repeat=4):
        expected = np.var(np.array(group, float))
        assert task_value(list(group)) == pytest.approx(expected)


def test_winning_and_losing_weigh_the_same():
    group = [True, False, False, False, True]
    assert task_value(group) == pytest.approx(task_value([not s for s in group]))
    assert 0.0 < task_value(group) < 0.25


# --- the posterior -----------------------------------------------------------


def integrated(won, lost, prior):
    """Mean and deviation of p (1 - p) under the posterior, by a sum over p."""
    p = (np.arange(200_000) + 0.5) / 200_000
    density = p ** (prior + won - 1) * (1 - p) ** (prior + lost - 1)
    density /= density.sum()
    mean = (density * p * (1 - p)).sum()
    return mean, np.sqrt((density * (p * (1 - p) - mean) ** 2).sum())


def test_posterior_by_hand():
    # Uniform prior, nothing seen: E[p - p^2] = 1/2 - 1/3; E[p^2 (1-p)^2] = 1/30.
    got = posterior(0, 0, prior=1)
    assert got.mean == pytest.approx(1 / 6)
    assert got.deviation == pytest.approx(np.sqrt(1 / 30 - 1 / 36))
    # One won, three lost: Beta(2, 4), 2 * 4 / (6 * 7). The variance of the group
    # itself is 3/16, and p (1 - p) at the mean 1/3 would be 2/9.
    assert posterior(1, 3, prior=1).mean == pytest.approx(8 / 42)


@pytest.mark.parametrize("prior", [1.0, 2.5])
@pytest.mark.parametrize(("won", "lost"), [(0, 0), (0, 8), (3, 5), (1.7, 0.4), (40, 2)])
def test_posterior_is_what_integration_gives(won, lost, prior):
    mean, deviation = integrated(won, lost, prior)
    got = posterior(won, lost, prior=prior)
    assert got.mean == pytest.approx(mean, rel=1e-4)
    assert got.deviation == pytest.approx(deviation, rel=1e-3)


def test_many_outcomes_leave_the_variance_of_the_group():
    got = posterior(2000, 6000, prior=1)
    assert got.mean == pytest.approx(task_value([True] + [False] * 3), rel=1e-3)
    assert got.deviation < 0.005


def test_an_even_outcome_seen_often_beats_a_guess_and_a_long_row_of_losses_loses():
    untried, even = posterior(0, 0, prior=1), posterior(4, 4, prior=1)
    rows = [posterior(0, n, prior=1) for n in (1, 2, 4, 8, 16)]
    assert even.mean > untried.mean > rows[2].mean
    assert all(a.mean > b.mean for a, b in itertools.pairwise(rows))
    assert posterior(1, 5, prior=1) == posterior(5, 1, prior=1)


def test_optimism_adds_deviations_up_to_the_largest_variance():
    spread = posterior(0, 0, prior=1)
    assert optimistic(spread, 0) == pytest.approx(1 / 6)
    assert optimistic(spread, 1) == pytest.approx(1 / 6 + np.sqrt(1 / 180))
    assert optimistic(spread, 9) == 0.25


def test_ageing_and_closeness_by_hand():
    assert decayed(0.0, 0.25, 0.5**2) == pytest.approx(0.25 * 3 / 4)
    assert decayed(0.1, 0.25, 1.0) == pytest.approx(0.1)
    assert target_proximity(0.5, 0.5, 0.2) == 1.0
    # GenEnv's exp(-beta (p - alpha)^2) with beta = 2 is a width of 1/2.
    assert target_proximity(0.9, 0.5, 0.5) == pytest.approx(np.exp(-2 * 0.4**2))
    assert target_proximity(0.3, 0.5, 0.2) == pytest.approx(
        target_proximity(0.7, 0.5, 0.2)
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("estimator", "mean"),
        ("beta_prior", 0.0),
        ("optimism", -1.0),
        ("decay", 0.0),
        ("decay", 1.1),
        ("pooling", "semantic"),
        ("clusters", 0),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        ValueConfig(**{setting: value})


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match=r"won and lost must be >= 0.*-1"):
        posterior(-1, 0, prior=1)
    with pytest.raises(ValueError, match=r"prior > 0.*0"):
        posterior(1, 0, prior=0)
