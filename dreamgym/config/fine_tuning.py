"""Settings of fine-tuning in the real environment, with its rounds."""

import dataclasses

from dreamgym.agent.config import PlanConfig
from dreamgym.training.config import LoopConfig

FINE_TUNING = ("updates", "expert_iteration", "dream_updates")
"""Methods of fine-tuning in the real environment."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RealIterationConfig:
    """Rounds of real play, a refit of the experience model, and learning in its dream.

    Methods "expert_iteration" and "dream_updates" have them.
    """

    rounds: int = 1
    """How often the policy plays its part of the budget and then learns."""
    refit_share: float = 0.3
    """Updates by which each round fits the experience model further to the real
    episodes so far, as a share of `pretrain.fit.steps`, before the policy dreams again;
    0 keeps the model as it is."""
    plan: PlanConfig = PlanConfig()
    """Whether the policy of `s2r` plans in the dream while it plays in the real
    environment, and how. What was won with a plan is imitated, so that the policy
    learns it; the controls have no dream to plan in. "auto" plans only where it means
    "a_star"."""

    def __post_init__(self):
        if self.rounds < 1 or not 0 <= self.refit_share <= 1:
            raise ValueError(
                "rounds must be >= 1 and refit_share in [0, 1], got "
                f"{self.rounds} and {self.refit_share}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig(LoopConfig):
    """Fine-tuning in the real environment."""

    real_transitions: int = 3000
    """Budget of real transitions of each fine-tuning."""
    method: str = "updates"
    """"updates" trains by trust-region updates on real rollouts; "expert_iteration"
    plays train tasks (also its `fresh_tasks`) and imitates what was won, with what is
    won in the dream in other tasks (not for `real_only`). An environment that draws
    lots takes "updates" in its place: what was won there may have been lucky. Imitation
    reads no rewards: `transfer.reward` and `transfer.update` then have no effect.
    "dream_updates" plays train tasks, fits the experience model further to that, and
    makes `updates` trust-region updates in its dream, in each round; `real_only` and
    `real_only_total`, which have no dream, take "updates". So does `s2r` where
    `train.environment` is "real", which is a control as well, and where the dream was
    refused or cannot be refitted: with an ensemble, a chat server, or outcomes that
    were permuted."""
    iteration: RealIterationConfig = RealIterationConfig()
    """How methods "expert_iteration" and "dream_updates" play and refit."""

    def __post_init__(self):
        super().__post_init__()
        plans = self.iteration.plan.method not in ("none", "auto")
        if plans and self.method != "expert_iteration":
            raise ValueError(
                "iteration.plan needs method 'expert_iteration': the turns of a plan "
                f"are not the policy's own, got {self.method!r}"
            )
        if self.iteration.plan.world != "dream":
            raise ValueError(
                "iteration.plan.world is a control of test games: it must be dream, "
                f"got {self.iteration.plan.world!r}"
            )
        if self.method not in FINE_TUNING:
            raise ValueError(
                f"method must be one of {FINE_TUNING}, got {self.method!r}"
            )
        if self.method == "dream_updates":
            self._check_dream_updates()
        if self.real_transitions < 0:
            raise ValueError(
                f"real_transitions must be >= 0, got {self.real_transitions}"
            )
        probes = self.monitor.real_eval_every
        if self.goes_back or probes or self.max_transitions:
            raise ValueError(
                "forks_per_update, curriculum.demonstration_starts.share and "
                "monitor.real_eval_every must be 0 (the real environment cannot go "
                "back, and its rollouts are real already), and max_transitions too "
                f"(real_transitions is that); got {self.forks_per_update}, "
                f"{self.curriculum.demonstration_starts.share}, {probes} and "
                f"{self.max_transitions}"
            )

    def _check_dream_updates(self):
        """Refuse settings with which updates in a refitted dream make no sense."""
        if not self.iteration.refit_share:
            raise ValueError(
                "method 'dream_updates' plays to refit the experience model: "
                "iteration.refit_share must be > 0, got 0.0"
            )
        if problem := self.reward.dream_problem():
            raise ValueError(
                f"method 'dream_updates' learns in a dream: reward.{problem}"
            )
