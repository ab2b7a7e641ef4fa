"""Settings of DPO from recorded pairs, without play."""

import dataclasses
import math

from dreamgym.rl.config import check_choice

COLLECTED = "collected"
"""The pairs of a run's own episodes, as a value of the setting `dpo.pairs`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPOConfig:
    """Direct preference optimization from recorded pairs (DPO, arXiv:2305.18290).

    A policy is trained from pairs of attempts at a task, of which one is better,
    without a rollout, a reward model or a real step. Off where there are no `pairs`.
    """

    pairs: str = ""
    """A file of pairs (dreamgym.preferences/1), or "collected": won over lost episodes
    of the same task among those that the run collected. "" trains no such policy."""
    start: str = "warmstart"
    """The policy that training begins at, which is the reference: "untrained", "bc" or
    "warmstart"."""
    beta: float = 0.1
    """beta of DPO: the larger, the less the policy may leave the reference."""
    updates: int = 100
    """Optimiser steps."""
    batch_pairs: int = 8
    """Pairs of an update."""
    learning_rate: float = 3e-4
    """Learning rate of AdamW, after a warm-up of 5 updates."""
    held_out_share: float = 0.2
    """Share of the tasks of a file of pairs that is held out, in (0, 1). Of "collected"
    pairs those of the dev tasks are held out."""
    max_pairs_per_task: int = 8
    """Pairs that are made from the "collected" episodes of a task, at most."""
    batch_rows: int = 8
    """Packed rows that are computed at once."""
    row_tokens: int = 256
    """Tokens of a row; up to 8 times as many where a turn needs them. Pairs with a
    longer turn are left out."""
    eval_every: int = 20
    """Updates between two checkpoints and rows of the curve, with the held-out pairs'
    loss, accuracy and margin."""

    def __post_init__(self):
        check_choice("start", self.start, ("untrained", "bc", "warmstart"))
        counts = ("updates", "batch_pairs", "max_pairs_per_task")
        for name in (*counts, "batch_rows", "row_tokens", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        rates = (self.beta, self.learning_rate)
        finite = all(x > 0 and math.isfinite(x) for x in rates)
        if not finite or not 0 < self.held_out_share < 1:
            raise ValueError(
                "beta and learning_rate must be > 0 and finite, and held_out_share in "
                "(0, 1), got "
                f"{self.beta}, {self.learning_rate} and {self.held_out_share}"
            )

    @property
    def file(self) -> str:
        """The file of pairs; "" where the pairs are collected, or there are none."""
        return "" if self.pairs == COLLECTED else self.pairs

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every one has."""
        default = DPOConfig()
        if not self.pairs:
            changed = [
                f.name
                for f in dataclasses.fields(self)
                if getattr(self, f.name) != getattr(default, f.name)
            ]
            if changed:
                return f"{changed[0]} has no effect without dpo.pairs"
        elif self.file and self.max_pairs_per_task != default.max_pairs_per_task:
            return "max_pairs_per_task is about collected pairs, and pairs names a file"
        elif not self.file and self.held_out_share != default.held_out_share:
            return (
                "held_out_share is about a file of pairs: of collected pairs those of "
                "the dev tasks are held out"
            )
        return None
