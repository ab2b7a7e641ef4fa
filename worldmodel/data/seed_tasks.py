"""Tried tasks, from which new ones are made."""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Task

MAX_SEEDS = 4
"""Seed tasks that are offered for a new one; models read as many as they are set to."""


class SeedTask(NamedTuple):
    """A task that a new one is made from, and the share of its attempts that were won.

    `success` is in [0, 1], None where nobody has tried.
    """

    task: Task
    success: float | None = None


def seed_tasks(tasks: Sequence[Task]) -> list[list[SeedTask]]:
    """Return each task as the only seed of a new one, not tried yet."""
    return [[SeedTask(task)] for task in tasks]
