"""`dreamgym evaluate RUN --plan`: test games again, planned in the run's dream."""

import json

import pytest

from dreamgym.cli import main
from dreamgym.commands import planning
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run, RunError
from tests import doubles
from worldmodel.data.records import read_episodes, write_episodes

CORRIDOR = "tests.doubles:Corridor"


def played(root, method, won):
    """A run whose policy bc has won so many of six test games."""
    run = Run(
        root, preset("tiny", {"evaluate.plan.method": method, "env.id": CORRIDOR})
    )
    directory = run.path("policies/bc")
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    games = [
        doubles.trajectory(
            t, doubles.plan(t.initial_state) if i < won else ["fly"], index=i
        ).episode
        for i, t in enumerate(doubles.tasks("test")[:6])
    ]
    run.path("test").mkdir()
    write_episodes(run.path("test/bc.jsonl"), games)
    return run


def test_the_gain_is_paired_by_game(tmp_path):
    source = played(tmp_path / "a", "none", 2)
    planned = played(tmp_path / "b", "mpc", 5)
    assert planning.stages(source) == planning.stages(source, ["bc"]) == ["evaluate/bc"]
    with pytest.raises(RunError, match=r"no policy 'dream' has played.*bc"):
        planning.stages(source, ["dream"])
    result = planning.gains(planned, source)
    row = result["policies"]["bc"]
    assert (row["without"]["mean"], row["success"]["mean"]) == (2 / 6, 5 / 6)
    assert row["difference"]["mean"] == pytest.approx(0.5)
    assert json.loads((tmp_path / "b" / planning.FILE).read_text()) == result
    head, _, line = planning.table(result).splitlines()
    assert "| mpc |" in head
    assert "| bc | 33.3 % | 83.3 % | +0.500 [" in line
    idle = result["policies"]["bc"] | {"dreamed_per_step": 0.0}
    text = planning.table(result | {"policies": {"bc": idle}})
    assert text.endswith("the difference is that of other draws.")
    assert "bc took no dreamed step" in text


def test_fewer_games_are_paired_with_those_of_the_source(tmp_path):
    """Planning is slow: `--set evaluate.tasks` may ask for fewer."""
    source = played(tmp_path / "a", "none", 2)
    planned = played(tmp_path / "b", "mpc", 5)
    games = read_episodes(planned.path("test/bc.jsonl"))
    write_episodes(planned.path("test/bc.jsonl"), [games[4], games[0]])
    row = planning.gains(planned, source)["policies"]["bc"]
    assert row["difference"]["episodes"] == 2
    assert row["difference"]["mean"] == pytest.approx(0.5)  # game 0 was won before


def test_a_run_without_test_games_has_nothing_to_plan(tmp_path):
    with pytest.raises(RunError, match="run dreamgym evaluate without --plan first"):
        planning.stages(Run(tmp_path, preset("tiny")))


def test_what_is_refused_leaves_no_run_directory(tmp_path, capsys):
    file = tmp_path / "mine.jsonl"
    write_episodes(file, [doubles.expert(t) for t in doubles.tasks("train")[:4]])
    recorded = {"env.id": "", "data.episodes": str(file)}
    with Run(tmp_path / "r", preset("tiny", recorded)):
        pass
    assert main(["evaluate", str(tmp_path / "r"), "--plan", "mpc"]) == 2
    error = capsys.readouterr().err
    assert "a run without an environment has no games to play" in error
    assert {p.name for p in tmp_path.iterdir()} == {"r", file.name}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--depth", "3"], "--depth has no effect without --plan"),
        (["--policy", "bc"], "--policy has no effect without --plan"),
        (["--world", "real"], "--world has no effect without --plan"),
        (["--plan", "mpc"], "give RUN"),
        (["a", "--run-dir", "b", "--plan", "mpc"], "give one"),
        (["nowhere", "--plan", "mpc"], "nowhere"),
    ],
)
def test_options_without_effect_are_refused(options, message, capsys):
    assert main(["evaluate", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_finished_run_plays_its_test_games_with_a_plan(tmp_path, capsys):
    root, settings = tmp_path / "r", ["--set", "evaluate.tasks=4"]
    stages = ["bc", "evaluate/bc"]
    command = ["--preset", "tiny", "--env", CORRIDOR, "--run-dir", str(root)]
    assert main(["bc", *command, *settings]) == 0
    from dreamgym.run.runner import run_stages
    from dreamgym.stages.table import STAGES

    with Run.open(root) as run:
        run_stages(run, STAGES, stages)
    capsys.readouterr()
    plan = ["--plan", "mpc", "--depth", "2", "--simulations", "3"]
    assert main(["evaluate", str(root), *plan]) == 0
    assert "| bc |" in capsys.readouterr().out
    other = Run.open(tmp_path / "r-mpc")
    assert other.config.evaluate.plan.depth == 2
    numbers = other.numbers("evaluate/bc")
    assert 0 < numbers["dreamed_per_step"] <= 6
    assert 0 <= numbers["overruled"] <= 1
    assert not other.path("policies/dream").exists()  # nothing was trained for it
    assert (tmp_path / "r" / "test" / "bc.jsonl").is_file()
    for world in ("real", "permuted"):
        assert main(["evaluate", str(root), *plan, "--world", world]) == 0
        assert f"| mpc ({world}) |" in capsys.readouterr().out
        other = Run.open(tmp_path / f"r-mpc-{world}")
        assert other.numbers("evaluate/bc")["dreamed_per_step"] > 0


def test_a_policy_of_another_command_is_left_out_of_the_table(tmp_path):
    """The plan's run has the settings of the run, and these name no pairs."""
    for pairs, names in (("", ["bc"]), ("pairs.jsonl", ["bc", "dpo"])):
        run = Run(tmp_path / (pairs or "none"), preset("tiny", {"dpo.pairs": pairs}))
        for name in ("bc", "dpo"):
            for file in (f"policies/{name}/config.json", f"test/{name}.jsonl"):
                run.path(file).parent.mkdir(parents=True, exist_ok=True)
                run.path(file).write_text("{}")
        assert planning._policies(run) == names
