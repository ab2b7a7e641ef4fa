import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worldmodel.fidelity import metrics

A, B, C, D = "one lamp", "two doors", "three cats", "four dogs"


def test_overlap_by_hand():
    # B goes and D comes; it is said that B goes and C comes again.
    assert metrics.changed_line_overlap((A, B, C), (A, C, D), (A, C, C)) == (1, 2, 2)
    assert metrics.changed_line_overlap((A, B), (A, B), (A, B)) == (0, 0, 0)
    assert metrics.changed_line_overlap((A,), (A, A), (A, A, A)) == (
        1,
        2,
        1,
    )  # counted, not a set
    assert metrics.changed_line_overlap((A, B), (B, A), (A, B)) == (
        0,
        0,
        0,
    )  # order is no line


def test_auroc_by_hand():
    right = np.array([True, True, False, False])
    assert metrics.auroc(np.array([0.9, 0.8, 0.2, 0.1]), right) == 1.0
    assert metrics.auroc(np.array([0.1, 0.2, 0.8, 0.9]), right) == 0.0
    assert metrics.auroc(np.array([0.5, 0.5, 0.5, 0.5]), right) == 0.5
    # Pairs won: 0.9 beats both, 0.3 beats 0.1 and loses to 0.6.
    assert metrics.auroc(np.array([0.9, 0.3, 0.6, 0.1]), right) == 0.75
    assert metrics.auroc(np.array([0.9]), np.array([True])) is None
    assert metrics.auroc(np.array([]), np.array([], bool)) is None
    # A score that is unknown is no case.
    unknown = np.array([np.nan, 0.3, 0.6, np.nan])
    assert metrics.auroc(unknown, right) == 0.0


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_auroc_counts_pairs(scores):
    score = np.array([s for s, _ in scores], float)
    right = np.array([r for _, r in scores])
    pairs = [(a > b) + (a == b) / 2 for a in score[right] for b in score[~right]]
    got = metrics.auroc(score, right)
    assert (got is None) == (not pairs)
    if got is not None:
        assert got == pytest.approx(np.mean(pairs))


def test_calibration_by_hand():
    # Two at 0.05, one right; two at 1, both right: gaps 0.45 and 0.
    bins = metrics.reliability(
        np.array([0.05, 0.05, 1.0, 1.0]), np.array([True, False, True, True])
    )
    assert [(b["confidence"], b["right"], b["count"]) for b in bins] == [
        (0.05, 0.5, 2),
        (1.0, 1.0, 2),
    ]
    assert metrics.calibration_error(bins) == pytest.approx(0.225)
    assert metrics.calibration_error([]) is None


def test_confidence_beyond_the_bins_is_of_the_first_or_the_last():
    bins = metrics.reliability(np.array([-0.3, 0.05, 1.0, 1.2]), np.ones(4, bool))
    assert [(b["count"], round(b["confidence"], 3)) for b in bins] == [
        (2, -0.125),
        (2, 1.1),
    ]


def test_weights_say_what_a_case_stands_for():
    confidence = np.array([0.95, 0.95])
    right = np.array([True, False])
    (bin,) = metrics.reliability(confidence, right, np.array([3.0, 1.0]))
    assert (bin["right"], bin["count"], bin["weight"]) == (0.75, 2, 4.0)
    assert metrics.calibration_error([bin]) == pytest.approx(0.2)


def test_a_weighted_quantile_by_hand():
    values, ones = np.array([3.0, 1.0, 2.0]), np.ones(3)
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        assert metrics.weighted_quantile(values, ones, share) == pytest.approx(
            np.quantile(values, share)
        )
    # A case that stands for many takes most of the range.
    heavy = np.array([1.0, 1000.0, 1.0])
    assert metrics.weighted_quantile(values, heavy, 0.25) < 1.6
    assert metrics.weighted_quantile(np.array([7.0]), np.ones(1), 0.3) == 7.0
