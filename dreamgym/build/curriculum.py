"""Who writes variations of valuable tasks: the experience model, or a rule.

settings -> Proposer: seeds -> a task or None for each. The rule is the environment's
own where it can vary its tasks (a real reset each, counted), and otherwise a renaming
of what the texts name, which needs no environment.
"""

import sys
from collections.abc import Callable, Sequence

import gymnasium
import jax
import numpy as np

from curriculum.config import CurriculumConfig
from curriculum.generator import FunctionProposer, Proposer
from curriculum.pool import TaskPool
from curriculum.renaming import Renaming
from dreamgym.envs import base, registry, restarting
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task
from worldmodel.experience.base import ExperienceModel


def proposer(
    pool: TaskPool,
    config: CurriculumConfig,
    experience: ExperienceModel,
    *,
    env: str,
    seed: int,
) -> Proposer | None:
    """What writes variations for this pool by `config.generator`; None: nobody.

    `env` is a registered id, "module:Class", or "" where there is no environment. It is
    made when a rule is asked for, and then only if it can vary its tasks. What is
    proposed is a function of the seed, the update and the tasks, so a run that goes on
    proposes the same.
    """
    if config.generator == "none" or not config.proposals_per_update:
        return None

    def number(seeds: Sequence[Task]) -> int:
        return content_seed(seed, pool.next_update, *(t.id for t in seeds))

    def by_model(seeds: Sequence[Task]) -> list[Task | None]:
        return experience.vary(seeds, key=jax.random.key(number(seeds)))

    if config.generator == "model":
        return FunctionProposer(by_model)

    if _varies(env):
        return _Real(pool, env, number)
    rule = Renaming(_seeds(pool))

    def by_text(seeds: Sequence[Task]) -> list[Task | None]:
        rng = np.random.default_rng(number(seeds))
        return [rule.vary(task, rng) for task in seeds]

    return FunctionProposer(by_text)


class _Real:
    """Variations of the environment's own, begun there: of good form (generator)."""

    starts_in_environment = True

    def __init__(
        self, pool: TaskPool, env: str, number: Callable[[Sequence[Task]], int]
    ):
        self._pool, self._env, self._number = pool, env, number

    def __call__(self, seeds: Sequence[Task]) -> list[Task | None]:
        """See generator.Proposer."""
        rng, env = (
            np.random.default_rng(self._number(seeds)),
            restarting.open_env(self._env),
        )
        try:
            return [_varied(env, self._pool, task, rng) for task in seeds]
        finally:
            env.close()


def _seeds(pool: TaskPool) -> list[Task]:
    return [e.task for e in pool.entries.values() if not e.generated]


def _varies(env: str) -> bool:
    return bool(env) and base.can_vary(registry.parse_spec(env))


def _varied(
    env: gymnasium.Env, pool: TaskPool, task: Task, rng: np.random.Generator
) -> Task | None:
    """The first variation that is not known, begun once: a real reset.

    None where there is none, or the environment raised, which is said.
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
