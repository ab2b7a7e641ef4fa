"""OpenEnv's Task API: which splits there are, and the tasks of one."""

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from dreamgym.serving.worlds import SEEDS, World
from worldmodel.data.records import Task

MOST_TASKS = 1_000
"""Tasks of one answer, at most."""


class SplitRequest(BaseModel):
    """A split."""

    split: str


class TaskRequest(SplitRequest):
    """A task of a split."""

    index: int = Field(ge=0)


class TaskRangeRequest(SplitRequest):
    """The tasks of a split from `start` to before `stop`."""

    start: int = Field(default=0, ge=0)
    stop: int | None = Field(default=None, ge=0)


def add_task_api(app: FastAPI, world: World) -> None:
    """Add the pages of the Task API."""

    def count(name: str, split: str) -> int:
        if name != world.name:
            raise HTTPException(404, f"unknown environment {name!r}: {world.name!r}")
        if split not in world.splits():
            have = world.splits()
            raise HTTPException(400, f"no tasks of split {split!r}; have {have}")
        return len(world.tasks[split]) if world.tasks else SEEDS

    def rows(name: str, split: str, start: int, stop: int | None) -> list[Any]:
        number = count(name, split)
        stop = min(number if stop is None else stop, number, start + MOST_TASKS)
        tasks = (world.task(split, seed=0, index=i) for i in range(start, stop))
        return [task_row(task, start + i) for i, task in enumerate(tasks)]

    @app.get("/list_environments")
    def environments() -> list[str]:
        return [world.name]

    @app.get("/{name}/splits")
    def splits(name: str) -> list[str]:
        count(name, world.splits()[0])
        return world.splits()

    @app.post("/{name}/num_tasks")
    def num_tasks(name: str, request: SplitRequest) -> dict[str, int]:
        return {"num_tasks": count(name, request.split)}

    @app.post("/{name}/tasks")
    def tasks(name: str, request: SplitRequest) -> dict[str, Any]:
        return {"tasks": rows(name, request.split, 0, None)}

    @app.post("/{name}/task")
    def task(name: str, request: TaskRequest) -> dict[str, Any]:
        if request.index >= count(name, request.split):
            last = count(name, request.split) - 1
            raise HTTPException(400, f"index must be 0 to {last}, got {request.index}")
        return {"task": rows(name, request.split, request.index, request.index + 1)[0]}

    @app.post("/{name}/task_range")
    def task_range(name: str, request: TaskRangeRequest) -> dict[str, Any]:
        return {"tasks": rows(name, request.split, request.start, request.stop)}


def task_row(task: Task, index: int) -> dict[str, Any]:
    """Return what a client needs to begin a task, and to name it."""
    return {
        "id": task.id,
        "instruction": task.instruction,
        "split": task.split,
        "index": index,
    }
