"""Stage: fits the reward model, if the rewards of a training loop use one."""

from typing import Any

from dreamgym.build import rewards
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Fit a reward model if the rewards of a loop need one; write reward_model/."""
    loops = (run.config.train, run.config.transfer)
    if not any(rewards.needs_reward_model(loop.reward) for loop in loops):
        return {"pairs": 0}
    return rewards.fit(run, run.config.reward_model)


RANKED_TRANSITION = 0.05
"""Updates of the experience model's fit that a transition takes in one of this fit."""


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes, if the rewards of a loop need one."""
    loops = (config.train, config.transfer)
    if not any(rewards.needs_reward_model(loop.reward) for loop in loops):
        return Cost()
    c = config.reward_model
    transitions = 2 * c.batch_pairs * workload.episode_steps
    return workload.fit(c.steps * transitions * RANKED_TRANSITION)
