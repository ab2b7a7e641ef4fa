"""Stages: real fine-tuning of the dream's policy, and its controls."""

from typing import Any

from dreamgym.build import environments
from dreamgym.build.episodes import read
from dreamgym.build.loop import reinforce
from dreamgym.build.models import load_policy
from dreamgym.run.directory import Run
from dreamgym.stages import evaluate as evaluate_stage

STARTS = {"s2r": "dream", "real_only": "warmstart", "real_only_total": "warmstart"}


def body(run: Run) -> dict[str, Any]:
    """Fine-tune on the real environment and play the test games again."""
    run.require("evaluate")
    if not run.config.env:
        return {"status": environments.NO_ENV}
    collected = run.require("collect")["numbers"]
    budget = run.config.transfer_budget
    extra = collected["transitions"] + collected["dev_transitions"]
    spent = run.read_json("spent.json") if run.path("spent.json").is_file() else {}
    train, _ = read(run)
    tasks = list({e.task.id: e.task for e in train}.values())
    for name, start in STARTS.items():
        if name in spent:
            continue
        policy = load_policy(run, start)
        envs = environments.real_envs(run)
        allowed = budget + (extra if name == "real_only_total" else 0)
        try:
            _, progress = reinforce(
                run, name, policy, policy, envs, tasks, run.config.transfer,
                budget=allowed,
            )  # fmt: skip
        finally:
            envs.close()
        spent[name] = progress.transitions
        run.write_json("spent.json", spent)
        run.drop(f"checkpoints/{name}")
    success = evaluate_stage.play_all(run, tuple(STARTS))
    return success | {f"{k}_transitions": v for k, v in spent.items()}
