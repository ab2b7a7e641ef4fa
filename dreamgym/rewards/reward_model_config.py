"""Settings of the fit of a reward model."""

import dataclasses

OBJECTIVES = ("preference", "progress")
"""What a reward model can be fitted to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardModelConfig:
    """The fit of a reward model to preference pairs (Bradley and Terry, 1952).

    With the objective "progress" it is fitted to outcomes of single episodes instead:
    the scores of the steps are shares that sum to 1 if the episode was won, and to 0 if
    it was lost (SPA-RL, arXiv:2505.20732). It is fitted where a loop's `reward.sources`
    have "reward_model" and name no directory of one.
    """

    objective: str = "preference"
    """What the model is fitted to: "preference", which of two attempts is better, or
    "progress", the outcome of an attempt as the sum of its steps' shares."""
    preferences: str = ""
    """A file of pairs (docs/concepts/rewards.md); "" makes them of the run's won and
    lost attempts at the same task."""
    steps: int = 200
    """Optimiser steps."""
    batch_pairs: int = 8
    """Pairs of a batch; the objective "progress" takes twice as many episodes."""
    row_tokens: int = 256
    """Tokens of a row, or more if a transition needs them."""
    history: int = 4
    """Past actions that are read with a transition; the objective "progress" reads
    none, so that a step's share does not depend on the steps before it."""
    learning_rate: float = 1e-3
    """Learning rate."""
    held_out_share: float = 0.2
    """Share of the tasks of `preferences` that is held out, in (0, 1)."""
    max_pairs_per_task: int = 8
    """Pairs that are made from the episodes of a task, at most."""
    save_every: int = 50
    """Steps between two checkpoints and rows of the curve."""

    def __post_init__(self):
        counts = (
            self.steps,
            self.batch_pairs,
            self.row_tokens,
            self.max_pairs_per_task,
            self.save_every,
        )
        if min(counts) < 1 or self.history < 0:
            raise ValueError(
                "steps, batch_pairs, row_tokens, max_pairs_per_task and save_every "
                f"must be >= 1, history >= 0, got {counts} and {self.history}"
            )
        if self.learning_rate <= 0 or not 0 < self.held_out_share < 1:
            raise ValueError(
                "learning_rate must be > 0 and held_out_share in (0, 1), got "
                f"{self.learning_rate} and {self.held_out_share}"
            )
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"objective must be one of {OBJECTIVES}, got {self.objective!r}"
            )
        if self.objective == "progress":
            self._check_progress()

    def _check_progress(self):
        """Refuse settings without effect on a fit to outcomes of single episodes."""
        if self.preferences:
            raise ValueError(
                'the objective "progress" is fitted to outcomes of the run\'s own '
                f"episodes, not to the pairs of a file: got preferences = "
                f"{self.preferences!r}"
            )
        if self.history not in (0, RewardModelConfig.history):
            raise ValueError(
                'the objective "progress" reads no past actions: leave history out, '
                f"got {self.history}"
            )
        for name in ("max_pairs_per_task", "held_out_share"):
            value = getattr(self, name)
            if value != getattr(RewardModelConfig, name):
                raise ValueError(
                    f'{name} is about pairs, and the objective "progress" has none: '
                    f"leave it out, got {value}"
                )
