"""The step limit of an episode: declared by the environment, or from expert plans.

environment, tasks -> the limit of an episode, with the reason for it
"""

import math
import numbers
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.actions import as_list
from dreamgym.envs.base import EnvironmentFailure, guarded
from worldmodel.data.records import Task

MARGIN = 1.75
"""The limit of an episode, as a multiple of the longest expert's plan.

The tasks of TextWorldExpress, whose longest plan has 9 actions, get a limit of 16
steps, with which all published tables were measured.
"""

MIN_SPARE = 4
"""Steps that an episode may have at least beyond the longest expert's plan."""

DEFAULT = 16
"""The limit where the environment declares none and there is no expert."""

PLANS = 50
"""Tasks whose plans are looked at."""


class StepLimit(NamedTuple):
    """The step limit of an episode, and where it comes from."""

    steps: int
    reason: str


def declared_step_limit(env: gymnasium.Env) -> int | None:
    """Return the step limit that an environment declares, or None.

    It is the attribute `max_episode_steps`, else the one of its Gymnasium spec. A value
    that is no number of steps counts as none (`dreamgym check` names it).
    """
    limit = declared_value(env)
    return int(limit) if is_step_limit(limit) else None


def declared_value(env: gymnasium.Env) -> Any:
    """Return what an environment declares as its step limit, whatever it is."""
    try:
        return env.get_wrapper_attr("max_episode_steps")
    except AttributeError:
        return None if env.spec is None else env.spec.max_episode_steps


def is_step_limit(value: Any) -> bool:
    """Return whether a value is a whole number of at least 1, and of 64 bits."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return is_whole and 0 < int(value) <= sys.maxsize


def step_limit_of(env: gymnasium.Env, task: Task) -> int | None:
    """Return the step limit that an environment declares for a task, or None.

    It is the same for all tasks, except where several environments are one (`mix:A,B`):
    their method `step_limit_of` says which limit a task has.
    """
    owner = base.provider(env, "step_limit_of")
    return declared_step_limit(env) if owner is None else owner.step_limit_of(task)


def step_limit(env: gymnasium.Env, tasks: Sequence[Task]) -> StepLimit:
    """Return how many steps an episode of an environment may have.

    It is 1.75 times the longest expert's plan among the first tasks, and at least 4
    more than it, but not more than the environment declares; what it declares where
    there is no expert; else 16. An expert is asked after a reset; no step is taken.
    Plans of one action are single turns: their limit is 1.
    """
    declared = declared_step_limit(env)
    longest = max(plan_lengths(env, tasks[:PLANS]).values(), default=0)
    if longest == 1 and declared in (None, 1):
        return StepLimit(1, "every expert's plan has one action")
    if longest:
        steps = with_margin(longest)
        if declared is None or steps <= declared:
            return StepLimit(
                steps, f"the longest expert's plan, {longest} actions, with a margin"
            )
    if declared is not None:
        return StepLimit(declared, "the environment declares it")
    return StepLimit(DEFAULT, "it declares none and has no expert")


def with_margin(actions: int) -> int:
    """Return the step limit that leaves a plan of so many actions room for mistakes."""
    return max(math.ceil(MARGIN * actions), actions + MIN_SPARE)


def plan_lengths(env: gymnasium.Env, tasks: Sequence[Task]) -> dict[str, int]:
    """Return the length of the expert's plan of each task; none without an expert.

    The environment is reset to each task, and no step is taken. A task that cannot be
    begun, or for which there is no plan, is left out.
    """
    expert, lengths = base.as_expert(env), dict[str, int]()
    if expert is None:
        return lengths

    def length(task: Task) -> int:
        base.begin(env, task)
        return len(as_list(expert.expert()) or ())

    for task in tasks:
        result = guarded(env, lambda task=task: length(task))
        if not isinstance(result, EnvironmentFailure):
            lengths[task.id] = result
    return lengths
