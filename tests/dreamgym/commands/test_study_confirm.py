"""Fresh games of a study: what games that chose nothing say."""

import shutil

import pytest

from dreamgym import cli
from dreamgym.build.real import environments
from dreamgym.commands.studies import study, study_file
from dreamgym.run.stage import Late, Stage, StageTable
from tests import doubles
from tests.dreamgym.commands.common import no_cost, write_study
from worldmodel.data.records import (
    read_episodes,
    write_episodes,
)

CONFIRMED = """
preset = "tiny"
last_stage = "collect"
policies = ["bc"]
[set]
"env.id" = "tests.doubles:Corridor"
[grid]
seed = [0, 1]
[variants.short]
"evaluate.tasks" = 5
[variants.long]
[columns]
bc = "test/bc"
seconds = "stages/collect.seconds"
"""


@pytest.fixture
def confirmed(tmp_path, monkeypatch):
    """A study of three finished cells of four, whose bc wins just its test games."""
    known, train = {t.id for t in doubles.tasks("test")[:8]}, doubles.tasks("train")[0]
    played = []

    def load(run, name):
        def rule(task, past, state):
            right = (task.id in known) != (run.config.seed == 1)
            return doubles.expert_rule(task, past, state) if right else "look"

        played.append((run.config.seed, name))
        return doubles.Scripted(rule)

    def collect(run):
        write_episodes(run.path("episodes.jsonl"), [doubles.expert(train)])
        return {}

    reads = ("seed", "env", "evaluate")
    table = StageTable(
        [
            Stage(
                "collect",
                collect,
                cost=no_cost,
                reads=("seed",),
                writes=("episodes.jsonl", "dev.jsonl"),
            ),
            Stage(
                "evaluate/bc",
                Late("dreamgym.stages.evaluate", arguments={"policy": "bc"}),
                cost=no_cost,
                needs=("collect",),
                reads=reads,
                writes=("test/bc.jsonl",),
            ),
        ]
    )
    monkeypatch.setattr(study, "STAGES", table)
    monkeypatch.setattr(environments, "load_player", load)
    path = write_study(tmp_path, CONFIRMED)
    grid = study_file.read_study(path)
    for cell in list(study_file.cells(grid))[:3]:
        study.compute(grid, cell, tmp_path / "r")
    assert played == [(0, "bc"), (1, "bc"), (0, "bc")]
    played.clear()
    return path, tmp_path / "r", played


@pytest.mark.slow
def test_fresh_games_tell_what_the_games_one_chose_by_cannot(confirmed, capsys):
    """Perfect where it was looked at, lost elsewhere: the other table says so."""
    path, root, played = confirmed
    command = ["study", str(path), "--root", str(root)]
    assert cli.main([*command, "--table"]) == 0
    assert "| long | 1 of 2 | 1.000 [" in capsys.readouterr().out
    assert cli.main([*command, "--confirm", "6"]) == 0
    output = capsys.readouterr()
    assert "| long | 1 of 2 | 0.000 [" in output.out
    assert "| short | 2 of 2 | 0.500 [" in output.out
    assert output.err.count("not finished") == 1
    assert played == [(0, "bc"), (1, "bc"), (0, "bc")]  # the fourth had not finished
    every = [t.id for t in doubles.tasks("test")]
    for run in (root / "runs").iterdir():
        games = [e.task.id for e in read_episodes(run / "confirmation/bc.jsonl")]
        assert games == every[8:14]  # beyond the cell that plays most
        assert len(read_episodes(run / "test/bc.jsonl")) in (5, 8)
    assert (root / "study-confirmation.png").is_file()
    played.clear()
    assert cli.main([*command, "--confirm", "6"]) == 0
    assert played == []  # what was played stands
    assert cli.main([*command, "--confirm", "60"]) == 0
    assert len(played) == 3  # as many as there are
    assert len(read_episodes(run / "confirmation/bc.jsonl")) == 11
    capsys.readouterr()
    assert cli.main([*command, "--confirm", "60", "--table"]) == 0
    assert "| long | 1 of 2 | 0.000 [" in capsys.readouterr().out
    assert cli.main([*command, "--confirm", "6", "--table"]) == 0
    assert "| long | 0 of 2 |  |" in capsys.readouterr().out  # other games are others
    assert cli.main([*command, "--table"]) == 0
    assert "| long | 1 of 2 | 1.000 [" in capsys.readouterr().out  # apart


@pytest.mark.parametrize(
    ("old", "new", "given", "message"),
    [
        ("[columns]", "[columns]", "0", "--confirm: expected at least 1 task, got 0"),
        ('bc = "test/bc"\n', "", "3", "no column names a policy's test games"),
        (
            "[columns]",
            '[variants.all]\n"evaluate.tasks" = 40\n[columns]',
            "3",
            "has 19 test games, and none to play after the first 40",
        ),
    ],
)
def test_fresh_games_that_cannot_be_are_refused(
    confirmed, capsys, old, new, given, message
):
    path, root, played = confirmed
    path.write_text(CONFIRMED.replace(old, new))
    assert cli.main(["study", str(path), "--root", str(root), "--confirm", given]) == 2
    assert message in capsys.readouterr().err
    assert played == []


@pytest.mark.slow
def test_a_cell_computed_again_has_not_played_fresh_games(confirmed, capsys):
    path, root, played = confirmed
    grid = study_file.read_study(path)
    first = next(study_file.cells(grid))
    command = ["study", str(path), "--root", str(root), "--confirm", "3"]
    assert cli.main(command) == 0
    run = root / "runs" / study_file.config_of(grid, first).digest()
    (run / "stages/collect.json").unlink()
    study.compute(grid, first, root)
    assert not (run / "confirmation").exists()
    capsys.readouterr()
    assert cli.main([*command, "--table"]) == 0
    assert "| short | 1 of 2 |" in capsys.readouterr().out
    played.clear()
    assert cli.main(command) == 0
    assert played == [(0, "bc")]


def test_games_of_an_environment_that_was_down_are_played_again(
    confirmed, capsys, monkeypatch
):
    path, root, played = confirmed
    command = ["study", str(path), "--root", str(root), "--confirm", "3"]
    with monkeypatch.context() as down:
        down.setattr(doubles.Corridor, "reset", lambda *_, **__: 1 / 0)
        with pytest.raises(ConnectionError, match="began none of 3 tasks: ZeroDiv"):
            study.confirm(
                grid := study_file.read_study(path),
                next(study_file.cells(grid)),
                root,
                3,
            )
    with monkeypatch.context() as broken:
        broken.setattr(doubles.Corridor, "step", lambda *_: 1 / 0)
        assert cli.main(command) == 2
    assert "broke all of its 3 games" in capsys.readouterr().err
    played.clear()
    assert cli.main(command) == 0
    assert len(played) == 3
    assert "| long | 1 of 2 | 0.000 [" in capsys.readouterr().out


def test_a_run_that_was_deleted_cannot_confirm_games(confirmed, capsys):
    path, root, _ = confirmed
    gone = next((root / "runs").iterdir())
    shutil.rmtree(gone)
    assert cli.main(["study", str(path), "--root", str(root), "--confirm", "3"]) == 2
    assert f"{gone}" in capsys.readouterr().err
