"""The settings of the loop: how much is rolled out, from where, and what is kept."""

import dataclasses

from curriculum.sampler import CurriculumConfig
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.watch import WatchConfig

ALONE = ("batch", "critic", "success")
"""Baselines that need no group of one task."""
BESIDE = ("bc", "iwm", "own")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Turns of won episodes that are learnt from again.

    To every batch come `share` times as many turns as it has, drawn from the last
    `size` kept, with the advantage and the probabilities they were sampled with: the
    clipped ratio is then that to the policy of then.
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
    """Examples imitated beside the update's own loss, in a mean of their own.

    `kind` "bc" are the demonstrations of the warm start, "iwm" its implicit world
    modelling (what actions of demonstrations and branches lead to), "own" that of the
    rollouts themselves. `turns` of them an update weigh `weight`; the remedy
    "supervised" (rl/watch.py) raises it.
    """

    kind: str = "bc"
    weight: float = 0.0
    turns: int = 64

    def __post_init__(self):
        if self.kind not in BESIDE:
            raise ValueError(f"kind must be one of {BESIDE}, got {self.kind!r}")
        if self.weight < 0 or self.turns < 1:
            raise ValueError(
                f"weight must be >= 0 and turns >= 1, got {self.weight}, {self.turns}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How many updates on how many groups of how many rollouts.

    Training ends after `updates`, or once `limit` transitions are taken (0: no limit),
    by which curricula are compared at equal cost.

    Where all of a group end alike nothing can be learnt from it: up to `resample` times
    as many other tasks are rolled out in an update (dynamic sampling, arXiv:2503.14476;
    more transitions, counted). `forks` states on the way of groups that do not agree
    are gone on from `group_size` times each, so that actions are compared in one and
    the same state; only a dream can go back. With `drop_void` an episode with a turn
    that holds no whole action leaves the update (SimpleTIR, arXiv:2509.02479) and its
    group's baseline. `reward` says what a step is paid (docs/REWARDS.md); success, and
    with it the task values, stays the environment's.
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
        alone = self.update.baseline in ALONE
        if self.group_size < (1 if alone else 2):
            raise ValueError(
                f"group_size must be >= 2 for a baseline of {self.update.baseline!r}, "
                f"got {self.group_size}; {ALONE} need none"
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
        """A setting that nothing would come of, and why; None where all are read.

        What is refused of a new run only: one that stands goes on as it began.
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
        """Refuse settings that nothing would come of."""
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
    def supervised(self) -> bool:
        """Whether examples are imitated beside, now or as a remedy."""
        remedy = "supervised" in self.watch.remedies and self.watch.answer == "back"
        return self.beside.weight > 0 or remedy
