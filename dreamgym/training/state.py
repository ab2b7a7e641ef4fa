"""The state of training, what training is given, and the results of one update."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from jax.sharding import Mesh

from curriculum import generator
from curriculum.lesson_tracker import LessonTracker
from curriculum.pool import TaskPool
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.rewards.potential import GoalPotential
from dreamgym.rewards.reward_model import RewardModelWeights
from dreamgym.rewards.reward_model_refit import RewardModelRefit
from dreamgym.rl.critic import Critic
from dreamgym.training.monitor import best_row
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import ScoreEpisodes
from worldmodel.data.records import Episode, Task
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


class RolloutBatch(NamedTuple):
    """The rollouts of one update, not scored yet, and the metrics of their tasks."""

    rollouts: Rollouts
    metrics: dict[str, float]


class TrainingState(NamedTuple):
    """All that a checkpoint must hold for training to continue bit for bit.

    `update` is the number of updates made and `transitions` the number of transitions
    taken; `curve` has one row of metrics for each update. `replay` are examples of
    earlier rollouts, `lessons` the position in the curriculum's lessons, where it has
    any. `stop_reason` says why training ended before its last update, and is empty
    otherwise. `best` is the policy that did best on real dev games, where it is kept
    (monitor.py): the initial policy until games were played. `reward_model` are the
    weights of the reward model, where the loop refits it; `novelty` holds the counts of
    the states that were seen, where novel ones are paid. `pending` are the rollouts of
    the next update, where they are made while the policy learns; their transitions are
    counted, and their tasks drawn from the pool.
    """

    update: int
    policy: TrainState
    pool: TaskPool
    transitions: int
    curve: list[dict[str, Any]]
    critic: TrainState | None = None
    replay: tuple[Example, ...] = ()
    lessons: LessonTracker | None = None
    stop_reason: str = ""
    best: TrainState | None = None
    reward_model: RewardModelWeights | None = None
    novelty: NoveltyReward | None = None
    pending: RolloutBatch | None = None

    @property
    def result(self) -> TrainState:
        """The policy that training ends with: the best one where it is kept."""
        if self.best is None or best_row(self.curve) is None:
            return self.policy
        return self.best


class UpdateResult(NamedTuple):
    """The policy after an update, its row of the curve, the critic and the replay."""

    policy: TrainState
    metrics: dict[str, Any]
    critic: TrainState | None
    replay: tuple[Example, ...]


@runtime_checkable
class Recorder(Protocol):
    """Records training: saves checkpoints, shows progress, extends the memory."""

    def record(
        self,
        state: TrainingState,
        trajectories: Sequence[Trajectory],
        rewarded: Sequence[Trajectory],
        /,
    ) -> None:
        """Record the state after update number `state.update`, with its rollouts.

        The `rewarded` ones hold the rewards that the update learned from, with the
        factors of lessons and remedies and the prices of limits (with_update_rewards).
        """
        ...


@runtime_checkable
class FeasibilityFilter(Protocol):
    """A filter of proposed tasks that plays them with the current policy."""

    policy: Policy
    transitions: int

    def __call__(self, tasks: Sequence[Task]) -> Sequence[str | None]:
        """Return why each task is refused, None where it is not."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopParts:
    """Optional parts of the loop, next to the policy and the environment.

    `propose` writes variations of tasks, and `feasibility` filters them. `critic` is
    the critic of PPO. `auxiliary` are examples for the auxiliary loss
    (AuxiliaryConfig).
    `real_eval` plays real dev tasks with a policy (MonitorConfig) and returns the
    metrics `real_success`, `real_eval_transitions`, the number of transitions it took,
    and those of selection.py; `real_eval_baseline` are those of the policy before
    training. `score` replaces the rewards that the policy learns from; the recorder
    still sees the environment's. `reward_refit` refits the reward model that `score`
    uses; the state holds its weights. `plan_lengths` are lengths of known plans by task
    id, for the lessons of the curriculum. `demonstrations` are won episodes, in which
    some rollouts begin (DemonstrationStartsConfig), or by which lost ones are guided
    (GuidedRetriesConfig). `goals` is the potential "goal" (PotentialConfig).
    `steps_left` returns how many steps
    of the real environment rollouts may still take; training ends where they do not
    suffice for a group. `rollout_mesh` are devices that roll out and do not learn: the
    policy that acts is copied to them, and the experience model lies there.
    """

    propose: generator.Proposer | None = None
    feasibility: FeasibilityFilter | None = None
    critic: Critic | None = None
    auxiliary: Sequence[Example] = ()
    real_eval: Callable[[Policy], dict[str, float]] | None = None
    real_eval_baseline: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    score: ScoreEpisodes | None = None
    reward_refit: RewardModelRefit | None = None
    plan_lengths: Mapping[str, float | int] = dataclasses.field(default_factory=dict)
    demonstrations: Sequence[Episode] = ()
    goals: GoalPotential | None = None
    steps_left: Callable[[], int] | None = None
    rollout_mesh: Mesh | None = None
