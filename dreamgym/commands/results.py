"""Stage: real fine-tuning and its controls, then results.json and the report.

s2r: the loop on the real environment from dream. real_only: the same from warmstart.
real_only_total: from warmstart, with the collected transitions as extra budget.
"""

import json
from typing import Any

from dreamgym.build import environments
from dreamgym.evaluation import evaluate, report
from dreamgym.run.directory import SCHEMA, Run, versions
from dreamgym.stages import evaluate as evaluate_stage
from dreamgym.stages.transfer import STARTS
from dreamgym.training.metrics import training_note

STAGES = (
    "collect", "pretrain", "ensemble", "fidelity", "warmstart", "train", "evaluate",
    "transfer",
)  # fmt: skip


def real_transitions(run: Run) -> dict[str, int]:
    """Return the real environment steps that each policy has cost, test games aside.

    Those of the dream count the steps in which the scorecard replayed dev games. All
    begin at the experience model, so each has cost what was collected; one that
    began elsewhere needed less, and is still told the whole.
    """
    collected = run.require("collect")["numbers"]
    warm = run.require("warmstart")["numbers"]
    spent = run.read_json("spent.json") if run.path("spent.json").is_file() else {}
    trained = (run.done("train") or {"numbers": {}})["numbers"].get(
        "real_transitions", 0
    )
    pretrained = collected["transitions"] + collected["dev_transitions"]
    early = pretrained + warm["branch_transitions"]
    dreamed = early + run.numbers("fidelity").get("real_transitions", 0) + trained
    return {
        "untrained": pretrained,
        "bc": pretrained,
        "warmstart": early,
        "dream": dreamed,
        "s2r": dreamed + spent.get("s2r", 0),
        **{n: early + spent.get(n, 0) for n in STARTS if n != "s2r"},
    }


def write_results(run: Run) -> dict[str, Any]:
    """results.json, table.md and the plots, from what the run holds."""
    cost = real_transitions(run)
    played = {
        name: evaluate.trajectories(run.path(f"test/{name}.jsonl"))
        for name in (*evaluate_stage.ZERO_SHOT, *STARTS)
        if run.path(f"test/{name}.jsonl").is_file()
    }
    families: dict[str, Any] = {}
    for name, found in played.items():
        for family, part in evaluate.by_family(found).items():
            row = evaluate.summary(part, real_transitions=cost[name])
            families.setdefault(family, {"policies": {}})["policies"][name] = row
    results: dict[str, Any] = {
        "schema": SCHEMA,
        "preset": run.config.preset,
        "seed": run.config.seed,
        "versions": versions(),
        "policies": {
            name: evaluate.summary(found, real_transitions=cost[name])
            | {"note": _note(run, name)}
            for name, found in played.items()
        },
        "families": families,
        "paired": {},
        "fidelity": run.read_json("fidelity.json"),
        "bound": run.read_json("bound.json")
        if run.path("bound.json").is_file()
        else None,
        "seconds": {s: (run.done(s) or {}).get("seconds") for s in STAGES},
    }
    if played:
        results["paired"] = _paired(run, played)
        for family, row in families.items():
            part = {n: evaluate.by_family(t)[family] for n, t in played.items()}
            row["paired"] = _paired(run, part)
    else:
        results["skipped"] = environments.NO_ENV
    run.write_json("results.json", results)
    report.write(run.root, results)
    return results


def _note(run: Run, policy: str) -> str | None:
    """Return what is to be said of a policy's training loop, if it had one."""
    path = run.path(f"curves/{policy}.jsonl")
    if policy not in ("dream", *STARTS) or not path.is_file():
        return None
    return training_note([json.loads(x) for x in path.read_text().splitlines()])


def _paired(run: Run, played: dict[str, Any]) -> dict[str, Any]:
    pairs = [
        ("dream", "warmstart"), ("dream", "bc"), ("warmstart", "bc"),
        ("s2r", "real_only"), ("s2r", "real_only_total"), ("s2r", "dream"),
    ]  # fmt: skip
    return {
        f"{a}_minus_{b}": evaluate.paired(played[a], played[b], seed=run.config.seed)
        for a, b in pairs
        if a in played and b in played
    }
