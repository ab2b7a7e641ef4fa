"""What an update may take in steps, by hand."""

import dataclasses

import pytest

from curriculum.config import CurriculumConfig, GuidedRetriesConfig
from dreamgym.build.costs import loop_steps
from dreamgym.training.config import LoopConfig

LOOP = LoopConfig(updates=3, tasks_per_update=4, group_size=2)


@pytest.mark.parametrize(
    ("changes", "groups"),
    [
        ({}, 4),
        ({"max_resample_rounds": 2}, 8),  # half of two rounds of four groups more
        ({"forks_per_update": 3}, 7),
        (
            {
                "curriculum": CurriculumConfig(
                    guided_retries=GuidedRetriesConfig(groups=3)
                )
            },
            7,
        ),
        (  # no more groups are tried again than there are
            {
                "curriculum": CurriculumConfig(
                    guided_retries=GuidedRetriesConfig(groups=9)
                )
            },
            8,
        ),
    ],
)
def test_the_steps_of_a_loop_are_those_of_all_its_groups(changes, groups):
    loop = dataclasses.replace(LOOP, **changes)
    assert loop_steps(loop, 10) == 3 * groups * 2 * 10
    bounded = dataclasses.replace(loop, max_transitions=100)
    assert loop_steps(bounded, 10) == 100
