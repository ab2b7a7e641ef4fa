"""Stage: off-policy comparison with recorded episodes, without an environment."""

from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dream_cost
from dreamgym.build.episodes import demonstrations
from dreamgym.build.experience import (
    load_experience,
    read_scorecard,
    remedy_folder,
)
from dreamgym.build.models import load_policy
from dreamgym.build.real.dev_play import dreamed_dev_games
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.evaluate import summary
from dreamgym.evaluation.off_policy import action_agreement
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run

POLICIES = ("bc", "warmstart", "expert_iteration", "dream")
MAX_STATES = 300
"""Maximal number of states of held-out demonstrations in which a policy acts."""


def body(run: Run) -> dict[str, Any]:
    """Compare policies with recorded episodes if there is no environment.

    Writes off_policy.json.
    """
    if run.config.env.id:
        return {"status": "skipped: an environment is at hand"}
    _, dev = demonstrations(run)
    folder = remedy_folder(run)
    experience = load_experience(run, stage="off_policy", scaled=True, folder=folder)
    out: dict[str, Any] = {"policies": {}}
    with run_chat.experience_session(experience):
        for name in POLICIES:
            policy = load_policy(run, name)
            dreamed = dreamed_dev_games(run, experience, policy, folder)
            out["policies"][name] = {
                "action_agreement": action_agreement(
                    policy,
                    dev,
                    limit=MAX_STATES,
                    seed=run.config.seed,
                    temperature=run.config.evaluate.temperature,
                ),
                "dream_success": summary(dreamed, real_transitions=0)["success"],
            }
    scorecard = read_scorecard(run, folder)
    outcomes = scorecard.get("open_loop", {}).get("outcomes", {})
    out["outcome_agreement"] = outcomes.get("agree")
    run.write_json("off_policy.json", out)
    return {
        name: row["action_agreement"]["mean"] for name, row in out["policies"].items()
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dreamed games of the policies take, without an environment."""
    if config.env.id:
        return Cost()
    games = len(POLICIES) * config.train.monitor.real_eval_tasks
    return dream_cost(config, workload, games * workload.max_steps)
