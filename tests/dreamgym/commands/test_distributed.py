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
    # Muon makes steps of full length along directions in which the gradient of so few
    # examples is rounding alone, so that two equal fits would drift apart.
    *("--set", "pretrain.fit.optimizer.name=adamw"),
    *("--set", "pretrain.fit.optimizer.learning_rate=0.001"),
    *("--set", "bc.fit.optimizer.name=adamw"),
    *("--set", "bc.fit.optimizer.learning_rate=0.001"),
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
    markers = [
        sorted(p.relative_to(root) for p in root.glob("stages/**/*.json"))
        for root in (one, two)
    ]
    assert markers[0] == markers[1]
    assert not [p for p in two.rglob("*") if p.name.endswith((".tmp", ".gone"))]
    # Real steps are played alike, and each is counted once, through both kills.
    episodes = [read_episodes(root / "episodes.jsonl") for root in (one, two)]
    assert episodes[0] == episodes[1]
    for steps in two.glob("stages/**/*.steps"):
        numbers = json.loads(steps.with_suffix(".json").read_text())["numbers"]
        taken = numbers.get("real_transitions", numbers.get("test_transitions"))
        assert taken == int(steps.read_text()), steps
    collected = sum(len(e.transitions) for e in episodes[1])
    dev = sum(len(e.transitions) for e in read_episodes(two / "dev.jsonl"))
    assert int((two / "stages" / "collect.steps").read_text()) == collected + dev
    # Later fits are of games in which a draw may fall on the other side of a near-tie.
    for name in ("experience", "policies/bc"):
        a, b = (load_file(root / name / "model.safetensors") for root in (one, two))
        assert a.keys() == b.keys()
        for key in a:
            difference = np.abs(a[key] - b[key])
            # The sums of two processes are rounded otherwise than those of one, and
            # where a gradient is nearly 0 an optimiser may step either way.
            assert np.mean(difference > 1e-3) < 0.01, key
            assert difference.max() < 0.02, key
