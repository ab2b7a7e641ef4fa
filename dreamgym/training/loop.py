"""The one loop, dream or real: choose tasks, roll out groups, update the policy.

tasks -> G rollouts each -> returns [N, G] -> advantages -> an update on sampled tokens
-> task values -> next tasks. Receives built parts; names no environment, no file.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from curriculum import generator, sampler
from curriculum.lesson_tracker import step_limit
from curriculum.pool import TaskQuota
from dreamgym.agent.early_experience import rollout_iwm_examples
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.vector import VectorEnv, as_restorable
from dreamgym.rl import watch
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.rl.watch import Weights
from dreamgym.training.config import LoopConfig
from dreamgym.training.gather import Rollouts, Score, gather, groups, scored
from dreamgym.training.learn import Learned, first_weights, learn
from dreamgym.training.metrics import rollout_metrics
from dreamgym.training.progress import Progress
from worldmodel.data.records import Task
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState

BLIND = 3
"""Updates in a row without a scored rollout, after which training stops."""


@runtime_checkable
class Hooks(Protocol):
    """What the composition root adds: saving, showing, enriching the memory."""

    def after_update(
        self, progress: Progress, trajectories: Sequence[Trajectory]
    ) -> None:
        """Called when update number `progress.update` is done."""
        ...


@runtime_checkable
class Trying(Protocol):
    """A filter of proposals that plays them with the policy of now (feasibility)."""

    policy: Policy
    transitions: int

    def __call__(self, tasks: Sequence[Task]) -> Sequence[str | None]:
        """Why each task is refused, or None."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
    """What a loop may be given beside a policy and an environment.

    `propose` writes variations of tasks and `trial` tries them out; `critic` is PPO's;
    `beside` are examples to imitate (BesideConfig); `probe` plays real dev games
    (WatchConfig): its success is `probe`, its transitions `probed`; `score` gives other
    rewards, while hooks see the environment's; `plans` are lengths of known plans by
    task id, for the stages of the curriculum.
    """

    propose: generator.Proposer | None = None
    trial: Trying | None = None
    critic: Critic | None = None
    beside: Sequence[Example] = ()
    probe: Callable[[Policy], dict[str, float]] | None = None
    score: Score | None = None
    plans: Mapping[str, float | int] = dataclasses.field(default_factory=dict)


def train(
    policy: Policy,
    envs: VectorEnv,
    updater: Updater,
    progress: Progress,
    config: LoopConfig,
    *,
    seed: int,
    hooks: Hooks,
    parts: Parts | None = None,
    budget: int | None = None,
    show: Callable[[int, int, int], None] | None = None,
) -> Progress:
    """Run the loop from `progress` to `config.updates` updates or the real budget.

    With a `budget` (the config's limit where none is given) the loop ends when that
    many transitions are taken.

    Raises:
      ValueError: forks in an environment that cannot go back.
      FloatingPointError: a loss that is not finite, where nothing is to be undone.
    """
    parts = Parts() if parts is None else parts
    if budget is None and config.limit:
        budget = config.limit
    if config.forks and as_restorable(envs) is None:
        raise ValueError(
            "forks need an environment that can go back, which only the dream can"
        )
    limit, size = envs.max_steps, config.group_size
    while progress.update < config.updates and not progress.halted:
        if budget is not None and progress.transitions >= budget:
            break
        number = progress.update
        rng = np.random.default_rng((seed, number))
        key = jax.random.fold_in(jax.random.key(seed), number)
        acting = policy.replace(policy.model._replace(params=progress.state.params))
        before = _steps(envs, parts)
        invented = _invented(progress, acting, config, parts, rng)
        envs.max_steps = _limit(progress, limit, config)
        mix = _mix(progress, parts)
        chosen = sampler.sample(
            progress.pool, config.tasks, config.curriculum, rng, task_mixture=mix
        )
        found = gather(
            acting, envs, progress.pool, chosen, config, key=key, rng=rng,
            source=f"update{number}", mix=mix,
            show=None if show is None else _shown(show, number),
        )  # fmt: skip
        spent = progress.transitions + _steps(envs, parts) - before
        undoes = config.watch.answer != "say"
        kept = _copy((progress.state, progress.critic)) if undoes else None
        paid = found if parts.score is None else scored(found, parts.score)
        learned = _attempt(
            updater, progress, paid, config, kept, seed=seed, critic=parts.critic,
            beside=_beside(acting, found, config, parts, seed + number),
        )  # fmt: skip
        progress.pool.record_batch(outcomes(found.started, size), number)
        row = learned.row | {f"tasks/{k}": float(v) for k, v in invented.items()}
        row |= {"update": number + 1, "transitions": spent}
        row["tasks/generated_share"] = float(
            np.mean([t.split == "generated" for t in chosen])
        )
        row["step_limit"] = float(envs.max_steps)
        row |= _staged(progress, found.started, size, parts)
        if parts.probe is not None and watch.due(config.watch, number + 1):
            params = learned.state.params
            row |= parts.probe(policy.replace(policy.model._replace(params=params)))
        progress = _answered(
            progress, learned._replace(row=row), config, kept,
            first_weights(config),
        )._replace(transitions=spent)  # fmt: skip
        progress = _kept(_blind(progress, paid.started))
        hooks.after_update(progress, found.started)
    envs.max_steps = limit
    return progress


def _steps(envs: VectorEnv, parts: Parts) -> int:
    """Transitions taken so far, those of trials counted in."""
    return envs.transitions + (0 if parts.trial is None else parts.trial.transitions)


def _invented(
    progress: Progress,
    acting: Policy,
    config: LoopConfig,
    parts: Parts,
    rng: np.random.Generator,
) -> dict[str, int]:
    """New tasks in the pool; counts what became of the proposals."""
    if parts.propose is None:
        return {}
    if parts.trial is not None:
        parts.trial.policy = acting
    c = config.curriculum
    return generator.extend(
        progress.pool, parts.propose, c.proposals, rng, feasible=parts.trial,
        name=c.generator,
    )  # fmt: skip


def _beside(
    acting: Policy, found: Rollouts, config: LoopConfig, parts: Parts, seed: int
) -> Sequence[Example]:
    """The examples that may be imitated beside this update."""
    if config.beside.kind != "own" or not config.supervised:
        return parts.beside
    count = config.beside.turns
    return rollout_iwm_examples(acting, found.started, max_examples=count, seed=seed)


def _mix(progress: Progress, parts: Parts) -> Sequence[TaskQuota]:
    """The present stage's, where there are stages."""
    if progress.stages is None:
        return ()
    return progress.stages.task_mixture(progress.pool, parts.plans)


def _limit(progress: Progress, last: int, config: LoopConfig) -> int:
    """The steps an episode of this update may take; where more, tasks are tried again.

    Under a shorter limit they may have been lost for nothing else.
    """
    found = step_limit(progress.update, last, config.curriculum, progress.stages)
    before = progress.curve[-1].get("step_limit") if progress.curve else None
    if before is not None and found > before:
        progress.pool.readmit_unsolved()
    return found


def outcomes(rows: Sequence[Trajectory], size: int) -> list[tuple[str, list[bool]]]:
    """Task and scored successes of each group."""
    return [
        (
            group[0].episode.task.id,
            [bool(t.episode.success) for t in group if t.error is None],
        )
        for group in groups(rows, size)
    ]


def _staged(
    progress: Progress, rows: Sequence[Trajectory], size: int, parts: Parts
) -> dict[str, float]:
    """A check of the stages after a batch: what is measured, where they stand."""
    stages = progress.stages
    if stages is None:
        return {}
    stages.observe(t.episode for t in rows if t.error is None)
    flags = stages.check(len(rows) / size / stages.tasks(progress.pool, parts.plans))
    row = {f"skills/{k}": v for k, v in stages.state.history[-1].items()}
    row |= {f"flags/{k}": 1.0 for k in flags}
    return row | {"stage": float(stages.state.index)}


Kept = tuple[TrainState, TrainState | None]
"""Policy and critic in buffers of their own, to go back to."""


def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)  # an update may reuse the buffers it is given


def _kept(progress: Progress) -> Progress:
    """The progress with the best policy so far, where that is kept."""
    last = len(progress.curve) - 1
    if progress.best is None or watch.best(progress.curve) != last:
        return progress
    return progress._replace(best=_copy(progress.state))


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
        row |= rollout_metrics(found, config) | {f"alarm/{watch.NOT_FINITE}": 1.0}
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
        if "gap" in names and progress.best is not None:
            state = _copy(progress.best)
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


def _blind(progress: Progress, rows: Sequence[Trajectory]) -> Progress:
    """The progress, halted where no rollout was scored for too long.

    `rows` are those of the last update. To go on would only spend more: nobody knows
    what the policy earns, and what breaks them all breaks the next ones, too.
    """
    last = progress.curve[-BLIND:]
    seen = any(row["unscored"] < row["rollouts"] for row in last)
    if progress.halted or seen or len(last) < BLIND:
        return progress
    reasons = Counter[str]()
    for row in last:
        named = {
            k.partition("/")[2]: int(n) for k, n in row.items() if "unscored/" in k
        }
        reasons.update(named)
    told = ", ".join(f"{n} ended with {name!r}" for name, n in reasons.most_common())
    return progress._replace(
        halted=f"stopped: no rollout of {BLIND} updates in a row was scored; {told}; "
        f"the last: {rows[-1].error}"
    )


def _shown(show: Callable[[int, int, int], None], number: int):
    return lambda done, total: show(number, done, total)
