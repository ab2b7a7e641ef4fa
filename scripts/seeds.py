"""The claim of the README: one preset over several seeds, pooled, with its control.

preset x seeds -> runs/PRESET-SEED -> test episodes of all seeds -> one table.
Each run resumes; a finished one is not repeated.
"""

import argparse
import json
from pathlib import Path

from dreamgym import preset, quickstart
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.evaluation.report import table

PAIRS = (
    ("dream", "warmstart"),
    ("dream", "bc"),
    ("expert_iteration", "warmstart"),
    ("expert_iteration", "bc"),
    ("s2r", "real_only"),
    ("planner", "bc"),
    ("planner", "warmstart"),
    ("planner", "real_only_total"),
)


def pooled(roots: list[Path]) -> dict:
    """Return the rows of `results.json` over the test episodes of several runs."""
    costs = [json.loads((r / "results.json").read_text())["policies"] for r in roots]
    names = [n for n in costs[0] if all(n in c for c in costs)]
    played = {
        n: [t for r in roots for t in trajectories(r / f"test/{n}.jsonl")]
        for n in names
    }

    def rows(family: str | None) -> dict:
        part = {
            n: episodes if family is None else evaluate.by_family(episodes)[family]
            for n, episodes in played.items()
        }
        mean = {
            n: sum(c[n]["real_transitions"] for c in costs) // len(costs) for n in part
        }
        return {
            "policies": {
                n: evaluate.summary(t, real_transitions=mean[n])
                for n, t in part.items()
            },
            "paired": {
                f"{a}_minus_{b}": evaluate.paired(part[a], part[b], seed=0)
                for a, b in PAIRS
                if {a, b} <= part.keys()
            },
        }

    families = sorted(evaluate.by_family(played[names[0]]))
    return rows(None) | {"families": {f: rows(f) for f in families}}


def main() -> None:
    """Run the seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--model", help="another shape or directory than the preset's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tasks", type=int, help="test games of each seed")
    parser.add_argument("--shuffled", action="store_true", help="the control")
    parser.add_argument("--no-transfer", action="store_true", help="no fine-tuning")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    args = parser.parse_args()
    roots = []
    tasks = {} if args.tasks is None else {"evaluate.tasks": args.tasks}
    named = {} if args.model is None else {"model": args.model}
    for seed in args.seeds:
        suffix = "-shuffled" if args.shuffled else ""
        suffix += f"-{Path(args.model).name}" if named else ""
        root = args.runs / f"{args.preset}-{seed}{suffix}"
        config = preset(
            args.preset,
            {"pretrain.permute_outcomes": args.shuffled} | tasks,
            seed=seed,
            **named,
        )
        quickstart(root, config, fine_tune=not args.no_transfer)
        roots.append(root)
    print(table(pooled(roots)))


if __name__ == "__main__":
    main()
