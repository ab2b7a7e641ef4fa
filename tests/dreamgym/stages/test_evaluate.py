"""What the stages of evaluation say of the games that were played."""

import dataclasses

import pytest

from dreamgym.config.presets import preset
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.run.directory import Run
from dreamgym.stages import evaluate
from tests import doubles
from worldmodel.data.records import write_episodes


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


@pytest.mark.parametrize("kept", ["bc", "warmstart"])
def test_a_policy_that_is_an_earlier_one_has_its_games(tmp_path, monkeypatch, kept):
    """The same policy would play the same games again."""
    played = []

    def play(run, policy):
        path = run.path(f"test/{policy}.jsonl")
        if not path.is_file():
            played.append(policy)
            task = doubles.tasks("test")[0]
            path.parent.mkdir(exist_ok=True)
            write_episodes(path, [doubles.expert(task)], check=False)
        return trajectories(path)

    monkeypatch.setattr(evaluate, "play_test_games", play)
    settings = {"env.id": "tests.doubles:Corridor"}
    with Run(tmp_path / "run", preset("tiny", settings)) as run:
        run.write_json(
            "stages/warmstart.json", {"numbers": {"kept": kept}, "seconds": 1.0}
        )
        numbers = [evaluate.body(run, policy) for policy in ("bc", "warmstart")]
        assert played == (["bc"] if kept == "bc" else ["bc", "warmstart"])
        assert numbers[0] == numbers[1]
