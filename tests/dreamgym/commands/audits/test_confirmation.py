"""`dreamgym evaluate RUN --confirm N`: games that chose nothing, of a single run."""

import json
import os

import pytest

from dreamgym.build.real import environments
from dreamgym.cli import main
from dreamgym.commands.audits import confirmation
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

EVERY = doubles.tasks("test")


def game(task, index):
    return doubles.trajectory(task, doubles.plan(task.initial_state), index=index)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose two policies won all of four test games; only dream wins others."""
    config = preset("tiny", {"env.id": "tests.doubles:Corridor", "evaluate.tasks": 4})
    run = Run(tmp_path / "r", config)
    run.path("test").mkdir()
    for name in ("bc", "dream"):
        games = [game(t, i).episode for i, t in enumerate(EVERY[:4])]
        write_episodes(run.path(f"test/{name}.jsonl"), games)
    write_episodes(
        run.path("episodes.jsonl"), [doubles.expert(doubles.tasks("train")[0])]
    )

    def load(_, name):
        acts = doubles.expert_rule if name == "dream" else lambda *_: "look"
        return doubles.Scripted(acts)

    monkeypatch.setattr(environments, "load_player", load)
    return run


def test_games_that_chose_nothing_stand_beside_the_runs_own(run, capsys):
    assert main(["evaluate", str(run.root), "--confirm", "6"]) == 0
    output = capsys.readouterr().out
    bc, dream = (
        next(x for x in output.splitlines() if x.startswith(f"| {name} |"))
        for name in ("bc", "dream")
    )
    assert "| 4 | 100.0 % |" in bc
    assert "| 6 | 0.0 % |" in bc
    assert "| 6 | 100.0 % |" in dream
    assert "| dream - bc | +1.000 [" in output
    games = read_episodes(run.path("confirmation/bc.jsonl"))
    assert [e.task.id for e in games] == [t.id for t in EVERY[4:10]]
    numbers = json.loads(run.path(confirmation.FILE).read_text())
    assert numbers["policies"]["bc"]["test"]["mean"] == 1
    assert (numbers["first"], numbers["count"]) == (4, 6)


def test_a_policy_of_its_own_and_as_many_games_as_there_are(run):
    result = confirmation.confirm(run, 1000, ["dream"])
    assert list(result["policies"]) == ["dream"]
    assert result["policies"]["dream"]["success"]["episodes"] == len(EVERY) - 4
    assert not run.path("confirmation/bc.jsonl").exists()


def test_games_are_played_once_and_again_by_a_new_policy(run, monkeypatch):
    first = confirmation.confirm(run, 3, ["bc"])
    with monkeypatch.context() as nobody:
        nobody.setattr(environments, "load_player", lambda *_: 1 / 0)
        assert confirmation.confirm(run, 3, ["bc"]) == first
    os.utime(run.path("confirmation/bc.jsonl"), (0, 0))  # times decide nothing
    with monkeypatch.context() as nobody:
        nobody.setattr(environments, "load_player", lambda *_: 1 / 0)
        assert confirmation.confirm(run, 3, ["bc"]) == first
    run.path("policies/bc").mkdir(parents=True)
    run.path("policies/bc/model.safetensors").write_bytes(b"trained again")
    monkeypatch.setattr(
        environments, "load_player", lambda *_: doubles.Scripted(doubles.expert_rule)
    )
    again = confirmation.confirm(run, 3, ["bc"])
    assert again["policies"]["bc"]["success"]["mean"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["RUN", "--confirm", "0"], "--confirm: expected at least 1 task, got 0"),
        (["--confirm", "3"], "give RUN"),
        (["RUN", "--confirm", "3", "--plan", "mpc"], "drop --plan"),
        (["RUN", "--confirm", "3", "--name", "a"], "drop --name"),
        (["RUN", "--confirm", "3", "--seed", "4"], "drop --seed"),
        (["RUN", "--confirm", "3", "--depth", "4"], "--depth has no effect"),
        (["RUN", "--confirm", "3", "--policy", "s2r"], "no policy 's2r' has played"),
        (["RUN/nowhere", "--confirm", "3"], "nowhere"),
    ],
)
def test_what_cannot_be_confirmed_is_refused(run, capsys, options, message):
    command = [option.replace("RUN", str(run.root)) for option in options]
    assert main(["evaluate", *command]) == 2
    assert message in capsys.readouterr().err


def test_a_run_without_games_or_tasks_left_says_so(run):
    with pytest.raises(RunError, match="no policy has played test games"):
        confirmation.chosen_policies(Run(run.root / "other", preset("tiny")))
    with pytest.raises(RunError, match="none to play after the first 40"):
        confirmation.play_games(run, ["bc"], first=40, count=3)


def test_typed_settings_are_refused_as_those_of_set_are(run, capsys):
    for options in (
        ["--set", "evaluate.temperature=0"],
        ["--evaluate.temperature", "0"],
    ):
        assert main(["evaluate", str(run.root), "--confirm", "6", *options]) == 2
        assert "plays as the run does: drop" in capsys.readouterr().err
