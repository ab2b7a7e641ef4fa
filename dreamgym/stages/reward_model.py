"""Stage: a model of rewards, where the rewards of a loop ask for one."""

from typing import Any

from dreamgym.build import rewards
from dreamgym.rewards.reward_model import PreferenceFitConfig
from dreamgym.run.directory import Run


def body(run: Run) -> dict[str, Any]:
    """Fit the run's reward model if a loop wants one and names none; writes reward/."""
    loops = (run.config.dream, run.config.transfer)
    if not any(rewards.needs_reward_model(loop.reward) for loop in loops):
        return {"pairs": 0}
    fit = rewards.fit(run, None, PreferenceFitConfig())
    return {k: fit[k] for k in ("pairs", "held_out", "accuracy", "better_is_shorter")}
