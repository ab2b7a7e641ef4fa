"""What recorded episodes say of the step limit."""

import dataclasses

import pytest

from dreamgym.build.real.step_limit import wins_by_lasting, with_step_limit
from dreamgym.config.presets import preset
from tests import doubles, helpers
from worldmodel.data.records import Task

TASK = Task(id="balance", instruction="stay up", initial_state=("up",))


def lasted(steps, *, success, terminated=False):
    step = helpers.transition(("up",), "wait", ("up",))
    last = dataclasses.replace(step, terminated=terminated, truncated=not terminated)
    episode = helpers.episode("e", TASK, [*[step] * (steps - 1), last])
    return dataclasses.replace(episode, success=success)


@pytest.mark.parametrize(
    ("episodes", "wins"),
    [
        ([lasted(5, success=True)] * 3, True),
        ([lasted(5, success=True)] * 2, False),  # too few to tell
        ([lasted(5, success=False)] * 9, False),  # as nearly everywhere
        ([lasted(5, success=True)] * 9 + [lasted(5, success=False)], True),
        ([lasted(5, success=True)] * 8 + [lasted(5, success=False)] * 2, False),
        # A fall before the limit, or an end in the last step, say nothing of it.
        ([lasted(5, success=True)] * 3 + [lasted(2, success=False)] * 9, True),
        ([lasted(5, success=True, terminated=True)] * 9, False),
    ],
)
def test_lasting_is_winning_where_the_longest_episodes_were_won(episodes, wins):
    assert wins_by_lasting(episodes, 5) is wins


def test_the_step_limit_of_a_run_with_workers_is_planned_in_a_worker(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the environment was reset in the process of the run")

    monkeypatch.setattr(doubles.Corridor, "reset", refuse)
    settings = {"env.id": "tests.doubles:Corridor", "env.workers": 1}
    assert with_step_limit(preset("tiny", settings)).env.max_episode_steps > 1
