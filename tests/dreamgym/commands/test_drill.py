"""A whole run beside an environment that crashes, hangs and talks nonsense."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from worldmodel.data.records import read_episodes

ROOT = Path(__file__).parents[3]
UNRELIABLE = "tests.dreamgym.envs.workers.faults:Unreliable"
LOOPS = ("dream", "s2r", "real_only", "real_only_total")
"""The loops of a run, all but the first of which play in the real environment."""
TYPES = ("EnvironmentTimeout", "TextTooLong", "FloatingPointError", "ConnectionError")


def assert_collected_games_add_up(run, broken):
    """Assert that each game that `collect` played was scored or is counted as broken.

    One that broke before its first step is in no file.
    """
    config = json.loads((run / "manifest.json").read_text())["config"]["collect"]
    files = (run / "episodes.jsonl", run / "dev.jsonl")
    episodes = [e for file in files for e in read_episodes(file)]
    scored = sum(e.success is not None for e in episodes)
    played = config["episodes"] + 2 * config["dev_tasks"]
    assert scored + sum(broken.values()) == played
    assert all(e.error for e in episodes if e.success is None)
    recorded = Counter(e.error.partition(":")[0] for e in episodes if e.error)
    assert recorded <= Counter(broken)


def assert_groups_add_up(run):
    """Assert that each rollout of a group was scored, or is counted with its reason."""
    config = json.loads((run / "manifest.json").read_text())["config"]
    for name in LOOPS:
        loop = config["train" if name == "dream" else "transfer"]
        lines = (run / f"curves/{name}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        rows = [row for row in rows if "rollouts" in row]
        assert rows, name
        for row in rows:
            rollouts, unscored = row["rollouts"], row["unscored_rollouts"]
            scored = sum(n for k, n in row.items() if k.startswith("scored/"))
            reasons = sum(n for k, n in row.items() if k.startswith("unscored/"))
            assert scored + unscored == rollouts, name
            assert reasons == unscored, name
            assert rollouts % loop["group_size"] == 0, name  # groups are whole
            if unscored and scored:
                wins = row["success"] * scored
                assert math.isclose(row["success_at_least"] * rollouts, wins)
                assert math.isclose(row["success_at_most"] * rollouts, wins + unscored)


@pytest.mark.slow  # every stage once, with processes that are killed: minutes
def test_a_run_finishes_beside_an_environment_that_breaks_at_random(tmp_path):
    cache = Path(tempfile.gettempdir()) / "dreamgym-tests-jax"
    command = [sys.executable, "-m", "dreamgym.cli", "quickstart", "--preset", "tiny"]
    run = subprocess.run(
        [
            *command,
            *("--run-dir", str(tmp_path), "--env", UNRELIABLE, "--env.workers", "3"),
        ],
        cwd=ROOT,
        text=True,
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)},
        capture_output=True,
        check=False,
        timeout=900,
    )
    assert run.returncode == 0, run.stderr[-2000:]

    files = [tmp_path / "episodes.jsonl", tmp_path / "dev.jsonl"]
    files += tmp_path.glob("test/*.jsonl")
    files += tmp_path.glob("dev_games/*.jsonl")
    played = unscored = 0
    for file in files:
        for episode in read_episodes(file):
            played += 1
            unscored += episode.success is None
            for t in episode.transitions:
                assert math.isfinite(t.reward)
                assert sum(map(len, (*t.state, *t.next_state))) < 1000
            if episode.success:
                assert episode.transitions[-1].rewards == {"coin": 1.0}
    assert played > 100

    # What broke is counted by its type, and is in no rate.
    numbers = json.loads((tmp_path / "stages/collect.json").read_text())["numbers"]
    broken = {k.removeprefix("broken/"): n for k, n in numbers.items() if "/" in k}
    assert broken
    assert all(any(t in kind for t in TYPES) for kind in broken), broken
    assert_collected_games_add_up(tmp_path, broken)
    assert_groups_add_up(tmp_path)
    rows = json.loads((tmp_path / "results.json").read_text())["policies"]
    for name, row in rows.items():
        success = row["success"]
        episodes = list(read_episodes(tmp_path / "test" / f"{name}.jsonl"))
        scored = [e for e in episodes if e.success is not None]
        assert success["episodes"] == len(scored)
        assert success["unscored"] == len(episodes) - len(scored)
        assert math.isclose(
            success["mean"], sum(e.success for e in scored) / len(scored)
        )
