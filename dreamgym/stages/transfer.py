"""Stages: real fine-tuning of the dream's policy, and its controls.

s2r: the loop on the real environment from dream. real_only: the same from warmstart.
real_only_total: from warmstart, with the collected transitions as extra budget. What
was trained is kept where it is no worse on real dev games than what it began at.
"""

import sys
from typing import Any

from dreamgym.agent.policy import Policy
from dreamgym.build import environments
from dreamgym.build import episodes as run_episodes
from dreamgym.build.loop import reinforce
from dreamgym.build.models import load_policy, save_policy
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.evaluation.statistics import success_change
from dreamgym.run.directory import Run
from dreamgym.training.selection import is_no_worse


def body(run: Run, name: str, start: str) -> dict[str, Any]:
    """Fine-tune the policy `start` in the real environment; write policies/NAME."""
    if not run.config.env.id:
        return {"status": environments.NO_ENV}
    budget = run.config.transfer.real_transitions
    if name == "real_only_total":
        budget += run.numbers("collect")["real_transitions"]
    train, _ = run_episodes.read(run)
    tasks = environments.training_tasks(
        run, [e.task for e in train], run.config.transfer.fresh_tasks
    )
    policy, envs = load_policy(run, start), environments.real_envs(run)
    try:
        tuned, progress = reinforce(
            run,
            name,
            policy,
            policy,
            envs,
            tasks,
            run.config.transfer,
            budget=budget,
        )
    finally:
        envs.close()
    choice = _better_policy(run, name, start, policy, tuned)
    run.drop(f"checkpoints/{name}")
    return {"updates": progress.update, **choice}


def _better_policy(
    run: Run, name: str, start: str, before: Policy, tuned: Policy
) -> dict[str, Any]:
    """Keep what was trained where it is no worse than the start; say what is kept.

    Without real dev games, what was trained is kept.
    """
    known = _dev_success(run, start)
    if known is None or not environments.plays_dev_games(run):
        return {}
    after = dev_metrics(environments.play_dev_games(run, name, tuned))
    numbers = {
        "dev_success_before": known,
        "dev_success_after": after.get("real_success"),
    }
    if is_no_worse(after, {"real_success": known}):
        return numbers | {"kept": name}
    save_policy(run, name, before)
    change = success_change(after.get("real_success"), known)
    note = f"fine-tuning did not help, so it is {start}: of the real dev games {change}"
    print(f"{name}: {note}", file=sys.stderr)
    return numbers | {"kept": start, "note": note}


def _dev_success(run: Run, start: str) -> float | None:
    """Return the success on real dev games of the policy that fine-tuning begins at."""
    trained = run.numbers("train") if start == "dream" else {}
    if trained.get("kept") == "dream":
        return trained.get("dev_success_after")
    numbers = run.numbers("warmstart")
    return numbers.get(f"dev_success_{numbers.get('kept')}")
