"""The one loop, dream or real: choose tasks, roll out groups, update the policy.

tasks -> G rollouts each -> returns [N, G] -> advantages -> clipped update on
sampled tokens -> task values -> next tasks. Receives built parts; names no
environment, no file.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from curriculum import generator, sampler
from curriculum.pool import TaskPool
from curriculum.sampler import CurriculumConfig
from dreamgym.agent.policy import Policy, Turn
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.base import UNTRUSTED, VectorEnv
from dreamgym.rl.config import UpdateConfig
from dreamgym.rl.controllers import adapted
from dreamgym.rl.credit import Grid
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState
from worldmodel.text.records import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """How many updates on how many groups of how many rollouts."""

    updates: int = 12
    tasks: int = 16
    group_size: int = 8
    update: UpdateConfig = UpdateConfig()
    curriculum: CurriculumConfig = CurriculumConfig()

    def __post_init__(self):
        if self.group_size < 2:
            raise ValueError(
                f"group_size must be >= 2 to have a baseline, got {self.group_size}"
            )
        if self.updates < 1 or self.tasks < 1:
            raise ValueError(
                f"updates and tasks must be >= 1, got {self.updates}, {self.tasks}"
            )


class Progress(NamedTuple):
    """Where the loop stands: what a checkpoint must hold to go on bit for bit."""

    update: int
    state: TrainState
    pool: TaskPool
    transitions: int
    curve: list[dict[str, float]]
    critic: TrainState | None = None


@runtime_checkable
class Hooks(Protocol):
    """What the composition root adds: saving, showing, enriching the memory."""

    def after_update(
        self, progress: Progress, trajectories: Sequence[Trajectory]
    ) -> None:
        """Called when update number `progress.update` is done."""
        ...


def train(
    policy: Policy,
    envs: VectorEnv,
    updater: Updater,
    progress: Progress,
    config: LoopConfig,
    *,
    seed: int,
    hooks: Hooks,
    propose: generator.Propose | None = None,
    budget: int | None = None,
    show: Callable[[int, int, int], None] | None = None,
    critic: Critic | None = None,
) -> Progress:
    """Run the loop from `progress` to `config.updates` updates or the real budget.

    With a `budget` the loop ends when that many transitions are taken.
    """
    while progress.update < config.updates:
        if budget is not None and progress.transitions >= budget:
            break
        number = progress.update
        rng = np.random.default_rng((seed, number))
        key = jax.random.fold_in(jax.random.key(seed), number)
        invented: dict[str, int] = {}
        if propose is not None:
            invented = generator.extend(
                progress.pool, propose, config.curriculum.proposals, rng
            )
        chosen = sampler.sample(progress.pool, config.tasks, config.curriculum, rng)
        groups = [t for t in chosen for _ in range(config.group_size)]
        acting = policy.replace(policy.model._replace(params=progress.state.params))
        before = envs.transitions
        trajectories = rollout(
            acting, envs, groups, key=key, source=f"update{number}",
            temperature=config.update.temperature,
            progress=None if show is None else _shown(show, number),
        )  # fmt: skip
        spent = progress.transitions + envs.transitions - before
        state, row, values = learn(
            updater, progress, trajectories, config, seed=seed, critic=critic
        )
        row |= {f"tasks/{k}": float(v) for k, v in invented.items()}
        row |= {"update": number + 1, "transitions": spent}
        row["tasks/generated_share"] = float(
            np.mean([t.split == "generated" for t in chosen])
        )
        progress = Progress(
            number + 1, state, progress.pool, spent, [*progress.curve, row], values
        )
        hooks.after_update(progress, trajectories)
    return progress


def _shown(show: Callable[[int, int, int], None], number: int):
    return lambda done, total: show(number, done, total)


def learn(
    updater: Updater,
    progress: Progress,
    trajectories: Sequence[Trajectory],
    config: LoopConfig,
    *,
    seed: int,
    critic: Critic | None = None,
) -> tuple[TrainState, dict[str, Any], TrainState | None]:
    """Advantages, one update, task values: the new state, its metrics, the critic's."""
    size, c = config.group_size, config.update
    examples = [turn_example(turn, 0.0, w) for turn, w in _weighed(trajectories, c)]
    rewards = [x.reward for t in trajectories for x in t.episode.transitions]
    weight = progress.curve[-1].get("kl_weight", c.kl) if progress.curve else c.kl
    if weight and c.penalty.place == "reward":
        rewards = np.subtract(rewards, weight * updater.surprise(examples)).tolist()
    grid, judge, told = _grid(trajectories), progress.critic, {}
    if critic is None or judge is None:
        adv, use = grid.compared(rewards, c, size)
    else:
        values = critic.values(judge, progress.state.params, examples)
        adv, use, returns = grid.judged(rewards, values, c)
        known = [i for i, ok in enumerate(use) if ok]
        if known:
            judge, told = critic.fit(
                judge, progress.state.params, [examples[i] for i in known],
                returns[known], values[known], seed=seed + progress.update,
            )  # fmt: skip
    examples = [
        e._replace(adv=float(a))
        for e, a, ok in zip(examples, adv, use, strict=True)
        if ok
    ]
    state, metrics = progress.state, {}
    if examples:
        state, metrics = updater.update(
            progress.state, examples, seed=seed + progress.update, kl=weight
        )
        if c.penalty.target:
            metrics["kl_weight"] = adapted(weight, metrics["kl"], c.penalty.target)
    if "gain" in metrics:  # turns without a signal have an advantage of 0
        metrics["gain"] *= float(use.mean())
    _record(progress, trajectories, size)
    good = [t for t in trajectories if t.error is None]
    steps = [x for t in trajectories for x in t.episode.transitions]
    row = (
        metrics
        | told
        | {
            "success": _mean([bool(t.episode.success) for t in good]),
            "return": _mean([t.episode.total_reward for t in good]),
            "steps": _mean([len(t.turns) for t in trajectories]),
            "unscored": float(len(trajectories) - len(good)),
            "unchanged": _mean([x.state == x.next_state for x in steps]),
            "used_turns": float(use.mean()),
        }
    )
    reasons = Counter(t.error.partition(":")[0] for t in trajectories if t.error)
    row |= {f"unscored/{reason}": float(n) for reason, n in reasons.items()}
    return state, row, judge


def _weighed(
    trajectories: Sequence[Trajectory], config: UpdateConfig
) -> Iterator[tuple[Turn, float]]:
    """Each turn with the weight of its tokens, so that what is to counts the same."""
    for t in trajectories:
        written = [sum(turn.sampled) for turn in t.turns]
        for turn, count in zip(t.turns, written, strict=True):
            of = {"token": 1, "turn": count, "episode": sum(written)}[
                config.surrogate.average
            ]
            yield turn, 1.0 / max(of, 1)


def _grid(trajectories: Sequence[Trajectory]) -> Grid:
    return Grid(
        np.array([len(t.turns) for t in trajectories]),
        np.array([t.error is None for t in trajectories]),
        np.array([(t.error or "").startswith(UNTRUSTED) for t in trajectories]),
    )


def _record(progress: Progress, trajectories: Sequence[Trajectory], size: int) -> None:
    for at in range(0, len(trajectories), size):
        group = trajectories[at : at + size]
        outcomes = [bool(t.episode.success) for t in group if t.error is None]
        progress.pool.record(group[0].episode.task.id, outcomes, progress.update)


def turn_example(turn: Turn, advantage: float, weight: float = 1.0) -> Example:
    """A sampled turn in the context it was sampled in; only sampled tokens train."""
    context = len(turn.context)
    return Example(
        [*turn.context, *turn.ids],
        [False] * context + list(turn.sampled),
        [0] * context + list(turn.part),
        [0.0] * context + list(turn.logp),
        advantage,
        weight,
    )


def _mean(values: Sequence[float | int]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def pool_of(tasks: Sequence[Task], config: CurriculumConfig) -> TaskPool:
    """A fresh pool of seed tasks."""
    return TaskPool(tasks, patience=config.patience)
