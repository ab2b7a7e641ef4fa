"""The step limit of an episode: declared, or planned with a margin."""

import gymnasium
import pytest

from dreamgym.envs import limits, registry
from dreamgym.envs.limits import step_limit
from tests import doubles

TASKS = doubles.tasks("train")


def corridor(declared=None, plans=None):
    class Declaring(doubles.Corridor):
        max_episode_steps = declared

        def expert(self):
            return super().expert() if plans is None else ["go left"] * plans

    return Declaring()


def test_it_is_the_longest_plan_with_a_margin():
    # The longest of the first 50 plans has 7 actions: ceil(1.75 * 7) = 13.
    longest = max(len(doubles.plan(t.initial_state)) for t in TASKS[: limits.PLANS])
    assert longest == 7
    limit = step_limit(doubles.Corridor(), TASKS)
    assert limit == (13, "the longest expert's plan, 7 actions, with a margin")


@pytest.mark.parametrize(
    ("declared", "plans", "steps"),
    [
        (10, 7, 10),  # never more than the environment allows
        (200, 7, 13),  # nor all that it allows: every random episode would cost that
        (None, 2, 6),  # at least 4 more than the plan
        (None, 1, 1),  # one question, one answer
        (1, 1, 1),
        (30, 1, 5),  # it says itself that there may be more steps
        (5, 0, 5),
        (None, 0, 16),
    ],
)
def test_plans_and_what_is_declared(declared, plans, steps):
    assert step_limit(corridor(declared, plans), TASKS[:3]).steps == steps


def test_a_wrapper_and_a_spec_declare_it_too():
    wrapped = gymnasium.Wrapper(corridor(9))
    assert limits.declared_step_limit(wrapped) == 9
    taxi = gymnasium.make("FrozenLake-v1")
    assert limits.declared_step_limit(taxi) == 100
    assert limits.declared_step_limit(doubles.Corridor()) is None
    assert limits.declared_step_limit(registry.make("textworld")) == 24


def test_a_task_that_cannot_be_begun_is_left_out():
    class Breaking(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            if options["task"] == TASKS[0]:
                raise OSError("no answer")
            return super().reset(seed=seed, options=options)

    lengths = limits.plan_lengths(Breaking(), TASKS[:3])
    assert list(lengths) == [t.id for t in TASKS[1:3]]
