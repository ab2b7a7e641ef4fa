"""Stage: fits the reward model, if the rewards of a training loop use one."""

from typing import Any

from dreamgym.build import rewards
from dreamgym.build.costs import ranking_cost
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Fit a reward model if the rewards of a loop need one; write reward_model/."""
    loops = (run.config.train, run.config.transfer)
    if not any(loop.reward.fits_reward_model for loop in loops):
        return {"pairs": 0}
    return rewards.fit(run, run.config.reward_model)


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fit takes, if the rewards of a loop need one."""
    loops = (config.train, config.transfer)
    if not any(loop.reward.fits_reward_model for loop in loops):
        return Cost()
    c = config.reward_model
    return ranking_cost(workload, c.steps, c.batch_pairs)
