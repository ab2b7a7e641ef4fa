"""The horizon: linear, or in stages, and never beyond the run's own limit."""

import itertools

import pytest

from curriculum.step_limit import StepLimitConfig, step_limit_schedule


def test_a_line_by_hand():
    config = StepLimitConfig(first=4, updates=4)
    assert [step_limit_schedule(u, 16, config) for u in range(7)] == [
        4,
        7,
        10,
        13,
        16,
        16,
        16,
    ]
    assert [step_limit_schedule(u, 9, config) for u in range(5)] == [
        4,
        5,
        6,
        7,
        9,
    ]  # rounded down


def test_stages_by_hand():
    config = StepLimitConfig(first=4, updates=10, stages=2)
    got = [step_limit_schedule(u, 16, config) for u in range(12)]
    assert got == [4] * 5 + [10] * 5 + [16, 16]


def test_without_a_first_the_limit_is_the_runs():
    assert [step_limit_schedule(u, 16, StepLimitConfig()) for u in (0, 5, 99)] == [
        16
    ] * 3


@pytest.mark.parametrize("stages", [0, 1, 3, 7])
def test_it_never_falls_and_arrives(stages):
    config = StepLimitConfig(first=2, updates=7, stages=stages)
    got = [step_limit_schedule(u, 23, config) for u in range(9)]
    assert got[0] == 2
    assert got[7:] == [23, 23]
    assert all(a <= b for a, b in itertools.pairwise(got))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"first = 9.*got 8 and 0"):
        step_limit_schedule(0, 8, StepLimitConfig(first=9))
    with pytest.raises(ValueError, match="got 8 and -1"):
        step_limit_schedule(-1, 8, StepLimitConfig())
    for bad in ({"first": -1}, {"updates": 0}, {"stages": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            StepLimitConfig(**bad)
