"""`dreamgym serve`: what it serves, its log, and how it stops."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from dreamgym import cli
from dreamgym.cli import serving
from dreamgym.commands import serve
from tests.dreamgym.serving.common import Client, code
from tests.dreamgym.serving.runs import fitted_run

ROOT = Path(__file__).parents[3]


class Served:
    """A `dreamgym serve` in a process of its own."""

    def __init__(self, *args):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dreamgym", "serve", *map(str, args), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.log = []
        self.url = self.until("server_started")["url"]

    def until(self, event):
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == event:
                return self.log[-1]
        raise AssertionError(f"no {event}: {self.log}")


@pytest.mark.medium
def test_a_run_is_served_until_a_signal_and_its_session_is_told(tmp_path):
    run = fitted_run(tmp_path / "a")
    served = Served(run.root, "--grace-seconds", "0.3")
    try:
        facts = httpx.get(f"{served.url}/metadata").json()
        assert (facts["name"], facts["max_episode_steps"]) == ("a", 4)
        with Client(served.url) as client:
            first = client.reset(seed=1, details=True)
            assert first["metadata"]["model_version"] == facts["version"]
            step = client.step("go right")
            assert isinstance(step["metadata"]["reasoning"], str)
            assert len(step["metadata"]["recalled"]) > 0
            client.reset(seed=1)
            served.process.send_signal(signal.SIGTERM)
            assert code(client.receive()) == ("SESSION_ERROR", "server_stopping")
        stopped = served.until("server_stopped")
        assert stopped["sessions"] == 0
        assert served.process.wait(20) == 0
    finally:
        served.process.kill()
        served.process.wait()
    events = [row["event"] for row in served.log]
    assert {"model_warms_up", "session_opened", "session_closed"} <= set(events)
    closed = next(r for r in served.log if r["event"] == "session_closed")
    assert (closed["reason"], closed["steps"]) == ("server_stopping", 1)


@pytest.mark.medium
def test_an_environment_is_served_until_ctrl_c():
    served = Served("tests.doubles:Corridor")
    try:
        with Client(served.url) as client:
            assert client.reset(seed=1)["done"] is False
            served.process.send_signal(signal.SIGINT)
            assert client.step("go right")["done"] is False  # it may end its episode
            served.process.send_signal(signal.SIGINT)  # or not: at once
        assert served.process.wait(20) == 0
    finally:
        served.process.kill()
        served.process.wait()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "unknown environment 'nowhere'"),
        (["."], "no run there (no manifest.json)"),
        (["runs/none"], "runs/none: no such run directory"),
        (["tests.doubles:Corridor", "--host", "0.0.0.0"], "needs a token"),
        (["tests.doubles:Corridor", "--token-env", "NOT_SET"], "NOT_SET: the variable"),
        (["tests.doubles:Corridor", "--port", "70000"], "--port must be 0 to 65535"),
        (["tests.doubles:Corridor", "--max-sessions", "0"], "max_sessions must be"),
    ],
)
def test_what_cannot_be_served_is_said(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOT_SET", raising=False)
    assert cli.main(["serve", *args]) == 2
    assert message in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(monkeypatch, capsys):
    monkeypatch.setattr(serve, "open_world", lambda *_, **__: pytest.fail("opened"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        assert cli.main(["serve", "tests.doubles:Corridor", "--port", port]) != 0
    error = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in error
    assert "choose another --port (0 takes a free one)" in error


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(serving, "EXTRA", ("no_such_module",))
    assert cli.main(["serve", "textworld"]) == 2
    assert "pip install 'dreamgym[serve]'" in capsys.readouterr().err
