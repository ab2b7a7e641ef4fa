"""Settings of the training loop: rollouts, replay, auxiliary loss and monitor."""

import dataclasses

from curriculum.config import CurriculumConfig, DemonstrationStartsConfig
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.config import LossWeights, UpdateConfig
from dreamgym.training.limit_config import LimitConfig

FORK_PREFERENCES = ("continuation", "first_action")
"""What the pairs of a fork may compare; see ForkConfig."""

GROUPLESS_ESTIMATORS = ("batch_mean", "gae", "success_filter")
"""Baselines that need no group of rollouts of one task."""
RESPONSES = ("log", "stop", "revert")
REMEDIES = ("entropy", "kl", "supervised", "rewards")
OBJECTIVES = ("bc", "iwm", "rollout_iwm")
FORK_CHOICES = ("random", "entropy", "value")
GROUP_BASELINES = ("group_mean", "leave_one_out")
"""Baselines over the rollouts of one task."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Replay of turns from episodes that succeeded.

    They keep the advantage and the log-probabilities they were sampled with, so the
    clipped ratio is that to the policy that sampled them.
    """

    ratio: float = 0.0
    """Replayed turns for each new one of a batch; 0 replays none."""
    capacity: int = 512
    """Turns that are kept, the newest."""

    def __post_init__(self):
        if self.ratio < 0 or self.capacity < 1:
            raise ValueError(
                "ratio must be >= 0 and capacity >= 1, got "
                f"{self.ratio}, {self.capacity}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig:
    """An auxiliary supervised loss, averaged over its own examples."""

    objective: str = "bc"
    """"bc" imitates the demonstrations of the warm start; "iwm" is its implicit world
    modelling (predicting what the actions of demonstrations and branches lead to);
    "rollout_iwm" is implicit world modelling on the rollouts themselves."""
    coefficient: float = 0.0
    """Weight of the loss, which the remedy "supervised" raises; 0 takes
    the loss away."""
    examples_per_update: int = 64
    """Examples that each update draws."""

    def __post_init__(self):
        if self.objective not in OBJECTIVES:
            raise ValueError(
                f"objective must be one of {OBJECTIVES}, got {self.objective!r}"
            )
        if self.coefficient < 0 or self.examples_per_update < 1:
            raise ValueError(
                "coefficient must be >= 0 and examples_per_update >= 1, got "
                f"{self.coefficient}, {self.examples_per_update}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """When an update counts as a breakdown, and what is done then."""

    min_entropy: float = 0.0
    """Smallest mean entropy of the policy, in nats; 0 disables the check."""
    max_length_ratio: float = 0.0
    """How many times longer than in the first update turns may become, in tokens; 0
    disables the check."""
    max_invalid_share: float = 0.0
    """Largest share of invalid actions, in [0, 1]; 0 disables the check."""
    max_kl_ratio: float = 0.0
    """How many times the median KL of the last 8 updates the KL of an update may be; 0
    disables the check."""
    max_real_drop: float = 0.0
    """How far success on real dev tasks may fall below its best while success in the
    dream rises; 0 disables the check."""
    max_family_drop: float = 0.15
    """How far the success of a family of tasks in the last 4 updates may be below that
    in the best 4 updates before, if this is more than 3 standard errors, too; 0
    disables the check. A policy may improve in one family and forget another; success
    over all families hides that."""
    skill_collapse: bool = True
    """Whether a red flag of the lessons is an alarm: a skill that fell while others
    rose. Without lessons no skill is measured."""
    real_eval_every: int = 0
    """Updates between two evaluations on real dev tasks, which count as real
    transitions; the last update is evaluated, too. These tasks also choose between the
    policies of a run (stages dream_check and train). 0 plays none, and so does a run
    without an environment."""
    real_eval_tasks: int = 16
    """Dev tasks of such an evaluation. Where so many are asked for and the environment
    lists fewer than four, none are played: so few decide nothing."""
    keep_best: bool = True
    """Whether training ends with the policy that did best on the real dev tasks, where
    they are played (the first of equals, and none that destroyed the success of a
    family of tasks). An alarm of `max_real_drop` reverts to it, too. Without it the
    stage train keeps the policy of the last update, whatever it wins: for studies of
    updates, which would otherwise compare policies that were chosen."""
    response: str = "log"
    """What an alarm does: "log" goes on; "stop" ends training before the update;
    "revert" takes the update back and applies the `remedies`, or, for a skill that had
    collapsed before, these alone. With "log" a loss that is not finite is an error."""
    remedies: tuple[str, ...] = ("entropy", "kl")
    """What is changed after such an update: twice the weight of the "entropy" bonus, of
    the "kl" penalty or of "supervised" examples, or half the weight of "rewards"
    that are not outcomes."""
    patience: int = 3
    """Reverted updates in a row after which training stops."""

    def __post_init__(self):
        for name in (
            "min_entropy",
            "max_length_ratio",
            "max_invalid_share",
            "max_kl_ratio",
            "max_real_drop",
            "max_family_drop",
            "real_eval_every",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.response not in RESPONSES:
            raise ValueError(
                f"response must be one of {RESPONSES}, got {self.response!r}"
            )
        if unknown := [r for r in self.remedies if r not in REMEDIES]:
            raise ValueError(f"remedies must be among {REMEDIES}, got {unknown}")
        if self.max_real_drop and not self.real_eval_every:
            raise ValueError(
                "max_real_drop needs evaluations on real dev tasks: real_eval_every "
                "must be >= 1, got 0"
            )
        if self.real_eval_tasks < 1 or self.patience < 1:
            raise ValueError(
                "real_eval_tasks and patience must be >= 1, got "
                f"{self.real_eval_tasks}, {self.patience}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForkConfig:
    """Which states are forked, and what turns are credited with at a fork."""

    by: str = "random"
    """How the states are chosen: "random", by "entropy" those where the policy is
    least sure of its action (ARPO, arXiv:2507.19849), or by "value" those whose
    outcome is least sure. The entropy of a token is estimated by the negative
    log-probability of the tokens that were sampled in that state, the value by the
    share of won rollouts that pass it, both in the rollouts of its group."""
    weight: float = 1.0
    """w, in [0, 1]: a turn of a continuation is credited with w times its advantage
    over the other continuations, plus 1 - w times that of its whole trajectory over the
    group that it was forked from (PORTool, arXiv:2510.26020)."""
    prefix_mean: bool = False
    """Whether the turns before a fork are credited with the mean return of all
    trajectories that share them, and not with that of their own rollout alone (ARPO,
    PORTool)."""
    preference: str = "continuation"
    """What the pairs of a fork compare, where preferences are learnt from: all that
    follows its state, the "continuation", or its "first_action" alone, as in the
    step-level preferences of Agent Q (arXiv:2408.07199)."""

    def __post_init__(self):
        if self.by not in FORK_CHOICES:
            raise ValueError(f"by must be one of {FORK_CHOICES}, got {self.by!r}")
        if self.preference not in FORK_PREFERENCES:
            raise ValueError(
                f"preference must be one of {FORK_PREFERENCES}, got {self.preference!r}"
            )
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight must be in [0, 1], got {self.weight}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Number of updates, tasks and rollouts, and the settings of the parts."""

    updates: int = 12
    """Policy updates after which training ends."""
    max_transitions: int = 0
    """Transitions after which training ends, which allows comparing curricula at equal
    cost; 0 sets no limit."""
    tasks_per_update: int = 16
    """Tasks that each update rolls out."""
    fresh_tasks: int = 0
    """Further train tasks of the environment that rollouts begin at, at most, of which
    no episode was collected. Each costs a reset, and no real step. On the collected
    tasks the policy and the dream may have memorised what is hidden there."""
    group_size: int = 8
    """Rollouts of each task."""
    max_resample_rounds: int = 0
    """Further rounds of rollouts in which each group whose rollouts end alike, which is
    uninformative, gives way to another task (dynamic sampling, arXiv:2503.14476); their
    transitions are counted. 0 takes groups as they are."""
    forks_per_update: int = 0
    """States on the way of informative groups that are continued `group_size` times
    each, so that actions are compared in the same state. Only a dream can go back to a
    state. 0 forks none."""
    fork: ForkConfig = ForkConfig()
    keep_rollouts: int = 0
    """Rollouts of each update that are kept as episodes, evenly spaced over the batch,
    in rollouts/ under the policy's name, with every part of the reward but a KL penalty
    (`update.kl_penalty.placement` "reward"); `dreamgym show` prints them."""
    drop_void_turns: bool = False
    """Whether an episode with a void turn (neither a call nor an answer where the task
    has tools, else no complete action) is left out of the update and of its group's
    baseline (SimpleTIR, arXiv:2509.02479)."""
    update: UpdateConfig = UpdateConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    replay: ReplayConfig = ReplayConfig()
    auxiliary: AuxiliaryConfig = AuxiliaryConfig()
    monitor: MonitorConfig = MonitorConfig()
    reward: RewardConfig = RewardConfig()
    limits: tuple[LimitConfig, ...] = ()
    """Limits of costs, each as a table: name, limit, pattern, search_in,
    initial_weight, learning_rate."""

    def __post_init__(self):
        names = [x.name for x in self.limits]
        if len(set(names)) < len(names):
            raise ValueError(f"limits must have different names, got {names}")
        estimator = self.update.advantage_estimator
        if self.group_size < (1 if estimator in GROUPLESS_ESTIMATORS else 2):
            raise ValueError(
                f"group_size must be >= 2 for advantage_estimator {estimator!r}, got "
                f"{self.group_size}; {GROUPLESS_ESTIMATORS} need no group"
            )
        if self.updates < 1 or self.tasks_per_update < 1:
            raise ValueError(
                "updates and tasks_per_update must be >= 1, got "
                f"{self.updates}, {self.tasks_per_update}"
            )
        counts = (
            self.max_resample_rounds,
            self.forks_per_update,
            self.max_transitions,
            self.keep_rollouts,
        )
        if min(counts) < 0:
            raise ValueError(
                "max_resample_rounds, forks_per_update, max_transitions and "
                f"keep_rollouts must be >= 0, got {counts}"
            )
        early_call = self.update.shaping.early_call
        if self.group_size == 1 and any((*counts[:2], early_call)):
            raise ValueError(
                "max_resample_rounds, forks_per_update and update.shaping.early_call "
                "are about groups: group_size must be >= 2, got 1; without groups "
                f"they must be 0, got {(*counts[:2], early_call)}"
            )
        self._check_dead()

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every setting has one.

        Such settings are refused for new runs only: an existing run may continue.
        """
        monitor, update, reward = self.monitor, self.update, self.reward
        if not update.reads_rewards and self.limits:
            return (
                "limits lower the rewards of steps, and update.advantage_estimator = "
                f"{update.advantage_estimator} learns from success alone: leave them "
                "out, or take another algorithm"
            )
        if not update.reads_rewards and reward != RewardConfig():
            return (
                "reward sets the rewards of steps, and update.advantage_estimator = "
                f"{update.advantage_estimator} learns from success alone: leave it "
                "out, or take another algorithm"
            )
        for limit in self.limits:
            if problem := limit.dead():
                return f"limits: {limit.name}: {problem}"
        if problem := update.dead():
            return f"update.{problem}"
        if problem := reward.dead():
            return f"reward.{problem}"
        every = reward.reward_model.refit.every
        if every > self.updates:
            return (
                f"reward.reward_model.refit.every = {every} is never reached: the loop "
                f"ends after updates = {self.updates}"
            )
        c = self.curriculum
        by_variance = c.value.estimator == "group" and c.value.pooling == "task"
        by_variance = by_variance and not c.target_success and c.uniform_share < 1
        if self.group_size == 1 and by_variance:
            return (
                "curriculum.value.pooling = task draws tasks by the variance of their "
                "outcomes in an update, of which group_size = 1 gives one: take "
                "lexical or family, or curriculum.value.estimator = posterior"
            )
        scales_rewards = "rewards" in monitor.remedies
        if monitor.response == "revert" and scales_rewards and not reward.dense:
            return (
                'monitor.remedies: "rewards" scales milestones, tool calls, novelty, '
                "a potential, subgoals, and rewards of a reward model or judge, and "
                "reward has none of them: leave it out"
            )
        return None

    def _check_dead(self):
        """Refuse settings that would have no effect."""
        self._check_forks()
        self._check_starts()
        update, estimator = self.update, self.update.advantage_estimator
        no_ratio = update.surrogate.importance_level == "none"
        if self.replay.ratio and no_ratio and estimator != "success_filter":
            raise ValueError(
                "replay.ratio learns from turns of earlier policies, which only an "
                "importance ratio corrects for: surrogate.importance_level must be "
                "token or turn (or advantage_estimator success_filter), got none and "
                f"advantage_estimator {estimator!r}"
            )
        shapes = self.reward.potential.weight > 0 and update.reads_rewards
        if shapes and (update.credit != "turn" or self.fork.prefix_mean):
            raise ValueError(
                "reward.potential credits single turns: update.credit must be turn and "
                f"fork.prefix_mean off, got {update.credit}, {self.fork.prefix_mean}"
            )
        weighs = bool(self.limits) or self.curriculum.lessons != "none"
        if update.normalize_advantages == "component" and weighs:
            raise ValueError(
                "update.normalize_advantages = component undoes the factors that "
                "limits and lessons give to rewards: leave them out"
            )
        if self.tasks_per_update * self.group_size == 1 and estimator == "batch_mean":
            raise ValueError(
                "advantage_estimator = batch_mean compares rollouts with each other: "
                "tasks_per_update times group_size must be >= 2, got 1"
            )

    def _check_forks(self):
        """Refuse settings of forks that would have no effect."""
        fork, estimator = self.fork, self.update.advantage_estimator
        if not self.forks_per_update and fork != ForkConfig():
            raise ValueError(
                "fork says how states are forked, and forks_per_update is 0: set it to "
                ">= 1, or leave fork out"
            )
        if fork.preference != "continuation" and estimator != "preference_pairs":
            raise ValueError(
                "fork.preference is about pairs of forks, which "
                f"update.advantage_estimator = {estimator} does not make: leave it at "
                "continuation"
            )
        if fork.weight < 1 and estimator not in GROUP_BASELINES:
            raise ValueError(
                "fork.weight below 1 compares a fork with the group that it was forked "
                f"from: advantage_estimator must be one of {GROUP_BASELINES}, got "
                f"{estimator!r}"
            )
        comparable = (*GROUP_BASELINES, "batch_mean")
        if fork.prefix_mean and (
            self.update.credit != "turn" or estimator not in comparable
        ):
            raise ValueError(
                "fork.prefix_mean is about returns of turns: update.credit must be "
                f"turn and advantage_estimator one of {comparable}, got "
                f"{self.update.credit} and {estimator!r}"
            )

    def _check_starts(self):
        """Refuse settings of starts that would have no effect."""
        starts = self.curriculum.demonstration_starts
        if not starts.share and starts != DemonstrationStartsConfig():
            raise ValueError(
                "curriculum.demonstration_starts.share is 0, so that no rollout begins "
                "in a demonstration: set it above 0, or leave demonstration_starts out"
            )
        if starts.share and self.tasks_per_update < 2:
            raise ValueError(
                "curriculum.demonstration_starts.share leaves at least one group to a "
                "task's start: tasks_per_update must be >= 2, got "
                f"{self.tasks_per_update}"
            )

    @property
    def goes_back(self) -> bool:
        """Whether rollouts begin in a state on the way, which only a dream can do."""
        starts = self.curriculum.demonstration_starts
        return self.forks_per_update > 0 or starts.share > 0

    @property
    def initial_weights(self) -> LossWeights:
        """The weights of the loss terms when training begins."""
        return LossWeights(
            kl=self.update.kl_penalty.coefficient,
            entropy=self.update.entropy_coefficient,
            auxiliary=self.auxiliary.coefficient,
        )

    @property
    def supervised(self) -> bool:
        """Whether the auxiliary loss is used, from the start or as a remedy."""
        remedy = (
            "supervised" in self.monitor.remedies and self.monitor.response == "revert"
        )
        return self.auxiliary.coefficient > 0 or remedy
