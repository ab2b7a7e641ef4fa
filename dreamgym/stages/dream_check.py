"""Stage: checks the dream on the policy that is to be trained in it.

The warm start plays dev tasks in the dream and, if there is an environment, the same
tasks in reality. The policy is only trained in the dream if both agree on success.
"""

import sys
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dream_cost
from dreamgym.build.environments import (
    dreamed_dev_games,
    play_dev_games,
    plays_dev_games,
)
from dreamgym.build.experience import load_experience
from dreamgym.build.models import load_policy
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import (
    dev_metrics,
    disagrees,
    dream_faults,
    gap_text,
    scorecard_refusals,
    success_gap,
)
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Compare the warm start in the dream with the real environment, before training.

    The marker says whether training is `refused`, and why.
    """
    policy = load_policy(run, "warmstart")
    real = None
    played_as = run.numbers("warmstart").get("kept", "warmstart")
    if plays_dev_games(run, played_as):
        real = play_dev_games(run, played_as, policy)
    if run.config.train.environment == "real":  # the control asks no dream
        return {"real": {} if real is None else dev_metrics(real), "refused": ""}
    c = run.config.dream_check
    reasons = scorecard_refusals(
        run.read_json("fidelity.json"),
        min_predictable=c.min_predictable,
        min_ends=c.min_ends,
    )
    experience = load_experience(run, stage="dream_check", scaled=True)
    with run_chat.experience_session(experience):
        dreamed = dreamed_dev_games(run, experience, policy)
    numbers: dict[str, Any] = {"dreamed": dev_metrics(dreamed)}
    if "real_success" not in numbers["dreamed"]:
        reasons.append(f"none of {len(dreamed)} dreamed episodes could be scored")
    if real is not None:
        numbers |= _compare(run, real, dreamed)
        if numbers["disagrees"]:
            reasons.append(numbers["sentence"])
    refused = "; ".join(reasons)
    forced = c.force or run.config.pretrain.permute_outcomes
    if refused:
        outcome = "it is trained there all the same" if forced else "it is not trained"
        print(f"dream_check: {refused}: {outcome}", file=sys.stderr)
    return numbers | {"refused": refused, "forced": bool(refused) and forced}


def _compare(
    run: Run, real: list[Trajectory], dreamed: list[Trajectory]
) -> dict[str, Any]:
    """The metrics of real games, and where the dreamed ones differ from them."""
    by_task = {t.episode.task.id: t for t in real}
    pairs = [by_task[t.episode.task.id] for t in dreamed]  # some begin with nothing
    gap = success_gap(pairs, dreamed, seed=run.config.seed)
    faults = dream_faults(pairs, dreamed)
    metrics, tolerance = dev_metrics(real), run.config.dream_check.max_success_gap
    return {
        "real": metrics,
        "gap": gap,
        "disagrees": disagrees(gap, tolerance, metrics.get("real_success", 0.0)),
        "faults": faults,
        "sentence": ": ".join(
            [gap_text(gap), *([", ".join(faults)] if faults else [])]
        ),
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dev games take in the dream; those in reality are played by now.

    The control that trains in the real environment asks no dream.
    """
    if config.train.environment == "real":
        return Cost()
    games = config.train.monitor.real_eval_tasks
    return dream_cost(config, workload, games * workload.max_steps)
