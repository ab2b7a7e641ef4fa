"""Plot success against real steps for the policies of finished runs of one preset.

    python scripts/plot_runs.py runs/default-0 runs/default-1 --to real_steps.png

runs of several seeds, one `results.json` each -> a curve of what the dream adds and one
of real play without it, both from behaviour cloning on.
"""

import argparse
import json
from pathlib import Path

from dreamgym.evaluation.comparisons.step_factor import Played
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.evaluation.pages import step_curves

CURVES = {
    "with a dream": ("bc", "expert_iteration", "s2r", "planner"),
    "real play, no dream": ("bc", "real_only", "real_only_total"),
}


def played(runs: list[Path], policy: str) -> Played:
    """Return the real steps of a policy and its test games, by run."""
    steps, games = {}, {}
    for seed, run in enumerate(runs):
        rows = json.loads((run / "results.json").read_text())["policies"]
        steps[seed] = rows[policy]["real_transitions"]
        games[seed] = {
            t.episode.task.id: float(bool(t.episode.success))
            for t in trajectories(run / f"test/{policy}.jsonl")
            if t.error is None
        }
    return Played(steps, games)


def main() -> None:
    """Write the plot, and print the numbers that it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="finished run directories")
    parser.add_argument("--to", type=Path, required=True, help="the picture (PNG)")
    parser.add_argument("--title", default="test games")
    args = parser.parse_args()
    curves = {n: [played(args.runs, p) for p in names] for n, names in CURVES.items()}
    step_curves.plot({args.title: curves}, args.to)
    print(step_curves.table({args.title: curves}, {}))


if __name__ == "__main__":
    main()
