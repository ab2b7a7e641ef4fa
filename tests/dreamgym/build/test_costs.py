"""What an update may take in steps, by hand."""

import dataclasses

import pytest

from curriculum.config import CurriculumConfig, GuidedRetriesConfig
from dreamgym.agent.config import PlanConfig
from dreamgym.build import costs
from dreamgym.build.costs import loop_steps
from dreamgym.config.presets import preset
from dreamgym.run.cost import Timings, Workload
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


def test_planned_steps_take_less_time_and_as_many_answers(monkeypatch):
    """They are asked in large batches; a server is asked as often all the same."""
    timings = Timings(2.0, 0.0, 100, 10, 0)
    work, config = Workload(timings, 0, 8, 1), preset("tiny")
    plan = PlanConfig(method="mpc", simulations=3, depth=4)
    alone, planned = (
        costs.dream_cost(config, work, 60),
        costs.plan_cost(config, work, plan, 10),  # half of 10 x 3 x 4 steps
    )
    assert planned.seconds == pytest.approx(0.4 * alone.seconds)
    monkeypatch.setattr(costs, "answers_per_query", lambda _: 1)
    asked = costs.plan_cost(config, work, plan, 10).answers
    assert asked == costs.dream_cost(config, work, 60).answers == pytest.approx(36)
