"""The task generator of a run: proposes variations of valuable tasks.

settings -> Proposer: groups of seed tasks -> a new task or None for each. It comes from
the experience model, which reads the whole group, or from a rule, which varies its
first task. The rule is the environment's own, if it can vary its tasks (each costs a
real reset, which is counted); otherwise the entities named in the task's texts are
renamed, which needs no environment. As a control there are train tasks that nobody has
played.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence

import gymnasium
import jax
import numpy as np

from curriculum import generator
from curriculum.config import CurriculumConfig
from curriculum.generator import FunctionProposer, Proposer
from curriculum.pool import TaskPool
from curriculum.renaming import Renaming
from dreamgym.build.real.instances import instance_maker
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, registry, restarting
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode, Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import ExperienceModel

LISTED = 8
"""Train tasks that are listed for each that is proposed: some are of other families."""
PROPOSALS = 64
"""Tasks that are proposed at a time for expert iteration."""


def proposer(
    pool: TaskPool,
    config: CurriculumConfig,
    experience: ExperienceModel,
    *,
    env: EnvConfig,
    seed: int,
) -> Proposer | None:
    """Return the proposer that `config.generator` names, or None if there is none.

    An environment is only created for the rule, and only used if it can vary its tasks.
    Proposals depend on the seed, the update and the tasks alone, so that a resumed run
    proposes the same tasks.
    """
    if config.generator == "none" or not config.proposals_per_update:
        return None

    def number(tasks: Sequence[Task]) -> int:
        return content_seed(seed, pool.next_update, *(t.id for t in tasks))

    def by_model(groups: Sequence[Sequence[SeedTask]]) -> list[Task | None]:
        key = jax.random.key(number([s.task for group in groups for s in group]))
        return experience.vary(groups, key=key)

    if config.generator == "model":
        return FunctionProposer(by_model)
    if config.generator == "train":
        return _TrainTasks(pool, env, number)
    if _varies(env.id):
        return _Real(pool, env, number)
    rule = Renaming(_seeds(pool))

    def by_text(groups: Sequence[Sequence[SeedTask]]) -> list[Task | None]:
        tasks = [group[0].task for group in groups]
        rng = np.random.default_rng(number(tasks))
        return [rule.vary(task, rng) for task in tasks]

    return FunctionProposer(by_text, group_size=1)


def invented_tasks(
    experience: ExperienceModel, episodes: Sequence[Episode], count: int, *, seed: int
) -> list[Task]:
    """Return up to `count` tasks that the experience model writes from played ones.

    The played tasks are those of the episodes; the ones that were won in some attempts
    and lost in others are varied first. At most about four times `count` tasks are
    proposed; returned are those that have the form of the played ones and are no
    copies.
    """
    tasks = {e.task.id: e.task for e in episodes}
    if not tasks:
        return []
    pool = TaskPool(tasks.values())
    outcomes: dict[str, list[bool]] = {}
    for e in episodes:
        if e.success is not None:
            outcomes.setdefault(e.task.id, []).append(e.success)
    pool.record_batch(list(outcomes.items()), 0)
    propose = proposer(
        pool,
        CurriculumConfig(generator="model", proposals_per_update=PROPOSALS),
        experience,
        env=EnvConfig(),
        seed=seed,
    )
    assert propose is not None
    rng, proposed = np.random.default_rng(seed), 0
    invented: list[Task] = []
    while proposed < 4 * count and len(invented) < count:
        proposed += sum(generator.extend(pool, propose, PROPOSALS, rng).values())
        pool.next_update += 1
        invented = [e.task for e in pool.active(generated=True)]
    return invented[:count]


class _Real:
    """Variations by the real environment, which has started each of them."""

    starts_in_environment, group_size = True, 1

    def __init__(
        self, pool: TaskPool, env: EnvConfig, number: Callable[[Sequence[Task]], int]
    ):
        self._pool, self._env, self._number = pool, env, number

    def __call__(self, groups: Sequence[Sequence[SeedTask]]) -> list[Task | None]:
        """See generator.Proposer."""
        tasks = [group[0].task for group in groups]
        rng, env = (
            np.random.default_rng(self._number(tasks)),
            restarting.open_env(self._env.id, make=instance_maker(self._env)),
        )
        try:
            return [_varied(env, self._pool, task, rng) for task in tasks]
        finally:
            env.close()


class _TrainTasks:
    """Train tasks that the environment lists and the pool does not have."""

    starts_in_environment, group_size = True, 1

    def __init__(
        self, pool: TaskPool, env: EnvConfig, number: Callable[[Sequence[Task]], int]
    ):
        if not env.id:
            raise ValueError("curriculum.generator = train takes tasks of an --env")
        self._pool, self._env, self._number = pool, env, number

    def __call__(self, groups: Sequence[Sequence[SeedTask]]) -> list[Task | None]:
        """Return a task of its family for each group, drawn from the list.

        See generator.Proposer.
        """
        rng = np.random.default_rng(self._number([g[0].task for g in groups]))
        with contextlib.closing(
            restarting.open_env(self._env.id, make=instance_maker(self._env))
        ) as env:
            count = len(self._pool.entries) + LISTED * len(groups)
            tasks = base.tasks_of(env, self._env.id, "train", count)
            others = [t for t in tasks if t.id not in self._pool.entries]
            # Drawn, because one that is refused would else be proposed for ever.
            others = [others[i] for i in rng.permutation(len(others))]
            chosen: list[Task | None] = []
            for group in groups:
                family = group[0].task.family
                task = next((t for t in others if t.family == family), None)
                chosen.append(task)
                others = [t for t in others if t is not task]
            started = base.begin_all(env, [t for t in chosen if t is not None])
        self._pool.resets += len(started)
        by_id = {t.id: t for t in started}
        return [None if t is None else by_id.get(t.id) for t in chosen]


def _seeds(pool: TaskPool) -> list[Task]:
    return [e.task for e in pool.entries.values() if not e.generated]


def _varies(env: str) -> bool:
    return bool(env) and base.can_vary(registry.parse_spec(env))


def _varied(
    env: gymnasium.Env, pool: TaskPool, task: Task, rng: np.random.Generator
) -> Task | None:
    """Return the first unknown variation, started once with a real reset.

    None if there is none, or if the environment raised an error, which is printed.
    """
    result = base.guarded(env, lambda: _first_new(env, pool, task, rng))
    if isinstance(result, base.EnvironmentFailure):
        print(f"no variation of task {task.id!r}: {result.reason}", file=sys.stderr)
        return None
    return result


def _first_new(
    env: gymnasium.Env, pool: TaskPool, task: Task, rng: np.random.Generator
) -> Task | None:
    varied = base.as_variations(env)
    for variation in () if varied is None else varied.variations(task, rng):
        if variation.id not in pool.entries:
            pool.resets += 1
            return base.begin(env, variation)[0]
    return None
