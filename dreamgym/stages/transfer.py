"""Stages: real fine-tuning of the dream's policy, and its controls.

s2r: the loop on the real environment from dream. real_only: the same from warmstart.
real_only_total: from warmstart, with the collected transitions as extra budget.
"""

from collections.abc import Callable
from typing import Any

from dreamgym.build import environments
from dreamgym.build import episodes as run_episodes
from dreamgym.build.loop import reinforce
from dreamgym.build.models import load_policy
from dreamgym.run.directory import Run


def body_of(name: str, start: str) -> Callable[[Run], dict[str, Any]]:
    """Return the body of the stage that makes the policy `name` from `start`."""

    def body(run: Run) -> dict[str, Any]:
        if not run.config.env:
            return {"status": environments.NO_ENV}
        budget = run.config.transfer_budget
        if name == "real_only_total":
            budget += run.numbers("collect")["real_transitions"]
        train, _ = run_episodes.read(run)
        tasks = list({e.task.id: e.task for e in train}.values())
        policy, envs = load_policy(run, start), environments.real_envs(run)
        try:
            _, progress = reinforce(
                run, name, policy, policy, envs, tasks, run.config.transfer,
                budget=budget,
            )  # fmt: skip
        finally:
            envs.close()
        run.drop(f"checkpoints/{name}")
        return {"updates": progress.update, "real_transitions": progress.transitions}

    body.__doc__ = f"Fine-tune {start} in the real environment; writes policies/{name}."
    return body
