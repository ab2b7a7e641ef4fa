"""The one loop, dream or real: choose tasks, roll out groups, update the policy.

tasks -> G rollouts each -> returns [N, G] -> advantages -> an update on sampled tokens
-> task values -> next tasks. Receives built parts; names no environment, no file.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from curriculum import generator, sampler
from curriculum.pool import TaskPool
from curriculum.sampler import CurriculumConfig
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import VectorEnv
from dreamgym.rl import watch
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.rl.watch import Weights
from dreamgym.training.config import LoopConfig
from dreamgym.training.gather import Rollouts, Score, gather, groups, scored
from dreamgym.training.learn import Learned, first_weights, learn, told
from dreamgym.training.progress import Progress
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState
from worldmodel.text.records import Task


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
    beside: Sequence[Example] = (),
    probe: Callable[[Policy], dict[str, float]] | None = None,
    score: Score | None = None,
) -> Progress:
    """Run the loop from `progress` to `config.updates` updates or the real budget.

    With a `budget` the loop ends when that many transitions are taken. `beside` are
    examples to imitate (BesideConfig); `probe` plays real dev games (WatchConfig): its
    success is `probe`, its transitions `probed`. `score` gives other rewards; hooks see
    the environment's.

    Raises:
      ValueError: forks in an environment that cannot go back.
      FloatingPointError: a loss that is not finite, where nothing is to be undone.
    """
    if config.forks and not hasattr(envs, "restore"):
        raise ValueError(
            "forks need an environment that can go back, which only the dream can"
        )
    while progress.update < config.updates and not progress.halted:
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
        acting = policy.replace(policy.model._replace(params=progress.state.params))
        before = envs.transitions
        found = gather(
            acting, envs, progress.pool, chosen, config, key=key, rng=rng,
            source=f"update{number}",
            show=None if show is None else _shown(show, number),
        )  # fmt: skip
        spent = progress.transitions + envs.transitions - before
        kept = _copies(progress) if config.watch.answer != "say" else None
        paid = found if score is None else scored(found, score)
        learned = _attempt(
            updater, progress, paid, config, kept, seed=seed, critic=critic,
            beside=beside,
        )  # fmt: skip
        for group in groups(found.started, config.group_size):
            outcomes = [bool(t.episode.success) for t in group if t.error is None]
            progress.pool.record(group[0].episode.task.id, outcomes, number)
        row = learned.row | {f"tasks/{k}": float(v) for k, v in invented.items()}
        row |= {"update": number + 1, "transitions": spent}
        row["tasks/generated_share"] = float(
            np.mean([t.split == "generated" for t in chosen])
        )
        if probe is not None and watch.due(config.watch, number + 1):
            params = learned.state.params
            row |= probe(policy.replace(policy.model._replace(params=params)))
        progress = _answered(
            progress, learned._replace(row=row), config, kept,
            first_weights(updater, config),
        )  # fmt: skip
        progress = progress._replace(transitions=spent)
        hooks.after_update(progress, found.started)
    return progress


Kept = tuple[TrainState, TrainState | None]
"""Policy and critic in buffers of their own, to go back to."""


def _copies(progress: Progress) -> Kept:
    return jax.tree.map(jnp.copy, (progress.state, progress.critic))


def _attempt(
    updater: Updater,
    progress: Progress,
    found: Rollouts,
    config: LoopConfig,
    kept: Kept | None,
    **args: Any,
) -> Learned:
    """`learn`; where its loss is not finite and there is a way back, nothing learnt."""
    try:
        return learn(updater, progress, found, config, **args)
    except FloatingPointError:
        if kept is None:
            raise
        last = progress.curve[-1] if progress.curve else {}
        row = {k: v for k, v in last.items() if k.endswith("_weight")}
        row |= told(found, config) | {f"alarm/{watch.NOT_FINITE}": 1.0}
        return Learned(kept[0], row, kept[1], progress.replay)


def _answered(
    progress: Progress,
    learned: Learned,
    config: LoopConfig,
    kept: Kept | None,
    start: Weights,
) -> Progress:
    """Where the loop stands after an update, or after what was done about it."""
    c, number = config.watch, progress.update + 1
    row = dict(learned.row)
    for name in watch.alarms(progress.curve, row, c):
        row[f"alarm/{name}"] = 1.0
    names = [k.removeprefix("alarm/") for k in row if k.startswith("alarm/")]
    state, critic, halted = learned.state, learned.critic, ""
    if names and kept is not None:
        state, critic = kept
        row["undone"] = 1.0
        said = f"update {number}: {', '.join(names)}"
        weights = watch.remedied(watch.weights_of(row, start), c.remedies)
        row |= {f"{k}_weight": float(v) for k, v in weights._asdict().items()}
        curve = [*progress.curve, row][-c.patience :]
        again = sum(r.get("undone", 0.0) for r in curve) >= c.patience
        if c.answer == "stop":
            halted = f"stopped before {said}"
        elif again:
            halted = f"stopped: {c.patience} updates in a row were undone; {said}"
    return progress._replace(
        update=number, state=state, critic=critic, replay=learned.replay,
        curve=[*progress.curve, row], halted=halted,
    )  # fmt: skip


def _shown(show: Callable[[int, int, int], None], number: int):
    return lambda done, total: show(number, done, total)


def pool_of(tasks: Sequence[Task], config: CurriculumConfig) -> TaskPool:
    """A fresh pool of seed tasks."""
    return TaskPool(tasks, patience=config.patience)
