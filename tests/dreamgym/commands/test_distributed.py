"""A run of two processes: one run directory, as a run of one process leaves it.

Also where a run goes on with another number of processes than it began with.
"""

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
from worldmodel.data.json_reading import read_json_rows
from worldmodel.data.records import read_episodes
from worldmodel.fitting import checkpoint

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow  # whole runs, compiled for two processes: minutes
SETTINGS = (
    # Muon makes steps of full length along directions in which the gradient of so few
    # examples is rounding alone, so that two equal fits would drift apart.
    *("--set", "pretrain.fit.optimizer.name=adamw"),
    *("--set", "pretrain.fit.optimizer.learning_rate=0.001"),
    *("--set", "pretrain.fit.eval_every=5"),  # a checkpoint after each five updates
    *("--set", "bc.fit.optimizer.name=adamw"),
    *("--set", "bc.fit.optimizer.learning_rate=0.001"),
    *("--set", "bc.fit.eval_every=5"),
    *("--set", "evaluate.tasks=4"),
    *("--set", "fidelity.transitions=8"),
    *("--set", "train.updates=2"),
    *("--set", "transfer.updates=1"),
)
MODELS = ("experience", "policies/bc", "policies/warmstart", "policies/dream")
ALONE = ("--mesh", "data=1")  # as two processes, without an estimate


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


def begin_pair(root, *more):
    """Start the two processes of a run."""
    where = f"coordinator=127.0.0.1:{free_port()},processes=2,process="
    return [begin(root, "--distributed", f"{where}{i}", *more) for i in range(2)]


def begin_run(root, count, *more):
    """Start a run of one or two processes."""
    return begin_pair(root, *more) if count == 2 else [begin(root, *ALONE, *more)]


def finish(running, seconds=1500):
    """Wait until all processes of a run are done; return what they printed."""
    outputs = [p.communicate(timeout=seconds)[0] for p in running]
    assert [p.returncode for p in running] == [0] * len(running), outputs[0][-3000:]
    return outputs


def kill_one_at(pair, marker, which):
    """Kill one of two processes once a file is there; return when both have ended."""
    while not marker.is_file():
        assert all(p.poll() is None for p in pair), pair[0].communicate()[0][-3000:]
        time.sleep(0.2)
    pair[which].send_signal(signal.SIGKILL)
    for process in pair:
        process.communicate(timeout=400)
    assert pair[1 - which].returncode != 0


def kill_at_first_checkpoint(running, directory):
    """Kill all processes of a run in the middle of a fit or of the loop."""
    while not (steps := checkpoint.steps(directory)):
        assert all(p.poll() is None for p in running), running[0].communicate()[0]
        time.sleep(0.01)
    for process in running:
        process.kill()
    for process in running:
        process.communicate(timeout=60)
    assert steps[0] in (1, 5)  # of 2 updates of the loop, or 30 of a fit


def assert_equal_models(one, two, names=MODELS):
    """Assert that the models of two runs are equal but for what rounding does."""
    for name in names:
        a, b = (load_file(root / name / "model.safetensors") for root in (one, two))
        assert a.keys() == b.keys()
        for key in a:
            difference = np.abs(a[key] - b[key])
            # The sums of two processes are rounded otherwise than those of one, and
            # where a gradient is nearly 0 an optimiser may step either way.
            assert np.mean(difference > 1e-3) < 0.01, (name, key)
            assert difference.max() < 0.02, (name, key)


def assert_equal_curves(one, two, names):
    """Assert that fits and updates of two runs had equal losses and metrics.

    A run keeps the policy that won more dev games, so that in the corridor those after
    `bc` are mostly `bc` again: that they are equal says little of what was fitted.
    """
    for name in names:
        a, b = (
            read_json_rows(root / "curves" / f"{name}.jsonl") for root in (one, two)
        )
        assert [row.keys() for row in a] == [row.keys() for row in b], name
        for left, right in zip(a, b, strict=True):
            for key, value in left.items():
                if isinstance(value, int | float):
                    assert right[key] == pytest.approx(value, rel=1e-3, abs=1e-3), key
                else:
                    assert right[key] == value, key


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A run of one process that nobody interrupts."""
    root = tmp_path_factory.mktemp("distributed") / "one"
    finish(begin_run(root, 1))
    return root


def test_a_killed_run_goes_on_with_another_number_of_processes(tmp_path, one):
    """A fit is begun by two processes and ended by one, and the other way round.

    So is the loop in the dream, of which nothing is learnt here: the tiny dream's
    answers are malformed. In the end it has the models of a run that nobody killed.
    """
    root = tmp_path / "run"
    for stage, name, count in (
        ("pretrain", "pretrain", 2),
        ("bc", "bc", 1),
        ("train", "dream", 2),
    ):
        running = begin_run(root, count, "--no-transfer")
        kill_at_first_checkpoint(running, root / "checkpoints" / name)
        assert not (root / "stages" / f"{stage}.json").is_file()
    finish(begin_run(root, 1, "--no-transfer"))
    for name, rows in (("pretrain", 6), ("bc", 6), ("dream", 2)):
        curve = read_json_rows(root / "curves" / f"{name}.jsonl")
        assert len(curve) == rows  # of all updates, each of them once
    episodes = [read_episodes(r / "episodes.jsonl") for r in (one, root)]
    assert episodes[0] == episodes[1]
    assert_equal_models(one, root)
    assert_equal_curves(one, root, ("pretrain", "bc", "warmstart", "dream"))


def test_two_processes_make_the_run_of_one(tmp_path, one):
    two = tmp_path / "two"
    for stage, killed in (("pretrain", 1), ("bc", 0)):
        kill_one_at(begin_pair(two), two / "stages" / f"{stage}.json", killed)
    outputs = finish(begin_pair(two))
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
    assert_equal_models(one, two)
    assert_equal_curves(one, two, ("pretrain", "bc", "warmstart", "dream"))
    # The loop in the real environment, which learns: all rollouts are scored there.
    assert_equal_curves(one, two, ("s2r", "real_only", "real_only_total"))
