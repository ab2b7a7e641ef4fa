"""What the stages of evaluation say of the games that were played."""

import dataclasses

import pytest

from dreamgym.config.presets import preset
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


def test_the_games_of_a_copy_are_those_of_its_original(tmp_path, monkeypatch):
    """Only these are not played; a policy that was trained plays its own."""
    played = []

    def play(_run, policy):
        played.append(policy)
        return [doubles.trajectory(doubles.task(0, 1, 2), ["go right", "take coin"])]

    monkeypatch.setattr(evaluate, "play_test_games", play)
    settings = {"env.id": "tests.doubles:Corridor", "warmstart.method": "bc"}
    with Run(tmp_path, preset("tiny", settings)) as run:
        run.mark("warmstart", {})
        run.mark("train", {"kept": "warmstart"})
        run.mark("s2r", {"kept": "s2r"})
        before = evaluate.body(run, "dream")  # the original has no games yet
        assert "copied_from" not in before
        games = [doubles.trajectory(doubles.task(0, 1, 2), ["dance"]).episode]
        write_episodes(run.path("test/bc.jsonl"), games, check=False)
        run.mark("evaluate/bc", {"success": 0.0, "games": 1, "test_transitions": 9})
        numbers = evaluate.body(run, "dream")
        assert numbers == {"success": 0.0, "games": 1, "copied_from": "bc"}
        original = run.path("test/bc.jsonl").read_bytes()
        assert run.path("test/dream.jsonl").read_bytes() == original
        assert evaluate.body(run, "s2r")["success"] == 1.0
    assert played == ["dream", "s2r"]
