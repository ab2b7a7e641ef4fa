"""The benchmarks run, with peers where those are installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(script: str, *args: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, SCRIPTS / script, *args, "--rounds", "1", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["model"] == "1m"
    return found["rows"]


PEERS = ["--peers", ""]
if importlib.util.find_spec("torch") is not None:
    PEERS = ["--peers", "transformers"]


@pytest.mark.slow
def test_sampling_is_measured():
    options = ["--batches", "2,4", "--prompt", "16", "--new", "48", *PEERS]
    rows = run("bench_generation.py", *options)
    assert {row["batch"] for row in rows} == {2, 4}
    for row in rows:
        assert row["prefill/s"] > 0
        # One round on a busy machine may not tell a decode this short.
        assert row["decode/s"] is None or row["decode/s"] > 0
        assert 0 < row["of matrix"] < 2
        assert row["ratio"] > 0
    assert [r["ratio"] for r in rows if r["engine"] == "dreamgym"] == [1.0, 1.0]


@pytest.mark.slow
def test_training_is_measured_and_engines_agree():
    rows = run("bench_training.py", "--rows", "4", "--width", "32", *PEERS)
    losses = [row["loss"] for row in rows]
    # Equal weights, rows and first step: the second step's losses agree.
    assert max(losses) - min(losses) < 2e-3
    assert all(row["peak GB"] > 0.05 for row in rows)


@pytest.mark.slow
def test_a_conversation_is_measured():
    rows = run(
        "bench_rollout.py", "--batch", "2", "--turns", "3", "--append", "16", "--new",
        "2", *PEERS,
    )  # fmt: skip
    assert all(row["turn 3 s"] > 0 and row["growth"] > 0 for row in rows)


@pytest.mark.peer
def test_the_memory_finds_what_faiss_finds():
    pytest.importorskip("faiss")
    command = [sys.executable, SCRIPTS / "bench_memory.py", "--entries", "40000"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--json"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["rows"]
    assert [row["queries"] for row in found] == [1, 16, 64, 256]
    assert all(row["agree"] > 0.999 for row in found)
    assert all(row["ratio"] > 0 for row in found)
