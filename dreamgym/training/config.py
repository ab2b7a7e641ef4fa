"""Settings of the training loop: rollouts, replay, auxiliary loss and monitor."""

import dataclasses

from curriculum.sampler import CurriculumConfig
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.config import LossWeights, UpdateConfig
from dreamgym.training.monitor import WatchConfig

GROUPLESS_BASELINES = ("batch", "critic", "success")
"""Baselines that need no group of rollouts of one task."""
AUXILIARY_KINDS = ("bc", "iwm", "own")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Replay of turns from episodes that succeeded.

    Each batch is extended by `share` times its number of turns, drawn from the newest
    `size` turns of the replay. They keep the advantage and the log-probabilities they
    were sampled with, so the clipped ratio is that to the policy that sampled them.
    """

    share: float = 0.0
    size: int = 512

    def __post_init__(self):
        if self.share < 0 or self.size < 1:
            raise ValueError(
                f"share must be >= 0 and size >= 1, got {self.share}, {self.size}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class BesideConfig:
    """An auxiliary supervised loss, averaged over its own examples.

    `kind` "bc" imitates the demonstrations of the warm start, "iwm" is its implicit
    world modelling (predicting what the actions of demonstrations and branches lead
    to), and "own" is implicit world modelling on the rollouts themselves. Each update
    draws `turns` examples; `weight` is the coefficient of the loss, which the remedy
    "supervised" (monitor.py) raises.
    """

    kind: str = "bc"
    weight: float = 0.0
    turns: int = 64

    def __post_init__(self):
        if self.kind not in AUXILIARY_KINDS:
            raise ValueError(
                f"kind must be one of {AUXILIARY_KINDS}, got {self.kind!r}"
            )
        if self.weight < 0 or self.turns < 1:
            raise ValueError(
                f"weight must be >= 0 and turns >= 1, got {self.weight}, {self.turns}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Number of updates, tasks and rollouts, and the settings of the parts.

    Training ends after `updates` updates, or once `limit` transitions are taken (0: no
    limit), which allows comparing curricula at equal cost. Each update rolls out
    `tasks` tasks, `group_size` times each.

    A group whose rollouts end alike is uninformative: for each, another task is rolled
    out, in up to `resample` further rounds (dynamic sampling, arXiv:2503.14476); their
    transitions are counted. In addition `forks` states on the way of informative groups
    are continued `group_size` times each, so that actions are compared in the same
    state; only a dream can be set back to a state. With `drop_void` an episode with a
    void turn (one without a complete action) is left out of the update and of its
    group's baseline (SimpleTIR, arXiv:2509.02479). `reward` sets the rewards of steps
    (docs/REWARDS.md); success, and with it the task values, is the environment's.
    """

    updates: int = 12
    limit: int = 0
    tasks: int = 16
    group_size: int = 8
    resample: int = 0
    forks: int = 0
    drop_void: bool = False
    update: UpdateConfig = UpdateConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    replay: ReplayConfig = ReplayConfig()
    beside: BesideConfig = BesideConfig()
    watch: WatchConfig = WatchConfig()
    reward: RewardConfig = RewardConfig()

    def __post_init__(self):
        groupless = self.update.baseline in GROUPLESS_BASELINES
        if self.group_size < (1 if groupless else 2):
            raise ValueError(
                f"group_size must be >= 2 for a baseline of {self.update.baseline!r}, "
                f"got {self.group_size}; {GROUPLESS_BASELINES} need none"
            )
        if self.updates < 1 or self.tasks < 1:
            raise ValueError(
                f"updates and tasks must be >= 1, got {self.updates}, {self.tasks}"
            )
        if min(self.resample, self.forks, self.limit) < 0:
            raise ValueError(
                "resample, forks and limit must be >= 0, got "
                f"{self.resample}, {self.forks} and {self.limit}"
            )
        if self.group_size == 1 and (self.resample or self.forks):
            raise ValueError(
                "resample and forks are about groups: group_size must be >= 2, got 1"
            )

        self._check_dead()

    def dead(self) -> str | None:
        """Return why a setting would have no effect, None where every setting has one.

        Such settings are refused for new runs only: an existing run may continue.
        """
        watch, update, reward = self.watch, self.update, self.reward
        if not update.reads_rewards and reward != RewardConfig():
            return (
                f"reward says what a step is paid, and baseline {update.baseline!r} "
                "learns from who won alone: leave it out, or take another algorithm"
            )
        if watch.probe > self.updates:
            return (
                "watch.probe plays real dev games after every so many updates: at "
                f"most updates = {self.updates}, got {watch.probe}"
            )
        if watch.answer == "back" and "rewards" in watch.remedies and not reward.dense:
            return (
                'watch.remedies: "rewards" turns down milestones, tool calls, learned '
                "and judged rewards, and reward has none of them: leave it out"
            )
        return None

    def _check_dead(self):
        """Refuse settings that would have no effect."""
        update = self.update
        free = update.surrogate.ratio == "none" and update.baseline != "success"
        if self.replay.share and free:
            raise ValueError(
                "replay.share learns from turns of earlier policies, which only a "
                "ratio corrects for: surrogate.ratio must be token or turn (or "
                f"baseline success), got ratio none and baseline {update.baseline!r}"
            )
        if self.tasks * self.group_size == 1 and update.baseline == "batch":
            raise ValueError(
                "baseline = batch compares rollouts with each other: tasks times "
                "group_size must be >= 2, got 1"
            )

    @property
    def initial_weights(self) -> LossWeights:
        """The weights of the loss terms when training begins."""
        return LossWeights(
            kl=self.update.kl,
            entropy=self.update.entropy,
            auxiliary=self.beside.weight,
        )

    @property
    def supervised(self) -> bool:
        """Whether the auxiliary loss is used, from the start or as a remedy."""
        remedy = "supervised" in self.watch.remedies and self.watch.answer == "back"
        return self.beside.weight > 0 or remedy
