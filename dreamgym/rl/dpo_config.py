"""Settings of offline DPO: the pairs that a policy is trained from, and its updates."""

import dataclasses
import math

from dreamgym.rl.config import check_choice

COLLECTED, PLANNED = "collected", "planned"
"""Pairs that are made in the run, as values of the setting `dpo.pairs`: of its own
episodes, and of a tree search in its dream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedPairsConfig:
    """Pairs of actions of one state, by their values in a tree search in the dream.

    The start policy plays train tasks in the dream and searches there at each step; the
    value of an action is what the search backed up for it. These are the step-level
    preferences of Agent Q (arXiv:2408.07199).
    """

    tasks: int = 64
    """Train tasks that are played in the dream, once each, at most."""
    simulations: int = 16
    """Candidate actions that are drawn of the policy in each state, and paths of the
    search from it."""
    depth: int = 6
    """Dreamed steps of a path, at most."""
    discount: float = 0.9
    """What a reward is worth a step later. With 1 an action that only takes longer is
    worth as much as the direct one."""
    margin: float = 0.25
    """How much less an action must be worth than the best one of its state to be in a
    pair with it, as a share of the largest value of all searches, in (0, 1]."""
    min_visits: int = 2
    """Visits of the search from which on an action is compared: the value of a single
    visit is that of one rollout."""

    def __post_init__(self):
        for name in ("tasks", "depth", "min_visits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.simulations < 2:
            raise ValueError(f"simulations must be >= 2, got {self.simulations}")
        if not 0 < self.discount <= 1 or not 0 < self.margin <= 1:
            raise ValueError(
                "discount and margin must be in (0, 1], got "
                f"{self.discount} and {self.margin}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DPOConfig:
    """Direct preference optimization from recorded pairs (DPO, arXiv:2305.18290).

    A policy is trained from pairs of attempts at a task, of which one is better,
    without a rollout, a reward model or a real step. Off where there are no `pairs`.
    """

    pairs: str = ""
    """A file of pairs (dreamgym.preferences/1); "collected": won over lost episodes of
    the same task among those that the run collected; or "planned": actions of one state
    by their values in a tree search in the dream (`planned`). "" trains no such
    policy."""
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
    """Share of the tasks of a file, or of "planned" pairs, that is held out, in (0, 1).
    Of "collected" pairs those of the dev tasks are held out."""
    max_pairs_per_task: int = 8
    """Pairs of a task, at most, that are made from its "collected" episodes, or from
    its searches: those whose values differ most."""
    batch_rows: int = 8
    """Packed rows that are computed at once."""
    row_tokens: int = 256
    """Tokens of a row; up to 8 times as many where a turn needs them. Pairs with a
    longer turn are left out."""
    eval_every: int = 20
    """Updates between two checkpoints and rows of the curve, with the held-out pairs'
    loss, accuracy and margin."""
    planned: PlannedPairsConfig = PlannedPairsConfig()

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
        """The file of pairs; "" where the run makes them, or there are none."""
        return "" if self.pairs in (COLLECTED, PLANNED) else self.pairs

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
        elif self.planned != default.planned and self.pairs != PLANNED:
            return f'planned is about pairs = "{PLANNED}", got {self.pairs!r}'
        elif self.file and self.max_pairs_per_task != default.max_pairs_per_task:
            return (
                "max_pairs_per_task is about pairs of the run, and pairs names a file"
            )
        elif self.pairs == COLLECTED and self.held_out_share != default.held_out_share:
            return (
                "held_out_share is about a file of pairs: of collected pairs those of "
                "the dev tasks are held out"
            )
        return None
