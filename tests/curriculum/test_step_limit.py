"""The horizon: linear, or in stages, and never beyond the run's own limit."""

import itertools

import pytest

from curriculum.config import CurriculumConfig, StepLimitConfig
from curriculum.lesson_tracker import step_limit
from curriculum.step_limit import step_limit_schedule


def test_a_line_by_hand():
    config = StepLimitConfig(initial=4, updates=4)
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
    config = StepLimitConfig(initial=4, updates=10, increments=2)
    got = [step_limit_schedule(u, 16, config) for u in range(12)]
    assert got == [4] * 5 + [10] * 5 + [16, 16]


def test_without_a_first_the_limit_is_the_runs():
    assert [step_limit_schedule(u, 16, StepLimitConfig()) for u in (0, 5, 99)] == [
        16
    ] * 3


@pytest.mark.parametrize("stages", [0, 1, 3, 7])
def test_it_never_falls_and_arrives(stages):
    config = StepLimitConfig(initial=2, updates=7, increments=stages)
    got = [step_limit_schedule(u, 23, config) for u in range(9)]
    assert got[0] == 2
    assert got[7:] == [23, 23]
    assert all(a <= b for a, b in itertools.pairwise(got))


def test_a_schedule_that_begins_above_the_limit_of_the_run_begins_at_it():
    # The limit is the environment's, and known only once it has been asked.
    config = CurriculumConfig(step_limit=StepLimitConfig(initial=9, updates=2))
    assert [step_limit(u, 8, config) for u in range(3)] == [8, 8, 8]
    assert [step_limit(u, 11, config) for u in range(3)] == [9, 10, 11]


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"initial = 9.*got 8 and 0"):
        step_limit_schedule(0, 8, StepLimitConfig(initial=9))
    with pytest.raises(ValueError, match="got 8 and -1"):
        step_limit_schedule(-1, 8, StepLimitConfig())
    for bad in ({"initial": -1}, {"updates": 0}, {"increments": -1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            StepLimitConfig(**bad)
