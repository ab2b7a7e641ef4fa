"""What the stages of evaluation say of the games that were played."""

import dataclasses

import pytest

from dreamgym.stages import evaluate
from tests import doubles


def test_the_numbers_of_a_policy_have_its_steps_and_costs(capsys):
    task = doubles.task(0, 1, 2)
    rows = [doubles.trajectory(task, x) for x in (["go right", "take coin"], ["dance"])]
    (step,) = rows[1].episode.transitions
    paid = (dataclasses.replace(step, costs={"energy": 3.0}),)
    episode = dataclasses.replace(rows[1].episode, transitions=paid)
    rows[1] = rows[1]._replace(episode=episode)
    numbers = evaluate._numbers("bc", rows)
    assert numbers == {
        "success": 0.5,
        "games": 2,
        "steps": 1.5,
        "costs": {"energy": pytest.approx(1.5)},
    }
    assert "costs" not in evaluate._numbers("bc", rows[:1])
    broken = doubles.trajectory(task, ["dance"], error="broke")
    assert evaluate._numbers("bc", [broken])["steps"] is None
    assert "1 games were not scored" in capsys.readouterr().err
