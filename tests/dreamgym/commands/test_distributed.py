"""A run of two processes: one run directory, as a run of one process leaves it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.dreamgym.run.test_processes import free_port
from worldmodel.data.records import read_episodes

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow  # whole runs, compiled for two processes: minutes
SETTINGS = (
    *("--set", "evaluate.tasks=4"),
    *("--set", "fidelity.transitions=8"),
    *("--set", "train.updates=1"),
    *("--set", "transfer.updates=1"),
)


def begin(root, *more):
    """Start a process of a run on one CPU device."""
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    }
    command = [sys.executable, "-m", "dreamgym", "quickstart", "--preset", "tiny"]
    command += ["--env", "tests.doubles:Corridor", "--run-dir", str(root), *SETTINGS]
    return subprocess.Popen(
        [*command, *more],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def begin_pair(root):
    """Start the two processes of a run."""
    where = f"coordinator=127.0.0.1:{free_port()},processes=2,process="
    return [begin(root, "--distributed", f"{where}{i}") for i in range(2)]


def kill_one_at(pair, marker, which):
    """Kill one of two processes once a file is there; return when both have ended."""
    while not marker.is_file():
        assert all(p.poll() is None for p in pair), pair[0].communicate()[0][-3000:]
        time.sleep(0.2)
    pair[which].send_signal(signal.SIGKILL)
    for process in pair:
        process.communicate(timeout=400)
    assert pair[1 - which].returncode != 0


def test_two_processes_make_the_run_of_one(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    alone = begin(one, "--mesh", "data=1")  # as two processes, without an estimate
    output, _ = alone.communicate(timeout=900)
    assert alone.returncode == 0, output[-3000:]
    for stage, killed in (("pretrain", 1), ("bc", 0)):
        kill_one_at(begin_pair(two), two / "stages" / f"{stage}.json", killed)
    pair = begin_pair(two)
    outputs = [p.communicate(timeout=1500)[0] for p in pair]
    assert [p.returncode for p in pair] == [0, 0], "\n".join(outputs)[-4000:]
    assert "results:" in outputs[0]
    assert "results:" not in outputs[1]
    files = {
        root: sorted(
            p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()
        )
        for root in (one, two)
    }
    assert files[one] == files[two]
    # Real steps are taken once, and played alike.
    assert read_episodes(one / "episodes.jsonl") == read_episodes(
        two / "episodes.jsonl"
    )
    counts = [
        json.loads((root / "results.json").read_text())["policies"]["s2r"]
        for root in (one, two)
    ]
    assert counts[0]["real_transitions"] == counts[1]["real_transitions"]
    for name in ("experience", "policies/bc", "policies/dream", "policies/s2r"):
        a, b = (load_file(root / name / "model.safetensors") for root in (one, two))
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_allclose(a[key], b[key], atol=2e-3, err_msg=key)
