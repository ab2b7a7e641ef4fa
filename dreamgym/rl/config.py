"""The settings of a policy update: its advantage, its loss, its trust region."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from dreamgym.rl.advantages import BASELINES, CREDITS, OTHER
from dreamgym.rl.critic import CriticConfig

NORMALIZATIONS = ("batch", "group", "none")
"""By what advantages are divided."""


def _among(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {tuple(known)}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """Which probabilities are compared, and what weighs the same in the loss.

    `ratio` of a "token", or the mean of its "turn" (GSPO, arXiv:2507.18071, with
    `average` "turn"), or "none": advantage times log-probability, without a clip, as
    REINFORCE and imitation have it. (What takes from bad tokens then wants one
    minibatch an update: a second one would move a policy that did not sample.)
    `average` says what counts alike, whatever its length: a "token", a "turn" or an
    "episode" (as in the paper of GRPO). `dual_clip` above 1 bounds what a bad token
    costs; `truncate` above 0 weighs tokens by how likely the learner finds what the
    sampler drew, at most so much (for samplers of another precision).
    """

    ratio: str = "token"
    average: str = "token"
    dual_clip: float = 0.0
    truncate: float = 0.0

    def __post_init__(self):
        _among("ratio", self.ratio, ("token", "turn", "none"))
        _among("average", self.average, ("token", "turn", "episode"))
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or > 1, got {self.dual_clip}")
        if self.truncate < 0:
            raise ValueError(f"truncate must be >= 0, got {self.truncate}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyConfig:
    """How the distance to the reference is measured and where it is paid.

    `kind` "full" is over the vocabulary, "k1" and "k3" from the sampled token
    (losses.py). `place` "loss", or "reward": k1 of the turn, taken off before
    advantages. With a `target` above 0 the weight follows: up where the distance is
    larger, down where it is smaller (controllers.py).
    """

    kind: str = "full"
    place: str = "loss"
    target: float = 0.0

    def __post_init__(self):
        _among("kind", self.kind, ("full", "k1", "k3"))
        _among("place", self.place, ("loss", "reward"))
        if self.target < 0:
            raise ValueError(f"target must be >= 0, got {self.target}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A policy update: whose advantage, which ratio, how far a step may go.

    The defaults are GRPO (arXiv:2402.03300) with what came after: the loss is a mean
    over all tokens of the batch, and the advantage is not divided by the group's std,
    so that neither length nor difficulty weighs (Dr. GRPO, arXiv:2503.20783).
    `normalize_advantages` "batch" divides by their root mean square over the batch (a
    critic's are whitened), so that rewards of any size learn alike; "group" by the std
    of the group; "none" leaves them. `credit` says what of a group is compared: the
    returns from a "turn" on, of those who act at it, whole "episode" returns, or both
    those and returns from one and the same "state" on (advantages.py). What was good
    may grow further than what was bad (clip-higher, arXiv:2503.14476). `baseline`
    "others" is RLOO, "batch" REINFORCE with a baseline, "critic" PPO with GAE
    (critic.py). "success" imitates the episodes that were won (filtered SFT, rejection
    sampling, RAFT, arXiv:2304.06767), "pairs" prefers them to lost ones of their group
    (DPO, arXiv:2305.18290, at `beta`; of whole episodes, ETO, arXiv:2403.02502).
    `discount` is a turn's (advantages.py).

    `kl` weighs the distance to a reference, the policy that training began with; with
    `reference_decay` above 0 it follows as a moving average of that decay a minibatch.
    `entropy` times the entropy is added to the gain.

    After an update its KL(new || old) is measured, in nats. One whose mean over tokens
    is above `radius`, or whose largest sum over a turn is above `max_turn_kl`, is
    halved until it is not (trust_region.py); 0 sets no bound. The mean alone does not
    protect what is done in a few states only.

    The step grows over `warmup` minibatches: before it knows the gradient's noise, Adam
    moves every parameter by the whole step.
    """

    baseline: str = "group"
    critic: CriticConfig = CriticConfig()
    normalize_advantages: str = "batch"
    credit: str = "turn"
    discount: float = 0.9
    surrogate: SurrogateConfig = SurrogateConfig()
    clip_low: float = 0.2
    clip_high: float = 0.28
    entropy: float = 0.0
    kl: float = 0.02
    penalty: PenaltyConfig = PenaltyConfig()
    reference_decay: float = 0.0
    radius: float = 0.02
    max_turn_kl: float = 1.0
    beta: float = 0.1
    temperature: float = 1.0
    learning_rate: float = 1e-3
    warmup: int = 20
    minibatches: int = 4
    rows: int = 16
    width: int = 256

    def __post_init__(self):
        if not 0 < self.clip_low < 1 or self.clip_high <= 0:
            raise ValueError(
                "clip_low must be in (0, 1) and clip_high > 0, got "
                f"{self.clip_low} and {self.clip_high}"
            )
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be > 0, got {self.temperature}")
        for name in ("kl", "entropy", "radius", "max_turn_kl"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate must be > 0, got {self.learning_rate}")
        if not 0 <= self.reference_decay < 1:
            raise ValueError(
                f"reference_decay must be in [0, 1), got {self.reference_decay}"
            )
        if min(self.minibatches, self.rows, self.width, self.warmup) < 1:
            raise ValueError("minibatches, rows, width and warmup must be >= 1")
        _among("baseline", self.baseline, (*BASELINES, *OTHER))
        _among("normalize_advantages", self.normalize_advantages, NORMALIZATIONS)
        _among("credit", self.credit, CREDITS)
        if self.credit != "turn" and self.baseline not in BASELINES:
            raise ValueError(
                f"credit = {self.credit} compares returns of a group, which baseline = "
                f"{self.baseline} does not: leave credit at turn"
            )
        if self.beta <= 0:
            raise ValueError(f"beta must be > 0, got {self.beta}")
        told = (self.surrogate.ratio, self.surrogate.average)
        if self.baseline == "pairs" and told != ("none", "episode"):
            raise ValueError(
                "baseline = pairs needs surrogate.ratio = none and surrogate.average = "
                f"episode: a pair is of whole episodes; got {told[0]} and {told[1]}"
            )
        if self.penalty.place == "reward" and self.reference_decay:
            raise ValueError(
                "penalty.place = reward is paid for a fixed reference: reference_decay "
                f"must be 0, got {self.reference_decay}"
            )
        self._check_dead()

    def _check_dead(self):
        """Refuse settings that nothing would come of."""
        imitates = self.baseline in ("success", "pairs")
        if imitates and self.kl and self.penalty.place == "reward":
            raise ValueError(
                f"baseline = {self.baseline} reads no rewards, and penalty.place = "
                "reward pays the distance there: set place to loss, or kl to 0"
            )
        if self.penalty.target and not self.kl:
            raise ValueError(
                "penalty.target lets the weight kl follow, which must be > 0 to begin "
                "with, got 0"
            )
        if self.surrogate.ratio == "none" and self.surrogate.dual_clip:
            raise ValueError(
                "surrogate.dual_clip bounds a ratio, and surrogate.ratio is none: set "
                "one of them"
            )

    @property
    def reads_rewards(self) -> bool:
        """Whether it learns from rewards, not from who won alone."""
        return self.baseline not in ("success", "pairs")

    @property
    def in_returns(self) -> bool:
        """Whether advantages of turns are differences of returns, as Theorem 1 asks."""
        group = self.baseline in BASELINES and self.normalize_advantages != "group"
        critic = self.baseline == "critic" and self.normalize_advantages == "none"
        known = (group or critic) and self.credit == "turn"
        return known and self.surrogate.average == "token"


_ONE_STEP = {"surrogate.ratio": "none", "minibatches": 1, "warmup": 5}
"""Without a ratio a gradient is right at the policy that sampled: one step a batch, as
the papers have it. Four of them lost half of what a policy could (docs/LOG.md)."""

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {
        "normalize_advantages": "group", "credit": "episode",
        "surrogate.average": "episode", "clip_high": 0.2,
    },
    "dr_grpo": {"clip_high": 0.2},
    "rloo": {"baseline": "others", **_ONE_STEP},
    "reinforce": {"baseline": "batch", **_ONE_STEP},
    "gspo": {
        "normalize_advantages": "group", "surrogate.ratio": "turn",
        "surrogate.average": "turn",
    },
    "gigpo": {"normalize_advantages": "group", "credit": "state", "clip_high": 0.2},
    "ppo": {"baseline": "critic", "clip_high": 0.2},
    "filtered_sft": {"baseline": "success", "surrogate.ratio": "none", "kl": 0.0},
    "dpo": {
        "baseline": "pairs", "surrogate.average": "episode", "kl": 0.0, **_ONE_STEP
    },
}  # fmt: skip
"""Customary names as settings of UpdateConfig, over its defaults.

The default itself has no name of its own: Dr. GRPO with clip-higher (DAPO's).
"""
