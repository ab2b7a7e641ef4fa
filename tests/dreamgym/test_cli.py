"""The command line: help, refusals with status 2, one stage after another."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers

from dreamgym.cli import runs as cli_runs
from dreamgym.config.presets import preset, with_control
from dreamgym.run.directory import Run
from dreamgym.run.stage import StageTable
from dreamgym.stages.table import STAGES
from tests import doubles
from tests.dreamgym.commands_as_typed import CORRIDOR, refused, run, tiny
from worldmodel.data.records import read_episodes, write_episodes

COMMANDS = ("quickstart", *STAGES.commands(), "control", "check", "report")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        run(command, "--help")
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert f"dreamgym {command}" in output
    if command == "scorecard":
        assert "RUN/scorecard/" in output
    elif command in ("reward-model", "dpo"):
        path = {"reward-model": "RUN/reward_model/", "dpo": "RUN/policies/dpo"}
        assert path[command] in output
    elif command not in ("check", "report"):
        for option in ("--run-dir", "--preset", "--seed", "--env", "--model"):
            assert option in output
    if command not in ("check", "report", "reward-model", "dpo"):
        assert output.count("--server-key-env VARIABLE") >= 1
        assert "chat_cache.sqlite" in output


TOKENIZER = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).to_str()
LLAMA = json.dumps(
    {
        "model_type": "llama",
        "vocab_size": 600,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
)


def test_the_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        run("--help")
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert [c for c in COMMANDS if c not in output] == []
    assert "examples:" in output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["launch"], ["invalid choice: 'launch'", "quickstart"]),
        (["quikstart"], ["no command 'quikstart': did you mean 'quickstart'?"]),
        (["settings", "train.updte"], ["did you mean train.update or"]),
        (["settings", "trian"], ["did you mean train?"]),
        ([], ["COMMAND"]),
        (["quickstart", "--sead", "1"], ["--sead"]),
        (["quickstart", "--seed", "one"], ["--seed", "one"]),
        (["quickstart", "--preset", "huge"], ["huge", "default", "small", "tiny"]),
        (["quickstart", "--env", "chess"], ["chess", "textworld", "module:Class"]),
        (["quickstart", "--env", "no.module:Env"], ["no.module:Env"]),
        (["quickstart", "--env", "tests.doubles:Nothing"], ["Nothing"]),
        (["quickstart", "--episodes", "missing.jsonl"], ["missing.jsonl"]),
        (["quickstart", "--seed", "-1"], ["seed", "-1"]),
        (["control", "stirred"], ["stirred", "shuffled", "real-play"]),
        (["control", "real-play"], ["--budget N", "real_only_total"]),
        (["check", "--env", "chess"], ["chess", "textworld"]),
        (["report", "nowhere"], ["nowhere: no run there"]),
        (["train", "--server", "localhost:8080"], ["--server", "http"]),
        (["train", "--server-model", "m"], ["--server-model needs --server"]),
        (["scorecard", "r", "--server-key-env", "K"], ["--server-key-env needs"]),
        (
            ["train", "--server", "http://h/v1", "--server-key-env", "sk-1"],
            ["name of a variable"],
        ),
        (
            ["quickstart", "--server", "http://h/v1", "--server-key-env", "NOT_SET"],
            ["variable NOT_SET holds no API key"],
        ),
        (["scorecard", "r", "--server", "http://h/v1", "--mesh", "data=0"], ["--mesh"]),
        (
            ["train", "--set", "train.rollout_lag=1", "--mesh", "data=0"],
            ["train.rollout_lag must be 0 with --mesh", "got 1"],
        ),
        (
            ["control", "shuffled", "--train.rollout_lag", "1", "--mesh", "data=0"],
            ["unless --rollout-mesh keeps devices for rollouts", "got 1"],
        ),
        (["train", "--rollout-mesh", "data=99"], ["least one device", "got 99 of"]),
        (["estimate", "--rollout-mesh", "data=99"], ["least one device", "got 99 of"]),
        (["quickstart", "--rollout-mesh", "data=0"], ["needs data >= 1", "got 0 of"]),
        (["train", "--rollout-mesh", "rows=1"], ["a mesh is written as"]),
        (
            ["train", "--rollout-mesh", "data=1", "--distributed", "auto"],
            ["--rollout-mesh needs one process"],
        ),
        (["control", "shuffled", "--server", "http://h/v1"], ["is not fitted"]),
        (["refit", "r"], ["--episodes"]),
        (["quickstart", "--budget", "-1"], ["budget.real_steps", "-1"]),
        (["quickstart", "--set", "budget.real_steps=9"], ["is set by --budget"]),
        (
            ["quickstart", "--env", "tests.doubles:Corridor", "--budget", "252"],
            ["--budget 252: expected at least 253 real steps"],
        ),
    ],
)
def test_what_is_unknown_is_refused_with_the_known(args, message, capsys, tmp_path):
    error = refused(capsys, *args)
    for word in message:
        assert word in error
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_an_unknown_model_is_refused_before_anything_is_collected(capsys, tmp_path):
    error = refused(
        capsys,
        "quickstart",
        "--preset",
        "tiny",
        "--run-dir",
        "r",
        "--env",
        CORRIDOR,
        "--model",
        "gigantic",
    )
    for word in ("gigantic", "micro", "nano", "config.json"):
        assert word in error
    assert not (tmp_path / "r/stages").exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"config.json": '{"model_type": "gpt2"}'}, "model_type must be one of"),
        ({"config.json": "{}"}, "model_type"),
        ({"config.json": LLAMA}, "tokenizer.json"),
        ({"config.json": LLAMA, "tokenizer.json": "{}"}, "no tokenizer"),
        ({"config.json": LLAMA, "tokenizer.json": TOKENIZER}, "no *.safetensors"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_before_the_run(
    capsys, tmp_path, files, message
):
    (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_text(content)
    args = ("--preset", "tiny", "--run-dir", "r", "--env", CORRIDOR)
    assert message in refused(capsys, "quickstart", *args, "--model", "model")
    assert not (tmp_path / "r").exists()  # nor are another model's settings in its way


# --- stages and directories --------------------------------------------------


def test_a_stage_runs_alone_and_once(capsys, tmp_path):
    assert tiny("collect", "--env", CORRIDOR) == 0
    assert "collect:" in capsys.readouterr().out
    result = (tmp_path / "r/episodes.jsonl").read_bytes()
    assert len(read_episodes(tmp_path / "r/episodes.jsonl")) == 60
    assert tiny("collect", "--env", CORRIDOR) == 0
    assert "done before" in capsys.readouterr().err
    assert (tmp_path / "r/episodes.jsonl").read_bytes() == result


def test_a_run_is_named_by_the_first_argument_of_a_stage_too(capsys, tmp_path):
    for command in ("collect", "evaluate", "estimate"):
        assert "r: no run there (no manifest.json)" in refused(capsys, command, "r")
    assert not (tmp_path / "r").exists()
    assert tiny("collect", "--env", CORRIDOR) == 0
    capsys.readouterr()
    assert run("collect", "r") == 0
    assert "done before" in capsys.readouterr().err
    error = refused(capsys, "collect", "r", "--run-dir", "s")
    assert "RUN is r and --run-dir s: give one" in error


def test_the_value_of_a_setting_is_no_run(capsys):
    assert tiny("collect", "--env", CORRIDOR) == 0
    capsys.readouterr()
    error = refused(capsys, "evaluate", "--run-dir", "r", "--env.workers", "3")
    assert "env.workers: 0 there, 3 here" in error


def test_fidelity_needs_a_run_that_is_fitted(capsys, tmp_path):
    assert "no run there" in refused(capsys, "scorecard", "r")
    assert tiny("collect", "--env", CORRIDOR) == 0
    capsys.readouterr()
    error = refused(capsys, "scorecard", "r")
    assert "stage 'pretrain' has not been run" in error
    assert "--limit must be >= 1, got 0" in refused(
        capsys, "scorecard", "r", "--limit", "0"
    )
    (tmp_path / "bad.jsonl").write_text("{}\n")
    error = refused(capsys, "scorecard", "r", "--episodes", "bad.jsonl")
    assert "bad.jsonl:1" in error


def test_other_settings_and_foreign_directories_are_refused(capsys, tmp_path):
    assert tiny("collect", "--env", CORRIDOR) == 0
    common = ["collect", "--preset", "tiny", "--env", CORRIDOR]
    error = refused(capsys, *common, "--run-dir", "r", "--seed", "3")
    assert "seed: 0 there, 3 here" in error
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("two years")
    error = refused(capsys, *common, "--run-dir", "mine")
    assert "no run of ours" in error
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("x")
    assert "file: a file; a run is a" in refused(capsys, *common, "--run-dir", "file")


def test_the_default_directory_tells_preset_seed_and_control(capsys, tmp_path):
    assert run("collect", "--preset", "tiny", "--seed", "2", "--env", CORRIDOR) == 0
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["tiny-2"]
    capsys.readouterr()


@pytest.mark.parametrize("flags", [[], ["--no-controls"], ["--no-transfer"]])
def test_a_control_has_its_directory_and_its_parts(monkeypatch, flags):
    calls = []

    def spy(root, config, **parts):
        calls.append((str(root), config, parts["fine_tune"], parts["controls"]))
        raise ValueError("no further")

    monkeypatch.setattr("dreamgym.commands.quickstart.quickstart", spy)
    monkeypatch.setattr("dreamgym.cli.estimate.print_estimate", lambda *_, **__: None)
    args = ["--preset", "tiny", "--env", CORRIDOR, "--budget", "900", *flags]
    assert run("control", "real-play", *args) != 0
    ((root, config, fine_tune, controls),) = calls
    assert Path(root) == Path("runs/tiny-0-real-play").absolute()
    assert config == with_control(
        preset("tiny", {"env.id": CORRIDOR, "budget.real_steps": 900}), "real-play"
    )
    assert fine_tune == (flags != ["--no-transfer"])
    assert controls == (flags != ["--no-controls"])


def test_a_stage_runs_what_it_needs_first(monkeypatch):
    from dreamgym.stages import table

    called = []
    stages = [
        dataclasses.replace(s, body=lambda _, n=s.name: called.append(n) or {})
        for s in table.STAGES.values()
    ]
    monkeypatch.setattr(cli_runs, "STAGES", StageTable(stages))
    assert tiny("bc", "--env", CORRIDOR) == 0
    assert called == ["collect", "pretrain", "bc", "shield"]
    called.clear()
    assert tiny("train") == 0  # the run knows its settings
    assert called == [
        "ensemble",
        "fidelity",
        "reward_model",
        "branch",
        "warmstart",
        "dream_check",
        "expert_iteration",
        "train",
    ]
    called.clear()
    assert tiny("evaluate") == 0
    trained = ("untrained", "bc", "warmstart", "expert_iteration", "dream")
    played = [f"evaluate/{name}" for name in ("random", "expert", *trained)]
    assert called == [*played, "off_policy"]


def test_an_environment_beside_you_is_found(capsys, tmp_path):
    text = "from tests.doubles import Corridor\n\n\nclass Mine(Corridor):\n    pass\n"
    (tmp_path / "only_here.py").write_text(text)
    assert run("check", "--env", "only_here:Mine") == 0
    assert "keeps the contract" in capsys.readouterr().out


# --- check and report --------------------------------------------------------


def test_check_says_what_holds(capsys):
    assert run("check", "--env", CORRIDOR) == 0
    output = capsys.readouterr().out
    assert "keeps the contract" in output
    assert "expert" in output


class Falling(doubles.Corridor):
    """Breaks the contract: its expert falls."""

    def expert(self):
        return ["go left"] * 9


class Shapeless(doubles.Corridor):
    """Breaks Gymnasium's own rules: reset gives no pair."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


@pytest.mark.parametrize("broken", [Falling, Shapeless])
def test_check_names_what_is_broken_with_status_1(broken, capsys, monkeypatch):
    monkeypatch.setattr(doubles, "Broken", broken, raising=False)
    assert run("check", "--env", "tests.doubles:Broken") == 1
    output = capsys.readouterr().out
    assert "tests.doubles:Broken breaks the contract: " in output
    assert f"\nfault: {'the expert' if broken is Falling else 'reset must'}" in output
    assert run("check", "--env", "tests.doubles:Broken", "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["faults"]) >= 1


class Talking(doubles.Corridor):
    """Prints when it is made, played and closed."""

    def __init__(self):
        print("made")
        super().__init__()

    def close(self):
        print("closed")


def test_what_an_environment_prints_is_no_part_of_the_json(capsys, monkeypatch):
    monkeypatch.setattr(doubles, "Talking", Talking, raising=False)
    run("check", "--env", "tests.doubles:Talking", "--json")
    output = capsys.readouterr()
    assert "faults" in json.loads(output.out)
    assert "made" in output.err
    assert "closed" in output.err


def test_commands_that_are_printed_can_be_pasted(capsys):
    root = Path("runs/one step")
    cli_runs._print_places(root, root / "report.html", dreams=True, plans=True)
    output = capsys.readouterr().out
    assert "dreamgym show 'runs/one step'   dreamgym doctor 'runs/one step'" in output
    assert "dreamgym evaluate 'runs/one step' --plan mpc" in output
    # The control without a dream has none to show, or to plan in.
    cli_runs._print_places(root, root / "report.html", dreams=False, plans=False)
    output = capsys.readouterr().out
    assert "next:    dreamgym doctor 'runs/one step'" in output
    assert "show" not in output
    assert "plan" not in output


def test_check_has_status_0_with_warnings_only(capsys):
    assert run("check", "--env", CORRIDOR, "--max-episode-steps", "1") == 0
    assert "no faults, 1 warning (" in capsys.readouterr().out


@pytest.mark.medium
def test_the_package_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "dreamgym", "check", "--env", CORRIDOR],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "keeps the contract" in done.stdout


def test_report_prints_the_table_of_a_finished_run_and_writes_its_page(
    capsys, tmp_path
):
    empty = {
        "policies": {},
        "families": {},
        "paired": {},
        "skipped": "skipped: why",
        "versions": {"dreamgym": "9.9"},
    }
    Run(tmp_path / "r", preset("tiny"))
    write_episodes(tmp_path / "r/dev.jsonl", [doubles.expert(doubles.task(0, 1, 2))])
    (tmp_path / "r/results.json").write_text(json.dumps(empty))
    assert run("report", "r") == 0
    output = capsys.readouterr().out
    assert "skipped: why" in output
    assert "r/report.html" in output
    page = (tmp_path / "r/report.html").read_text()
    assert "dreamgym 9.9" in page
    assert "None: the experience model gave no answer" in page  # nothing was fitted
    assert not (tmp_path / "r/report/episodes.json").exists()
    (tmp_path / "r/results.json").write_text("{")
    refused(capsys, "report", "r")


def test_a_refit_needs_a_run_and_episodes(capsys):
    assert "--episodes" in refused(capsys, "refit", "r")
    assert "no run there" in refused(capsys, "refit", "r", "--episodes", "e.jsonl")


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m dreamgym settings | head -n 1"
    done = subprocess.run(
        command, check=True, shell=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("preset  (str)")
    assert done.stderr == ""


# --- help, and errors of the program --------------------------------------------------


def test_help_and_settings_import_no_jax():
    """A fresh process: what answers at once imports no array library."""
    code = (
        "import contextlib, io, sys\n"
        "from dreamgym.cli import main\n"
        "for words in (['--help'], ['train', '--help'], ['settings', 'train']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        with contextlib.redirect_stdout(io.StringIO()):\n"
        "            main(words)\n"
        "print(sorted({'jax', 'numpy', 'httpx', 'gymnasium'} & set(sys.modules)))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == "[]"


def test_help_of_a_stage_lists_the_groups_that_it_reads(capsys):
    with pytest.raises(SystemExit):
        run("pretrain", "--help")
    out = capsys.readouterr().out
    assert "--pretrain.*" in out
    assert "--train.*" not in out


def test_an_error_of_the_program_says_where_and_how_to_report_it(capsys, monkeypatch):
    from dreamgym.commands import settings

    monkeypatch.setattr(settings, "preset", lambda *_, **__: {}["x"])
    assert run("settings") == 70
    error = capsys.readouterr().err
    assert "dreamgym settings: KeyError at dreamgym/commands/settings.py:" in error
    assert "--debug" in error
    assert "Traceback" not in error
    assert len(error.splitlines()) == 2
    assert run("settings", "--debug") == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_fit_that_diverges_is_one_line(capsys, monkeypatch):

    def diverging(_):
        raise FloatingPointError("loss is nan at update 15")

    stages = [dataclasses.replace(STAGES["collect"], body=diverging)]
    monkeypatch.setattr(cli_runs, "STAGES", StageTable(stages))
    error = refused(capsys, "collect", "--preset", "tiny", "--run-dir", "r")
    assert error.startswith("dreamgym collect: loss is nan at update 15")
