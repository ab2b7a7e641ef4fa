"""Task values: the variance of a group's successes."""

import itertools

import numpy as np
import pytest

from curriculum.value import task_value


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
