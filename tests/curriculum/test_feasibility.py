"""Feasibility: how well samples agree, and what trials decide."""

import collections

import numpy as np
import pytest

from curriculum.config import FeasibilityConfig
from curriculum.feasibility import agreement, refusal_reason


def test_agreement_by_hand():
    # a a b: one pair of three agrees; c c: one of one. Their mean is 2/3.
    assert agreement([["a", "a", "b"], ["c", "c"]]) == pytest.approx(2 / 3)
    assert agreement([["a", "b", "c"]]) == 0.0
    assert agreement([["a"], []]) == 0.0  # nothing to compare
    assert agreement([]) == 0.0
    # What makes no sense agrees with nothing, but is one of the samples.
    assert agreement([[None, None, None]]) == 0.0
    assert agreement([["a", "a", None]]) == pytest.approx(1 / 3)


def test_agreement_estimates_the_chance_that_two_samples_agree():
    rng = np.random.default_rng(0)
    q = np.array([0.6, 0.3, 0.1])
    rows = [rng.choice(3, 4, p=q).tolist() for _ in range(4000)]
    assert agreement(rows) == pytest.approx((q**2).sum(), abs=0.015)
    # The share of the most frequent answer would be larger, and grows as n falls.
    most = np.mean([max(collections.Counter(r).values()) / 4 for r in rows])
    assert most > (q**2).sum() + 0.1


BOTH = FeasibilityConfig(rollouts=4, samples=3, agreement=0.5)


@pytest.mark.parametrize(
    ("agreed", "won", "scored", "reason"),
    [
        (0.5, 1, 4, None),
        (0.49, 4, 4, "disagreement"),
        (None, 4, 4, "disagreement"),
        (1.0, 0, 4, "no plan"),
        (1.0, 0, 0, "unscored"),
        (1.0, 4, 4, None),
    ],
)
def test_verdicts(agreed, won, scored, reason):
    assert refusal_reason(BOTH, agreement_rate=agreed, won=won, scored=scored) == reason


@pytest.mark.parametrize(
    ("max_distance", "won", "scored", "reason"),
    [
        (0.25, 0, 4, "no plan"),
        (0.25, 1, 4, None),
        (0.25, 3, 4, None),
        (0.25, 4, 4, "too easy"),
        (0.1, 1, 4, "too hard"),
        (0.1, 2, 4, None),
        (0.3, 1, 5, None),
        (0.3, 4, 5, None),
        (0.0, 1, 2, None),
        (0.0, 1, 3, "too hard"),
        (0.5, 4, 4, None),
    ],
)
def test_tasks_that_are_won_too_often_or_too_seldom_are_refused(
    max_distance, won, scored, reason
):
    config = FeasibilityConfig(rollouts=4, max_distance=max_distance)
    assert refusal_reason(config, agreement_rate=None, won=won, scored=scored) == reason


@pytest.mark.parametrize(
    ("rollouts", "max_distance"), [(0, 0.25), (1, 0.25), (3, 0.1), (5, 0.05)]
)
def test_a_distance_that_no_share_of_rollouts_keeps_is_refused(rollouts, max_distance):
    with pytest.raises(ValueError, match=r"max_distance .* refuses every task"):
        FeasibilityConfig(rollouts=rollouts, max_distance=max_distance)
    FeasibilityConfig(rollouts=4, max_distance=max_distance)


def test_what_is_not_asked_for_refuses_nothing():
    assert (
        refusal_reason(FeasibilityConfig(), agreement_rate=None, won=0, scored=0)
        is None
    )
    plans = FeasibilityConfig(rollouts=2)
    assert refusal_reason(plans, agreement_rate=None, won=1, scored=1) is None
    samples = FeasibilityConfig(samples=2)
    assert refusal_reason(samples, agreement_rate=0.9, won=0, scored=0) is None


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rollouts", -1),
        ("samples", 1),
        ("samples", -2),
        ("actions", 0),
        ("agreement", 1.5),
        ("max_distance", 0.6),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        FeasibilityConfig(**{setting: value})
