"""Collection of the rollouts of one update.

tasks -> a group of rollouts for each -> further tasks where the rollouts of a group end
alike -> forks of states on the way, and guided retries of what was lost.
"""

import sys
from collections.abc import Callable, Sequence

import jax
import numpy as np

from curriculum import sampler
from curriculum.pool import TaskPool, TaskQuota
from dreamgym.agent.guidance import GuidedPolicy, guiding_actions
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.vector import Snapshot, VectorEnv
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.forks import fork_points
from dreamgym.training.rollouts.groups import (
    Rollouts,
    groups_of,
    is_informative,
    lost_tasks,
)
from worldmodel.data.records import Episode, Task


def collect_rollouts(
    policy: Policy,
    envs: VectorEnv,
    pool: TaskPool,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    key: jax.Array,
    rng: np.random.Generator,
    source: str,
    mixture: Sequence[TaskQuota] = (),
    demonstration_starts: Sequence[Snapshot] = (),
    demonstrations: Sequence[Episode] = (),
    max_groups: Callable[[], int] = lambda: sys.maxsize,
    show: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Roll out a group for every task, then further groups and forks by the settings.

    Each uninformative group is followed by a group of another task of the same
    `mixture`, in at most `config.max_resample_rounds` rounds (dynamic sampling,
    arXiv:2503.14476), as far as `max_groups` more may be rolled out. A group begins in
    each of the `demonstration_starts`. Tasks that were lost are tried again with
    guidance from `demonstrations`, as far as the settings and `max_groups` allow it.
    `source` names the episodes' origin in their records.
    """
    size, retries = config.group_size, config.curriculum.guided_retries

    def collect(
        starts: Sequence[Task | Snapshot],
        suffix: str,
        key: jax.Array,
        player: Policy = policy,
    ) -> list[Trajectory]:
        return rollout(
            player,
            envs,
            [start for start in starts for _ in range(size)],
            key=key,
            source=source + suffix,
            temperature=config.update.temperature,
            asks_plans=config.reward.potential.asks_plans,
            progress=show,
        )

    started = last_round = collect(tasks, "", key)
    for number in range(1, config.max_resample_rounds + 1):
        uninformative = sum(not is_informative(g) for g in groups_of(last_round, size))
        uninformative = min(uninformative, max_groups())
        if not uninformative:
            break
        # Replaced by other tasks, not by more rollouts of the same: a task that all
        # rollouts win is most likely won again.
        played = {t.episode.task.id for t in started}
        others = sampler.sample(
            pool,
            uninformative,
            config.curriculum,
            rng,
            task_mixture=mixture,
            exclude=played,
        )
        last_round = collect(others, f"-more{number}", jax.random.fold_in(key, number))
        started = [*started, *last_round]
    starts = fork_points(started, config, rng)
    forked = collect(starts, "-fork", jax.random.fold_in(key, 0)) if starts else []
    # Rounds of other tasks have the numbers before these.
    start_key, retry_key = (
        jax.random.fold_in(key, config.max_resample_rounds + i) for i in (1, 2)
    )
    demonstrated = collect(demonstration_starts, "-demonstration", start_key)
    guided: list[Trajectory] = []
    lost = lost_tasks(started, size) if retries.groups else []
    if actions := guiding_actions(lost, demonstrations, retries.share):
        tasks = [t for t in lost if t.id in actions]
        tasks = tasks[: min(retries.groups, max_groups())]
        guided = collect(tasks, "-guided", retry_key, GuidedPolicy(policy, actions))
    return Rollouts(started, forked, from_demonstrations=demonstrated, guided=guided)
