"""The pool of tasks with what is known of each: outcomes, value, age, lineage.

Plain data, saved as JSON, so that a run resumes with the same pool.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from curriculum.value import task_value
from worldmodel.text.records import Task


@dataclasses.dataclass
class Entry:
    """A task and the outcomes of its last groups of rollouts."""

    task: Task
    generated: bool = False
    groups: int = 0
    successes: int = 0
    rollouts: int = 0
    value: float | None = None
    settled: int = 0
    last_update: int = -1
    retired: bool = False


class TaskPool:
    """Tasks by id, in the order they came."""

    def __init__(self, tasks: Iterable[Task], *, patience: int = 2):
        """`patience`: all-same groups in a row before a task is retired.

        Raises:
          ValueError: no tasks, a repeated id, or patience below 1.
        """
        if patience < 1:
            raise ValueError(f"patience must be >= 1, got {patience}")
        self._patience = patience
        self.entries: dict[str, Entry] = {}
        for task in tasks:
            if task.id in self.entries:
                raise ValueError(f"task id {task.id!r} is in the pool already")
            self.entries[task.id] = Entry(task)
        if not self.entries:
            raise ValueError("a pool needs at least one task")

    def add_generated(self, task: Task) -> None:
        """A task of the generator's; its id must be new."""
        if task.id in self.entries:
            raise ValueError(f"task id {task.id!r} is in the pool already")
        self.entries[task.id] = Entry(task, generated=True)

    def active(self, *, generated: bool | None = None) -> list[Entry]:
        """Tasks not retired, of one kind if asked."""
        return [
            e
            for e in self.entries.values()
            if not e.retired and generated in (None, e.generated)
        ]

    def record(self, task_id: str, successes: Sequence[bool], update: int) -> float:
        """Take in a group's scored outcomes; returns the task's value.

        A task whose last `patience` groups were always won or always lost is retired.
        """
        entry = self.entries[task_id]
        value = task_value(successes)
        entry.last_update = update
        if successes:
            entry.groups += 1
            entry.rollouts += len(successes)
            entry.successes += sum(successes)
            entry.value = value
            entry.settled = entry.settled + 1 if value == 0.0 else 0
            entry.retired = entry.settled >= self._patience
        if not any(not e.retired for e in self.entries.values() if not e.generated):
            self._revive()
        return value

    def _revive(self) -> None:
        """When every seed task is retired the policy has changed: look again."""
        for entry in self.entries.values():
            if not entry.generated:
                entry.retired, entry.settled, entry.value = False, 0, None

    def state(self) -> dict[str, Any]:
        """The pool as JSON."""
        return {"entries": [dataclasses.asdict(e) for e in self.entries.values()]}

    def load(self, state: dict[str, Any]) -> None:
        """Take the place of the entries with those of `state()`."""
        self.entries = {}
        for row in state["entries"]:
            task = row["task"] | {
                "initial_state": tuple(row["task"]["initial_state"]),
                "lineage": tuple(row["task"]["lineage"]),
            }
            self.entries[task["id"]] = Entry(**(row | {"task": Task(**task)}))
