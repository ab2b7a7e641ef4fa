"""Settings of a policy update: advantages, loss and trust region."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

GROUP_ESTIMATORS = ("group_mean", "leave_one_out", "batch_mean")
"""Baselines that returns are compared with; see turn_advantages."""

OTHER_ESTIMATORS = ("gae", "success_filter", "preference_pairs")
"""Estimators that do not compare returns; see UpdateConfig."""

CREDITS = ("turn", "episode", "turn_and_episode", "state")
"""The returns that are compared within a group; see group_advantages."""

NORMALIZATIONS = ("batch", "group", "component", "none")
"""What advantages are divided by; see UpdateConfig."""


class LossWeights(NamedTuple):
    """Weights that may change while training runs; that of the surrogate is 1.

    `kl`, `entropy` and `auxiliary` are the coefficients of the KL penalty, the entropy
    bonus and the auxiliary loss. `dense_rewards` multiplies reward components that are
    not outcomes (docs/concepts/rewards.md).
    """

    kl: float
    entropy: float = 0.0
    auxiliary: float = 0.0
    dense_rewards: float = 1.0


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise a ValueError that names the setting unless the value is a choice."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {tuple(choices)}, got {value!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurrogateConfig:
    """The surrogate loss: its importance ratio, its clip bounds, its average."""

    importance_level: str = "token"
    """Unit of the importance ratio: each "token", or the mean over its "turn" (GSPO,
    arXiv:2507.18071, with `loss_aggregation` "turn"). With "none" the loss is the
    advantage times the log-probability, without a clip, as in REINFORCE and in
    imitation; such losses take one minibatch per update, because a second one would
    update a policy other than the one that sampled."""
    loss_aggregation: str = "token"
    """Unit that counts equally in the loss, whatever its length: a "token", a "turn" or
    an "episode" (as in the GRPO paper)."""
    dual_clip: float = 0.0
    """Bound on the loss of tokens with a negative advantage, above 1
    (arXiv:1912.09729); 0 sets no bound."""
    importance_cap: float = 0.0
    """Cap on the weight of a token by its probability under the learner over that under
    the sampler, for samplers of another numerical precision; 0 sets no weight."""
    logit_gradient_cap: float = 0.0
    """Cap on the norm of the gradient of a token's loss with respect to its logits,
    which is largest for tokens of tiny probability (arXiv:2509.02479): where it is
    larger, the gradient is scaled down. The loss is the surrogate and a KL penalty by
    the sampled token, before `loss_aggregation` weighs it; 0 sets no cap."""

    def __post_init__(self):
        check_choice(
            "importance_level", self.importance_level, ("token", "turn", "none")
        )
        check_choice(
            "loss_aggregation", self.loss_aggregation, ("token", "turn", "episode")
        )
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be 0 or > 1, got {self.dual_clip}")
        if self.importance_cap < 0:
            raise ValueError(f"importance_cap must be >= 0, got {self.importance_cap}")
        if not (
            self.logit_gradient_cap >= 0 and math.isfinite(self.logit_gradient_cap)
        ):
            raise ValueError(
                "logit_gradient_cap must be >= 0 and finite, got "
                f"{self.logit_gradient_cap}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KLPenaltyConfig:
    """The penalty on the KL divergence from the reference policy."""

    coefficient: float = 0.02
    """Weight of the penalty; 0 takes away the reference's pass, and the metric `kl`."""
    estimator: str = "full"
    """"full" sums over the vocabulary; "k1", log(p / q), and "k3", q / p - 1 -
    log(q / p), use the sampled token alone, with policy p and reference q."""
    placement: str = "loss"
    """Whether the penalty is added to the "loss", or the k1 estimate of a turn is
    subtracted from its "reward" before advantages are computed."""
    target: float = 0.0
    """Divergence in nats that the coefficient is adapted to after each update: it grows
    while the divergence is above, and shrinks while it is below (arXiv:1909.08593); 0
    leaves the coefficient as it is."""
    reference_ema_decay: float = 0.0
    """Decay per minibatch of the moving average of the policy that is the reference, in
    [0, 1). With 0 the reference is the policy that training began with."""

    def __post_init__(self):
        check_choice("estimator", self.estimator, ("full", "k1", "k3"))
        check_choice("placement", self.placement, ("loss", "reward"))
        if self.coefficient < 0 or self.target < 0:
            raise ValueError(
                "coefficient and target must be >= 0, got "
                f"{self.coefficient} and {self.target}"
            )
        if not 0 <= self.reference_ema_decay < 1:
            raise ValueError(
                f"reference_ema_decay must be in [0, 1), got {self.reference_ema_decay}"
            )
        if self.placement == "reward" and self.reference_ema_decay:
            raise ValueError(
                "placement = reward pays for a fixed reference: reference_ema_decay "
                f"must be 0, got {self.reference_ema_decay}"
            )
        if self.target and not self.coefficient:
            raise ValueError(
                "target adapts the coefficient, which must be > 0 to begin with, got 0"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """The critic: its network, its fit, and generalised advantage estimation."""

    value_level: str = "turn"
    """Unit that has a value: a "turn" or a "token"."""
    network: str = "shared"
    """"shared": a linear head reads values from the policy's last hidden states,
    without a gradient to the policy. "separate": the critic has a network of its own,
    which begins as the policy's."""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation (arXiv:1506.02438), in [0, 1]."""
    value_clip: float = 0.2
    """How far a value may move in an update; 0 sets no bound."""
    learning_rate: float = 3e-3
    """Learning rate of the critic."""
    epochs: int = 2
    """Passes over each batch in which the critic is fitted."""
    ensemble_size: int = 1
    """Heads of the critic. With several, the state in which a rollout was cut has the
    lowest of their values (as in RAVL, arXiv:2402.12527), because none of them was
    fitted to what comes after it; elsewhere their mean is the value."""
    step_limit: str = "lost"
    """What an episode is that reaches the step limit: "lost" there, or "cut", so that
    the value of the state before its last turn stands for what comes after it
    (arXiv:1712.00378). Its last turn is then not learnt from."""

    def __post_init__(self):
        if self.value_level not in ("turn", "token"):
            raise ValueError(
                f"value_level must be 'turn' or 'token', got {self.value_level!r}"
            )
        if self.network not in ("shared", "separate"):
            raise ValueError(
                f"network must be 'shared' or 'separate', got {self.network!r}"
            )
        check_choice("step_limit", self.step_limit, ("lost", "cut"))
        if self.ensemble_size < 1:
            raise ValueError(f"ensemble_size must be >= 1, got {self.ensemble_size}")
        if not 0 <= self.gae_lambda <= 1:
            raise ValueError(f"gae_lambda must be in [0, 1], got {self.gae_lambda}")
        if self.value_clip < 0 or self.learning_rate <= 0 or self.epochs < 1:
            raise ValueError(
                "value_clip must be >= 0, learning_rate > 0 and epochs >= 1, got "
                f"{self.value_clip}, {self.learning_rate} and {self.epochs}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShapingConfig:
    """What changes advantages after they were compared; nothing by default."""

    entropy_rate: float = 0.0
    """How much more a turn counts that the policy was sure of: lambda of AEM
    (arXiv:2605.00425), which takes 1. The advantage is multiplied by exp(-lambda h),
    divided by the mean of that in the group, where h is the mean entropy of the turn's
    tokens, scaled to [0, 1] in the group; groups with less than 0.1 nats between the
    least and the largest stay as they are. 0 multiplies nothing."""
    early_call: float = 0.0
    """How much an early tool call is preferred in won episodes: -delta of ASPO
    (arXiv:2508.19201, eq. 2), which takes 2. This many times the tokens by which the
    first call came before the mean of the group's won episodes with a call, over their
    mean length in tokens, is added to the advantage; 0 adds nothing."""
    early_call_bound: float = 0.7
    """Share of the advantage that `early_call` may change at most, in (0, 1)."""

    def __post_init__(self):
        rates = (self.entropy_rate, self.early_call)
        if not all(x >= 0 and math.isfinite(x) for x in rates):
            raise ValueError(
                "entropy_rate and early_call must be >= 0 and finite, got "
                f"{self.entropy_rate} and {self.early_call}"
            )
        if not 0 < self.early_call_bound < 1:
            raise ValueError(
                f"early_call_bound must be in (0, 1), got {self.early_call_bound}"
            )
        default = type(self).early_call_bound
        if not self.early_call and self.early_call_bound != default:
            raise ValueError(
                f"early_call_bound = {self.early_call_bound} has no effect without "
                "early_call"
            )

    @property
    def active(self) -> bool:
        """Whether anything is shaped."""
        return self.entropy_rate > 0 or self.early_call > 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """A policy update: its advantages, its loss, its trust region and its optimiser.

    The defaults are a group-relative update of our own, `turn_grpo`, that is related to
    GRPO (arXiv:2402.03300) and is not it: each turn is credited with its discounted
    return-to-go, compared with the members of the group that still act. The loss is a
    mean over all tokens of the batch and advantages are not divided by the group's
    standard deviation, so that neither length nor difficulty changes a weight (as in
    Dr. GRPO, arXiv:2503.20783), and the upper clip bound is wider than the lower one
    (clip-higher, arXiv:2503.14476).
    """

    advantage_estimator: str = "group_mean"
    """What an action is compared with. Returns are compared with the "group_mean"
    (GRPO), with the mean of the others, "leave_one_out" (RLOO, arXiv:2402.14740), or
    with the "batch_mean" (REINFORCE with a baseline). "gae" is PPO with generalised
    advantage estimation (arXiv:1506.02438). "success_filter" imitates successful
    episodes (filtered SFT; RAFT, arXiv:2304.06767). "preference_pairs" prefers them to
    failed ones of their group (DPO, arXiv:2305.18290; on whole episodes, ETO,
    arXiv:2403.02502)."""
    critic: CriticConfig = CriticConfig()
    normalize_advantages: str = "batch"
    """"batch" divides advantages by their root mean square over the batch (those of a
    critic are whitened), so that learning does not depend on the scale of rewards;
    "group" divides by the standard deviation of the group; "component" divides those of
    each reward component by its own before they are weighed and added, and then the sum
    as "batch" does (GDPO, arXiv:2601.05242); "none" leaves them as they are."""
    credit: str = "turn"
    """The returns that are compared within a group: those from a "turn" on, among the
    members that act at it; those of the whole "episode", undiscounted (GRPO,
    arXiv:2402.03300); the sum of both, "turn_and_episode" (as MatchTIR
    has it); or the episode's plus those from the same "state" on (GiGPO,
    arXiv:2505.10978)."""
    discount: float = 0.9
    """Discount of rewards per turn, in [0, 1]; without effect on the comparison of
    whole episodes."""
    shaping: ShapingConfig = ShapingConfig()
    surrogate: SurrogateConfig = SurrogateConfig()
    clip_low: float = 0.2
    """How far below 1 the importance ratio counts, in (0, 1) (arXiv:1707.06347)."""
    clip_high: float = 0.28
    """How far above 1 the importance ratio counts."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus; 0 takes it away."""
    kl_penalty: KLPenaltyConfig = KLPenaltyConfig()
    max_update_kl: float = 0.02
    """Bound in nats on KL(new || old) of an update, as a mean over tokens: while it is
    exceeded, the step is halved; 0 sets no bound."""
    max_turn_kl: float = 1.0
    """Bound in nats on the largest KL(new || old) of a turn; a bound on the mean does
    not protect behaviour that only a few states show; 0 sets no bound."""
    dpo_beta: float = 0.1
    """beta of DPO, with the estimator "preference_pairs"."""
    temperature: float = 1.0
    """Temperature of sampling, which the learner applies, too."""
    learning_rate: float = 1e-3
    """Learning rate of AdamW."""
    warmup_steps: int = 20
    """Minibatches over which the learning rate rises: before Adam has estimated the
    scale of gradients, it moves every parameter by the whole step."""
    num_minibatches: int = 4
    """Optimiser steps of an update."""
    batch_rows: int = 16
    """Packed rows of a minibatch."""
    row_tokens: int = 256
    """Tokens of a row."""

    def __post_init__(self):
        if not 0 < self.clip_low < 1 or self.clip_high <= 0:
            raise ValueError(
                "clip_low must be in (0, 1) and clip_high > 0, got "
                f"{self.clip_low} and {self.clip_high}"
            )
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must be in [0, 1], got {self.discount}")
        for name in ("entropy_coefficient", "max_update_kl", "max_turn_kl"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        for name in ("temperature", "learning_rate", "dpo_beta"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        sizes = (self.num_minibatches, self.batch_rows, self.row_tokens)
        if min(*sizes, self.warmup_steps) < 1:
            raise ValueError(
                "num_minibatches, batch_rows, row_tokens and warmup_steps must be >= 1"
            )
        check_choice(
            "advantage_estimator",
            self.advantage_estimator,
            (*GROUP_ESTIMATORS, *OTHER_ESTIMATORS),
        )
        check_choice("normalize_advantages", self.normalize_advantages, NORMALIZATIONS)
        check_choice("credit", self.credit, CREDITS)
        if self.credit != "turn" and self.advantage_estimator not in GROUP_ESTIMATORS:
            raise ValueError(
                f"credit = {self.credit} compares returns of a group, which "
                f"advantage_estimator = {self.advantage_estimator} does not: leave "
                "credit at turn"
            )
        level = self.surrogate.importance_level
        unit = self.surrogate.loss_aggregation
        pairs = self.advantage_estimator == "preference_pairs"
        if pairs and (level, unit) != ("none", "episode"):
            raise ValueError(
                "advantage_estimator = preference_pairs needs "
                "surrogate.importance_level = none and surrogate.loss_aggregation = "
                f"episode: a pair is of whole episodes; got {level} and {unit}"
            )
        self._check_dead()

    def _check_dead(self):
        """Refuse settings that would have no effect."""
        penalty = self.kl_penalty
        in_reward = penalty.coefficient and penalty.placement == "reward"
        if not self.reads_rewards and in_reward:
            raise ValueError(
                f"advantage_estimator = {self.advantage_estimator} reads no rewards, "
                "and kl_penalty.placement = reward puts the penalty there: set "
                "placement to loss, or coefficient to 0"
            )
        if self.shaping.active and self.advantage_estimator not in GROUP_ESTIMATORS:
            raise ValueError(
                "shaping changes advantages over a group, which advantage_estimator = "
                f"{self.advantage_estimator} does not have: leave its settings at 0"
            )
        apart = self.normalize_advantages == "component"
        if apart and (in_reward or self.advantage_estimator not in GROUP_ESTIMATORS):
            raise ValueError(
                "normalize_advantages = component compares the returns of each reward "
                f"component: advantage_estimator must be one of {GROUP_ESTIMATORS} and "
                f"kl_penalty.placement loss, got {self.advantage_estimator} and "
                f"{penalty.placement}"
            )
        if self.surrogate.importance_level == "none" and self.surrogate.dual_clip:
            raise ValueError(
                "surrogate.dual_clip bounds a ratio, and surrogate.importance_level is "
                "none: set one of them"
            )

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every one has.

        Such settings are refused for new runs only: an existing run may continue.
        """
        if self.advantage_estimator == "gae":
            return None
        default = CriticConfig()
        for field in dataclasses.fields(default):
            value = getattr(self.critic, field.name)
            if value != getattr(default, field.name):
                return (
                    f"critic.{field.name} = {value} has no effect: "
                    f"advantage_estimator = {self.advantage_estimator} fits no critic, "
                    "gae does (--algorithm ppo)"
                )
        return None

    @property
    def reads_rewards(self) -> bool:
        """Whether the update learns from rewards, not from success alone."""
        return self.advantage_estimator not in ("success_filter", "preference_pairs")

    @property
    def in_returns(self) -> bool:
        """Whether advantages are differences of returns of turns, as in Theorem 1."""
        group = (
            self.advantage_estimator in GROUP_ESTIMATORS
            and self.normalize_advantages in ("batch", "none")
        )
        critic = (
            self.advantage_estimator == "gae" and self.normalize_advantages == "none"
        )
        unchanged = (group or critic) and self.credit == "turn"
        unchanged = unchanged and not self.shaping.active
        return unchanged and self.surrogate.loss_aggregation == "token"


_ONE_STEP = {
    "surrogate.importance_level": "none",
    "num_minibatches": 1,
    "warmup_steps": 5,
}
"""Without a ratio the gradient is only right at the policy that sampled: one step per
batch, as in the papers. Four steps lost half of a policy's success (docs/LOG.md)."""

ALGORITHMS: dict[str, dict[str, Any]] = {
    "turn_grpo": {
        "advantage_estimator": "group_mean",
        "normalize_advantages": "batch",
        "credit": "turn",
        "surrogate.importance_level": "token",
        "surrogate.loss_aggregation": "token",
        "clip_high": 0.28,
    },
    "grpo": {
        "normalize_advantages": "group",
        "credit": "episode",
        "discount": 1.0,
        "surrogate.loss_aggregation": "episode",
        "kl_penalty.estimator": "k3",
        "clip_high": 0.2,
    },
    "dr_grpo": {"credit": "episode", "discount": 1.0, "clip_high": 0.2},
    "rloo": {"advantage_estimator": "leave_one_out", **_ONE_STEP},
    "reinforce": {"advantage_estimator": "batch_mean", **_ONE_STEP},
    "gspo": {
        "normalize_advantages": "group",
        "surrogate.importance_level": "turn",
        "surrogate.loss_aggregation": "turn",
    },
    "gigpo": {"normalize_advantages": "group", "credit": "state", "clip_high": 0.2},
    "ppo": {"advantage_estimator": "gae", "clip_high": 0.2},
    "filtered_sft": {
        "advantage_estimator": "success_filter",
        "surrogate.importance_level": "none",
        "kl_penalty.coefficient": 0.0,
    },
    "dpo": {
        "advantage_estimator": "preference_pairs",
        "surrogate.loss_aggregation": "episode",
        "kl_penalty.coefficient": 0.0,
        **_ONE_STEP,
    },
}
"""Algorithms by name, as changes to the defaults of UpdateConfig.

`turn_grpo` is the name of the defaults. In `grpo` and `dr_grpo` every token of an
episode has the advantage of its outcome, as in their papers; `dr_grpo` is divided by
the batch's root mean square besides, and averages over the tokens that are there. Other
estimators credit turn by turn (`gigpo`: by state), their papers a whole answer.
"""
