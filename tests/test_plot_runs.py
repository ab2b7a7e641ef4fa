"""scripts/plot_runs.py over two finished runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import doubles
from worldmodel.data.records import write_episodes

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/plot_runs.py"
STEPS = {
    "bc": 100,
    "expert_iteration": 150,
    "s2r": 250,
    "planner": 260,
    "real_only": 200,
    "real_only_total": 400,
}


def finished_run(path: Path, won: int) -> Path:
    """A run whose policies win so many of four test games; real play wins none."""
    (path / "test").mkdir(parents=True)
    rows = {name: {"real_transitions": steps} for name, steps in STEPS.items()}
    (path / "results.json").write_text(json.dumps({"policies": rows}))
    tasks = doubles.tasks("test")[:4]
    for name in STEPS:
        wins = 0 if name.startswith("real") else won
        episodes = [
            doubles.expert(t) if i < wins else doubles.episode(t, ["fly"] * 3)
            for i, t in enumerate(tasks)
        ]
        write_episodes(path / f"test/{name}.jsonl", episodes)
    return path


@pytest.mark.medium
def test_the_plot_pools_the_games_of_its_runs(tmp_path):
    runs = [finished_run(tmp_path / f"{seed}", 2 + seed) for seed in range(2)]
    done = subprocess.run(
        [sys.executable, SCRIPT, *runs, "--to", tmp_path / "x.png", "--title", "doors"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.png").stat().st_size > 1000
    assert "| doors | with a dream | 260 | 0.625 [" in done.stdout  # 5 of 8 games
    assert "| doors | real play, no dream | 400 | 0.000 [" in done.stdout
