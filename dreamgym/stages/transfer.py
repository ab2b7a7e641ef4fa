"""Stages: real fine-tuning of the dream's policy, and its controls.

s2r: the loop on the real environment from dream. real_only: the same from warmstart.
real_only_total: from warmstart, with the collected transitions as extra budget.
"""

from typing import Any

from dreamgym.build import environments
from dreamgym.build import episodes as run_episodes
from dreamgym.build.loop import reinforce
from dreamgym.build.models import load_policy
from dreamgym.run.directory import Run


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
        _, progress = reinforce(
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
    run.drop(f"checkpoints/{name}")
    return {"updates": progress.update}
