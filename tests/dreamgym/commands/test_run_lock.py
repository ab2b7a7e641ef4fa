"""Two commands on one run directory: the second is refused by the name of the first."""

import json
import subprocess
import sys
import time

import pytest

from dreamgym.cli import main
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from tests import doubles
from worldmodel.data.records import write_episodes

ENV = """
import time
from pathlib import Path
from dreamgym import TextEnv

class Stuck(TextEnv):
    def reset(self, *, seed=None, options=None):
        Path("reset").touch()
        time.sleep(120)
"""


@pytest.fixture
def run(tmp_path):
    """A run that has played test games, and was not fitted."""
    run = Run(tmp_path / "r", preset("tiny", {"env.id": "tests.doubles:Corridor"}))
    train, dev = doubles.tasks("train")[:2], doubles.tasks("dev")[:1]
    write_episodes(run.path("episodes.jsonl"), [doubles.expert(t) for t in train])
    write_episodes(run.path("dev.jsonl"), [doubles.expert(t) for t in dev])
    games = [doubles.trajectory(t, ["look"]).episode for t in doubles.tasks("test")[:2]]
    write_episodes(run.path("test/bc.jsonl"), games)
    run.write_json("results.json", {"policies": {}})
    run.path("policies/bc").mkdir(parents=True)
    run.path("policies/bc/config.json").write_text("{}")
    return run


def contents(root):
    return {
        p.relative_to(root): p.read_bytes()
        for p in root.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


@pytest.mark.medium
def test_the_second_command_names_the_first(tmp_path):
    (tmp_path / "stuck.py").write_text(ENV)
    command = ["collect", "--run-dir", "r", "--preset", "tiny", "--env", "stuck:Stuck"]
    words = [sys.executable, "-m", "dreamgym", *command]
    first = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "reset").exists():  # it works now
            assert first.poll() is None, first.stderr and first.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        before = contents(tmp_path / "r")
        for again in (command, ["pretrain", "--run-dir", "r"]):
            words = [sys.executable, "-m", "dreamgym", *again]
            second = subprocess.run(
                words,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert second.returncode == 2
            place = tmp_path / "r"
            expected = f"dreamgym {again[0]}: {place}: process {first.pid} ("
            assert expected in second.stderr
            assert " -m dreamgym collect --run-dir r --preset tiny" in second.stderr
            assert "Traceback" not in second.stderr
        assert contents(tmp_path / "r") == before
    finally:
        first.kill()
        first.communicate()


@pytest.mark.parametrize(
    "command",
    [
        ["card", "RUN"],
        ["robustness", "RUN"],
        ["transfer-matrix", "RUN", "OTHER"],
        ["transfer-matrix", "OTHER", "RUN"],
        ["report", "RUN"],
        ["scorecard", "RUN"],
        ["reward-model", "RUN", "--steps", "1"],
        ["dpo", "RUN", "--pairs", "collected"],
        ["evaluate", "RUN", "--confirm", "3"],
        ["quickstart", "--run-dir", "RUN"],
        ["transfer", "--run-dir", "RUN"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_every_command_that_writes_is_refused(run, tmp_path, capsys, command):
    Run(tmp_path / "o", run.config)
    names = {"RUN": str(run.root), "OTHER": str(tmp_path / "o")}
    with run.lock:
        owner = json.loads(run.path(".lock").read_text())
        before = contents(tmp_path)
        assert main([names.get(word, word) for word in command]) == 2
        error = capsys.readouterr().err
        assert f"{run.root}: process {owner['pid']} ({owner['command']!r}" in error
        assert contents(tmp_path) == before


def test_commands_that_only_read_are_not_refused(run, capsys, monkeypatch):
    monkeypatch.chdir(run.root.parent)  # where the plot of `compare` is written
    with run.lock:
        before = contents(run.root)
        assert main(["doctor", str(run.root)]) == 0
        other = run.root.parent / "o"
        Run(other, run.config)
        assert main(["compare", str(run.root), str(other)]) == 0
        assert capsys.readouterr().out
        assert contents(run.root) == before
