"""`dreamgym transfer-matrix`: policies in each other's environments."""

import json
import os

import pytest

from dreamgym import Task
from dreamgym.cli import main
from dreamgym.commands.audits import transfer_matrix as command
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

LAMP = "tests.dreamgym.envs.adapters.test_mixture:Switch"


def run_of(root, env, *policies):
    config = preset("tiny", {"env.id": env, "evaluate.tasks": 5})
    run = Run(root, config)
    write_episodes(
        run.path("episodes.jsonl"), [doubles.expert(doubles.tasks("train")[0])]
    )
    for name in policies:
        run.path(f"policies/{name}").mkdir(parents=True)
        run.path(f"policies/{name}/config.json").write_text("{}")
    return run


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A run in a corridor and one with lamps, whose policies know only their own."""
    corridor = run_of(tmp_path / "a", "tests.doubles:Corridor", "bc", "dream")
    lamps = run_of(tmp_path / "b", LAMP, "bc", "dream", "planner")
    loaded = []

    def light(task: Task, past, state):
        del past, state
        return f"light {task.options.get('lamp')}"

    def walk(task, past, state):
        return doubles.expert_rule(task, past, state) if len(state) > 1 else "look"

    def load(run, policy):
        loaded.append((run.root.name, policy))
        rule = light if run.root == lamps.root else walk
        return doubles.Scripted(rule)

    monkeypatch.setattr(command, "load_player", load)
    return corridor, lamps, loaded


def test_each_policy_plays_in_every_environment(runs, capsys, monkeypatch):
    corridor, lamps, loaded = runs
    roots = [str(corridor.root), str(lamps.root)]
    assert main(["transfer-matrix", *roots, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["policies"] == [f"dream of {root}" for root in roots]  # no planner
    means = [
        [cell["success"]["mean"] for cell in column["cells"]]
        for column in result["environments"]
    ]
    assert means == [[1, 0], [0, 1]]
    first, second = result["environments"][0]["cells"]
    assert first["difference"] is None
    assert second["difference"]["mean"] == -1
    assert loaded == [("a", "dream"), ("b", "dream")] * 2
    with monkeypatch.context() as closed:  # the games stand
        closed.setattr(doubles.Corridor, "step", lambda *_: 1 / 0)
        assert main(["transfer-matrix", *roots]) == 0
    output = capsys.readouterr().out
    assert f"| dream of {lamps.root} | 0.0 % (-1.000 [" in output
    assert "| **100.0 %** |" in output
    (folder,) = corridor.path("visitors").glob("b-*")
    games = read_episodes(folder / "dream.jsonl")
    assert [e.task.id for e in games] == [t.id for t in doubles.tasks("test")[:5]]


def test_games_are_of_one_policy(runs, tmp_path):
    """Runs of one name do not share them, and a new policy plays anew."""
    corridor, lamps, loaded = runs
    (tmp_path / "other").mkdir()
    same = run_of(tmp_path / "other/a", "tests.doubles:Corridor", "dream")
    command.transfer_matrix([corridor.root, same.root], games=2)
    folders = list(corridor.path("visitors").iterdir())
    assert len(folders) == 2
    weights = same.path("policies/dream/config.json")
    loaded.clear()
    os.utime(weights, (4e9, 4e9))  # times decide nothing
    command.transfer_matrix([corridor.root, same.root], games=2)
    assert loaded == []
    weights.write_text('{"trained": "again"}')
    os.utime(weights, (0, 0))
    command.transfer_matrix([corridor.root, same.root], games=2)
    assert loaded == [("a", "dream")] * 2  # in both environments, the other in none
    assert len(list(corridor.path("visitors").iterdir())) == 2
    del lamps


def test_a_policy_and_a_number_of_games_are_chosen(runs):
    corridor, lamps, loaded = runs
    result = command.transfer_matrix([corridor.root, lamps.root], policy="bc", games=2)
    assert result["policies"] == [f"bc of {r.root}" for r in (corridor, lamps)]
    cells = [cell for column in result["environments"] for cell in column["cells"]]
    assert {cell["success"]["episodes"] for cell in cells} == {2}
    assert {policy for _, policy in loaded} == {"bc"}


def test_what_cannot_be_played_is_refused(runs, tmp_path):
    corridor, lamps, _ = runs
    both = [corridor.root, lamps.root]
    with pytest.raises(RunError, match="expected two different runs or more"):
        command.transfer_matrix([corridor.root, corridor.root])
    with pytest.raises(RunError, match="no policy 's2r'; have \\['bc', 'dream'\\]"):
        command.transfer_matrix(both, policy="s2r")
    with pytest.raises(ValueError, match="at least 1 game"):
        command.transfer_matrix(both, games=0)
    empty = run_of(tmp_path / "c", "tests.doubles:Corridor")
    with pytest.raises(RunError, match="no policy was trained yet"):
        command.transfer_matrix([corridor.root, empty.root])
