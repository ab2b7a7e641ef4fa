"""Settings of a policy update: advantages, loss and trust region."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from dreamgym.rl.advantages import BASELINES, CREDITS, OTHER_ESTIMATORS
from dreamgym.rl.critic import CriticConfig

NORMALIZATIONS = ("batch", "group", "none")
"""What advantages are divided by; see UpdateConfig."""


class LossWeights(NamedTuple):
    """Weights that may change while training runs; that of the surrogate is 1.

    `kl`, `entropy` and `auxiliary` are the coefficients of the KL penalty, the entropy
    bonus and the auxiliary loss. `dense_rewards` multiplies reward components that are
    not outcomes (docs/REWARDS.md).
    """

    kl: float
    entropy: float = 0.0
    auxiliary: float = 0.0
    dense_rewards: float = 1.0


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {tuple(choices)}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """The surrogate loss: its importance ratio and how it is averaged.

    `ratio` is that of each "token", or the mean over its "turn" (GSPO,
    arXiv:2507.18071, with `average` "turn"). With "none" the loss is the advantage
    times the log-probability, without a clip, as in REINFORCE and in imitation; such
    losses take one minibatch per update, because a second one would update a policy
    other than the one that sampled.

    `average` names the unit that counts equally in the loss, whatever its length: a
    "token", a "turn" or an "episode" (as in the GRPO paper). `dual_clip` above 1 bounds
    the loss of tokens with a negative advantage (0: no bound). `truncate` above 0
    weights each token by its probability under the learner over that under the sampler,
    at most by that value, for samplers of another numerical precision (0: no weight).
    """

    ratio: str = "token"
    average: str = "token"
    dual_clip: float = 0.0
    truncate: float = 0.0

    def __post_init__(self):
        _check_choice("ratio", self.ratio, ("token", "turn", "none"))
        _check_choice("average", self.average, ("token", "turn", "episode"))
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or > 1, got {self.dual_clip}")
        if self.truncate < 0:
            raise ValueError(f"truncate must be >= 0, got {self.truncate}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PenaltyConfig:
    """The penalty on the KL divergence from the reference policy.

    `kind` is the estimator: "full" sums over the vocabulary, "k1" and "k3" use the
    sampled token (losses.py). `place` adds the penalty to the "loss", or subtracts the
    k1 estimate of a turn from its "reward" before advantages are computed. With a
    `target` above 0 (in nats) the weight of the penalty is adapted after each update:
    it grows while the divergence is above the target, and shrinks while it is below
    (trust_region.py).
    """

    kind: str = "full"
    place: str = "loss"
    target: float = 0.0
    reference_decay: float = 0.0

    def __post_init__(self):
        _check_choice("kind", self.kind, ("full", "k1", "k3"))
        _check_choice("place", self.place, ("loss", "reward"))
        if self.target < 0:
            raise ValueError(f"target must be >= 0, got {self.target}")
        if not 0 <= self.reference_decay < 1:
            raise ValueError(
                f"reference_decay must be in [0, 1), got {self.reference_decay}"
            )
        if self.place == "reward" and self.reference_decay:
            raise ValueError(
                "place = reward is paid for a fixed reference: reference_decay must be "
                f"0, got {self.reference_decay}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A policy update: its advantages, its loss, its trust region and its optimiser.

    The defaults are GRPO (arXiv:2402.03300) with later improvements: the loss is a mean
    over all tokens of the batch and advantages are not divided by the group's standard
    deviation, so that neither length nor difficulty changes a weight (Dr. GRPO,
    arXiv:2503.20783), and the upper clip bound is wider than the lower one
    (clip-higher, arXiv:2503.14476).

    `baseline` selects the advantage estimator. Returns are compared with the mean of
    the "group" (GRPO), of its "others" (RLOO) or of the "batch" (REINFORCE with a
    baseline). "critic" is PPO with generalised advantage estimation (critic.py).
    "success" imitates successful episodes (filtered SFT, rejection sampling; RAFT,
    arXiv:2304.06767). "pairs" prefers them to failed ones of their group (DPO,
    arXiv:2305.18290, at `beta`; on whole episodes, ETO, arXiv:2403.02502).

    `normalize_advantages` "batch" divides advantages by their root mean square over the
    batch (those of a critic are whitened), so that learning does not depend on the
    scale of rewards; "group" divides by the standard deviation of the group; "none"
    leaves them as they are. `credit` selects the returns that are compared within a
    group: those from a "turn" on, among the members that act at it, those of the whole
    "episode", or the latter plus those from the same "state" on (advantages.py).
    `discount` applies per turn.

    `kl` is the coefficient of the KL penalty; the reference is the policy that training
    began with, or, with `penalty.reference_decay` above 0, an exponential moving
    average of the policy with that decay per minibatch. `entropy` is the coefficient of
    the entropy bonus. `temperature` is that of sampling, which the learner applies,
    too.

    After an update its KL(new || old) is measured, in nats. While its mean over tokens
    exceeds `radius`, or its largest sum over a turn exceeds `max_turn_kl`, the step is
    halved (trust_region.py); 0 sets no bound. A bound on the mean alone does not
    protect behaviour that only a few states show.

    The learning rate warms up over `warmup` minibatches: before Adam has estimated the
    scale of gradients, it moves every parameter by the whole step. An update takes
    `minibatches` steps on batches of `rows` packed rows of `width` tokens.
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
        if min(self.minibatches, self.rows, self.width, self.warmup) < 1:
            raise ValueError("minibatches, rows, width and warmup must be >= 1")
        _check_choice("baseline", self.baseline, (*BASELINES, *OTHER_ESTIMATORS))
        _check_choice("normalize_advantages", self.normalize_advantages, NORMALIZATIONS)
        _check_choice("credit", self.credit, CREDITS)
        if self.credit != "turn" and self.baseline not in BASELINES:
            raise ValueError(
                f"credit = {self.credit} compares returns of a group, which baseline = "
                f"{self.baseline} does not: leave credit at turn"
            )
        if self.beta <= 0:
            raise ValueError(f"beta must be > 0, got {self.beta}")
        ratio, average = self.surrogate.ratio, self.surrogate.average
        if self.baseline == "pairs" and (ratio, average) != ("none", "episode"):
            raise ValueError(
                "baseline = pairs needs surrogate.ratio = none and surrogate.average = "
                f"episode: a pair is of whole episodes; got {ratio} and {average}"
            )
        self._check_dead()

    def _check_dead(self):
        """Refuse settings that would have no effect."""
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
        """Whether the update learns from rewards, not from success alone."""
        return self.baseline not in ("success", "pairs")

    @property
    def in_returns(self) -> bool:
        """Whether advantages are differences of returns of turns, as in Theorem 1."""
        group = self.baseline in BASELINES and self.normalize_advantages != "group"
        critic = self.baseline == "critic" and self.normalize_advantages == "none"
        unchanged = (group or critic) and self.credit == "turn"
        return unchanged and self.surrogate.average == "token"


_ONE_STEP = {"surrogate.ratio": "none", "minibatches": 1, "warmup": 5}
"""Without a ratio the gradient is only right at the policy that sampled: one step per
batch, as in the papers. Four steps lost half of a policy's success (docs/LOG.md)."""

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
"""Algorithms by their customary names, as changes to the defaults of UpdateConfig.

The defaults themselves have no such name: they are Dr. GRPO with DAPO's clip-higher.
"""
