"""A message that is printed where the process of a command dies."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
"""The working directory in which tests/ can be imported."""

OUTLIVES = "os.close(1), os.close(2), time.sleep(9), os._exit(0)"

DEADLY = """
import os
from tests import doubles

class Deadly(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        os._exit(9)
"""


def ended(program):
    """Return how a program ended that ran inside the block of a notice."""
    text = (
        "import ctypes, os, time\n"
        "from dreamgym.commands.death_notice import death_notice\n"
        "with death_notice('it died'):\n"
        f"    {program}\n"
        "print('it goes on')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("program", "status", "printed"),
    [
        ("pass", 0, "it goes on\n"),
        ("raise KeyError('x')", 1, ""),
        ("os._exit(9)", 9, "it died\n"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, "it died\n"),
        # A process that outlives the block holds the pipe, too.
        (f"os.fork() or ({OUTLIVES})", 0, "it goes on\n"),
    ],
)
def test_only_a_death_is_told(program, status, printed):
    done = ended(program)
    assert (done.returncode, done.stdout) == (status, printed), done.stderr


def test_after_a_signal_the_line_is_told():
    done = ended("ctypes.string_at(0)")
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "it died\n"
    assert 'File "<string>", line 4' in done.stderr


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_check_names_an_environment_that_ends_its_process(tmp_path, options):
    (tmp_path / "deadly.py").write_text(DEADLY)
    done = subprocess.run(
        [sys.executable, "-m", "dreamgym", "check", "--env", "deadly:Deadly", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 9
    what = "the environment ended the process in which it was checked"
    if options:
        assert [f["what"] for f in json.loads(done.stdout)["faults"]] == [what]
    else:
        assert f"deadly:Deadly breaks the contract:\nfault: {what}\n" in done.stdout
        assert "--env.workers" in done.stdout


WAITED_FOR = """
import threading, time
from tests import doubles

class WaitedFor(doubles.Corridor):
    def __init__(self):
        super().__init__()
        threading.Thread(target=time.sleep, args=(1000,)).start()
"""


def test_check_ends_though_a_thread_of_the_environment_runs_on(tmp_path):
    (tmp_path / "waited.py").write_text(WAITED_FOR)
    done = subprocess.run(
        [sys.executable, "-m", "dreamgym", "check", "waited:WaitedFor", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (warning,) = json.loads(done.stdout)["warnings"]
    assert warning["what"] == "threads of the environment run on after it was closed"
