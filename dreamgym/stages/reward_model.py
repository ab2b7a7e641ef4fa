"""Stage: fits the reward model and the classifier of tool use, if rewards use them."""

from typing import Any

from dreamgym.build import component_labels, rewards
from dreamgym.build.costs import ranking_cost
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Fit what the rewards of a loop need.

    That may be a reward model, in reward_model/, and a classifier of the components of
    tool use, in component_classifier/.
    """
    loops = (run.config.train, run.config.transfer)
    numbers: dict[str, Any] = {"pairs": 0}
    if any(loop.reward.fits_reward_model for loop in loops):
        numbers = rewards.fit(run, run.config.reward_model)
    match = run.config.classifier_match
    if match is not None:
        numbers = {**numbers, "components": component_labels.fit(run, match)}
    return numbers


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fits take, if the rewards of a loop need them.

    A classifier reads the questions of as many episodes as a reward model reads
    attempts, and is taken to cost as much.
    """
    loops = (config.train.reward, config.transfer.reward)
    fits = any(reward.fits_reward_model for reward in loops)
    fits += any(reward.fits_classifier for reward in loops)
    c = config.reward_model
    return ranking_cost(workload, c.steps * fits, c.batch_pairs) if fits else Cost()
