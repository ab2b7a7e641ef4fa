"""Several processes that run one program: one writes, one steps, all see the same."""

import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from dreamgym.run.process import join_processes
from worldmodel.data import processes

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_one_process_waits_for_nobody():
    assert processes.process_count() == 1
    assert processes.is_first_process()
    with processes.first_process_writes("file") as writes:
        assert writes
    assert processes.from_first_process(b"message") == b"message"
    processes.wait_for_all("anything")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("two", "--distributed is coordinator=HOST:PORT"),
        ("coordinator=a:1,processes=2", "--distributed is coordinator=HOST:PORT"),
        ("coordinator=a:1,processes=2,process=x", "--distributed is coordinator="),
        ("coordinator=,processes=1,process=0", "--distributed is coordinator="),
        (
            "coordinator=a:1,processes=2,process=2",
            r"in \[0, processes\), got 2",
        ),
        ("coordinator=a:1,processes=0,process=0", "processes must be >= 1"),
    ],
)
def test_how_processes_are_named(text, message):
    with pytest.raises(ValueError, match=message):
        join_processes(text)


def slurm(process: int, port: int) -> dict[str, str]:
    """The environment of a task that Slurm started on this machine."""
    return {
        "SLURM_JOB_ID": str(port),  # of which JAX makes the port
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": str(process),
        "SLURM_LOCALID": str(process),
    }


@pytest.mark.medium
@pytest.mark.parametrize("cluster", [False, True], ids=["by address", "slurm"])
def test_two_processes_see_the_same(tmp_path, cluster):
    port, probe = free_port(), str(Path(__file__).with_name("process_probe.py"))
    env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    running = []
    for i in range(2):
        text, more = "auto", slurm(i, port)
        if not cluster:
            text = f"coordinator=127.0.0.1:{port},processes=2,process={i}"
            more = {}
        running.append(
            subprocess.Popen(
                [sys.executable, probe, str(tmp_path), str(i), text],
                env=env | more,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    outputs = [p.communicate(timeout=300)[0] for p in running]
    assert [p.returncode for p in running] == [0, 0], "\n".join(outputs)[-4000:]
    seen = [json.loads((tmp_path / f"seen-{i}.json").read_text()) for i in range(2)]
    assert seen[0] == seen[1]
    assert seen[0]["files"] == ["by process 0", "two"]
    assert seen[0]["checkpoint"] == [4, {"host": 1}, [0.0, 1.0, 2.0, 3.0]]
    assert "printed by 0" in outputs[0]
    assert "printed by" not in outputs[1]
    # The observations name the process and the moment: equal only if they are shared.
    games = "".join(seen[0]["games"])
    assert f"a room of process {running[0].pid}" in games
    assert "ValueError: no such door" in games
    assert "EnvironmentTimeout: no answer within 1 s" in games
    # Each of the two slots steps once a round, and in the first process alone.
    taken = (tmp_path / "steps.txt").read_text().split("\n")[:-1]
    name = f" {running[0].pid}"
    assert Counter(taken) == {"go" + name: 4, "fail" + name: 2, "hang" + name: 2}
    assert (tmp_path / "count.steps").read_text() == "4"
