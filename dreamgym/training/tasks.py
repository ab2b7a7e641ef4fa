"""The curriculum's part of the loop: the tasks of an update, and what came of them.

invented tasks -> pool -> step limit -> a batch of tasks, drawn by value; after the
rollouts, their outcomes -> values of the tasks, progress in the lessons.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from curriculum import generator, sampler
from curriculum.lesson_tracker import step_limit
from curriculum.pool import TaskQuota
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.vector import Snapshot
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.demonstration_starts import (
    DISTANCE,
    draw_starts,
    next_distance,
    success_metric,
)
from dreamgym.training.rollouts.groups import Rollouts, groups_of
from dreamgym.training.state import LoopParts, TrainingState
from worldmodel.data.records import Task


class TaskBatch(NamedTuple):
    """The tasks of an update, the mixture they were drawn by, and their step limit.

    `demonstration_starts` are states in which further groups begin.
    """

    tasks: list[Task]
    mixture: Sequence[TaskQuota]
    step_limit: int
    metrics: dict[str, float]
    demonstration_starts: Sequence[Snapshot] = ()


def choose_tasks(
    state: TrainingState,
    policy: Policy,
    max_steps: int,
    config: LoopConfig,
    parts: LoopParts,
    rng: np.random.Generator,
    count: int,
) -> TaskBatch:
    """Return `count` tasks of an update, drawn from the pool by value.

    States of demonstrations take the place of some of them, if the settings say so.
    Invented tasks join the pool before the draw. `max_steps` is the run's step limit,
    below which a schedule may stay; `policy` is what the feasibility filter plays.
    """
    proposals = _propose_tasks(state, policy, config, parts, rng)
    limit = _step_limit(state, max_steps, config)
    mixture: Sequence[TaskQuota] = ()
    if state.lessons is not None:
        mixture = state.lessons.task_mixture(state.pool, parts.plan_lengths)
    starts, start_metrics = _demonstration_starts(
        state, config, parts, rng, count, limit
    )
    tasks = sampler.sample(
        state.pool,
        count - len(starts),
        config.curriculum,
        rng,
        task_mixture=mixture,
    )
    generated = [task.split == "generated" for task in tasks]
    metrics = {
        **{f"tasks/{reason}": float(n) for reason, n in proposals.items()},
        "tasks/generated_share": float(np.mean(generated)),
        "step_limit": float(limit),
    }
    return TaskBatch(tasks, mixture, limit, metrics | start_metrics, starts)


def record_outcomes(
    state: TrainingState, rollouts: Rollouts, config: LoopConfig, parts: LoopParts
) -> dict[str, Any]:
    """Record the outcomes in the pool and in the lessons; return the metrics of both.

    Task values follow the environment's success, whatever the rewards are. A fork does
    not begin where its task begins, so it says nothing about the task; nor does a
    rollout that begins in a demonstration.
    """
    successes = group_successes(rollouts.started, config.group_size)
    state.pool.record_batch(successes, state.update)
    return {
        "update": state.update + 1,
        "transitions": state.transitions,
        **_lesson_metrics(state, rollouts.started, config.group_size, parts),
        **success_metric(rollouts.from_demonstrations),
    }


def group_successes(
    rows: Sequence[Trajectory], size: int
) -> list[tuple[str, list[bool]]]:
    """Return the task id and the successes of scored rollouts, for each group."""
    return [
        (
            group[0].episode.task.id,
            [bool(t.episode.success) for t in group if t.error is None],
        )
        for group in groups_of(rows, size)
    ]


def _propose_tasks(
    state: TrainingState,
    policy: Policy,
    config: LoopConfig,
    parts: LoopParts,
    rng: np.random.Generator,
) -> dict[str, int]:
    """Add proposed tasks to the pool; return the number of proposals by result."""
    if parts.propose is None:
        return {}
    if parts.feasibility is not None:
        parts.feasibility.policy = policy
    c = config.curriculum
    return generator.extend(
        state.pool,
        parts.propose,
        c.proposals_per_update,
        rng,
        feasible=parts.feasibility,
        name=c.generator,
    )


def _demonstration_starts(
    state: TrainingState,
    config: LoopConfig,
    parts: LoopParts,
    rng: np.random.Generator,
    count: int,
    max_steps: int,
) -> tuple[list[Snapshot], dict[str, float]]:
    """Return the starts in demonstrations of this update, and their distance."""
    starts = config.curriculum.demonstration_starts
    if not starts.share:
        return [], {}
    longest = max(len(e.transitions) for e in parts.demonstrations)
    distance = next_distance(state.curve[-1] if state.curve else {}, starts, longest)
    drawn = draw_starts(
        parts.demonstrations, distance, starts.groups(count), max_steps, rng
    )
    return drawn, {DISTANCE: float(distance)}


def _step_limit(state: TrainingState, max_steps: int, config: LoopConfig) -> int:
    """Return the step limit of the episodes of this update.

    Where the limit grows, retired tasks return to the pool: they may have failed only
    because the limit was too short.
    """
    limit = step_limit(state.update, max_steps, config.curriculum, state.lessons)
    previous = state.curve[-1].get("step_limit") if state.curve else None
    if previous is not None and limit > previous:
        state.pool.readmit_unsolved()
    return limit


def _lesson_metrics(
    state: TrainingState, rows: Sequence[Trajectory], size: int, parts: LoopParts
) -> dict[str, float]:
    """Advance the lessons by what the rollouts show, and return their metrics."""
    lessons = state.lessons
    if lessons is None:
        return {}
    lessons.observe(t.episode for t in rows if t.error is None)
    epochs = len(rows) / size / lessons.tasks(state.pool, parts.plan_lengths)
    flags = lessons.check(epochs)
    row = {f"skills/{k}": v for k, v in lessons.state.history[-1].items()}
    row |= {f"flags/{k}": 1.0 for k in flags}
    return row | {"lesson": float(lessons.state.index)}
