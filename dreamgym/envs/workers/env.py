"""An environment in a worker, which can crash or hang without the run.

calls -> requests to a worker (worker.py) -> what the environment returned or raised. A
worker that ends is a ConnectionError, and RestartingEnv starts another. A step can be
begun in many workers (`start_step`) before the first result is waited for.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs.base import TextEnv
from dreamgym.envs.failures import deadlines_of
from dreamgym.envs.restarting import CAPABILITIES
from dreamgym.envs.workers.connection import WorkerConnection
from dreamgym.envs.workers.process import Process
from dreamgym.envs.workers.ray_actor import RayActor
from dreamgym.envs.workers.shared import LocalWorker, SharedWorker
from worldmodel.data.processes import process_count
from worldmodel.data.records import State, Task


class WorkerEnv(TextEnv):
    """An environment that runs in a worker.

    It has the optional methods of the environment there, its step limit, whether it is
    deterministic, its deadlines and its number of copies. Of an `info` it has what JSON
    can hold. A worker is shared with forks only.
    """

    def __init__(self, worker: WorkerConnection, number: int = 0):
        self._worker, self._number = worker, number
        description = worker.description
        self._methods = frozenset(description["methods"])
        for name, value in description["attributes"].items():
            setattr(self, name, value)
        self._seconds = deadlines_of(self)
        self._drop = weakref.finalize(self, worker.drop, number)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", ())
        if name not in CAPABILITIES or name not in methods:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self, f"_{name}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self._call(
            "reset", seed, options, seconds=self._seconds.reset
        )
        return observation, info

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        return tuple(self._call("step", action, seconds=self._seconds.step))

    def start_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset; the next call must be `reset` with the same arguments."""
        self._worker.start(self._number, "reset", seed, options)

    def start_step(self, action: str) -> None:
        """Begin a step; the next call must be `step` with the same action."""
        self._worker.start(self._number, "step", action)

    def seed_anew(self, seed: int) -> None:
        """Seed every random generator that the environment holds (base.seed_anew)."""
        self._call("seed_anew", seed)

    def close(self) -> None:
        """Close the environment; its worker ends with the last fork."""
        self._drop()

    def _call(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        """Call a method; its deadline is that of the other ones where none is given."""
        seconds = self._seconds.other if seconds is None else seconds
        return self._worker.call(self._number, method, *arguments, seconds=seconds)

    def _tasks(self, split: str) -> list[Task]:
        return self._call("tasks", split)

    def _expert(self) -> list[str]:
        return self._call("expert")

    def _valid_actions(self) -> list[str] | None:
        return self._call("valid_actions")

    def _variations(self, task: Task, rng: np.random.Generator) -> Iterator[Task]:
        bits = rng.bit_generator
        bits.state = self._call("variations", task, bits.state)

        def tasks() -> Iterator[Task]:
            while True:
                varied, bits.state = self._call("next_variation", bits.state)
                if varied is None:
                    return
                yield varied

        return tasks()

    def _render_state(self, state: State) -> str:
        return self._call("render_state", state)

    def _fork(self) -> gymnasium.Env:
        number = self._call("fork")
        self._worker.add_handle()
        return type(self)(self._worker, number)


def process_env(
    spec: str, memory_gb: float = 0.0, *, start_seconds: float
) -> WorkerEnv:
    """Return the environment of a name (registry.make) in a new worker process.

    Args:
      memory_gb: memory that the process and what it starts may use (a browser, a Java
        machine); 0 sets no limit.
      start_seconds: the deadline of the start; 0 sets none.

    Raises:
      ConnectionError: the process ended before the environment was made.
      EnvironmentTimeout: the environment was not made within the deadline.
      MemoryError: making it took more than `memory_gb`.
      ValueError: the environment cannot be made, or memory cannot be limited.
    """
    return _env_of(spec, lambda: Process(spec, memory_gb, start_seconds))


def rehashed_env(spec: str, *, start_seconds: float) -> WorkerEnv:
    """Return the environment of a name in a process that hashes texts differently.

    The arguments and errors are those of `process_env`.
    """
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    variables = {"PYTHONHASHSEED": seed}
    return _env_of(spec, lambda: Process(spec, 0.0, start_seconds, variables))


def ray_env(
    spec: str, memory_gb: float = 0.0, cpus: float = 1.0, *, start_seconds: float
) -> WorkerEnv:
    """Return the environment of a name in a new actor of a Ray cluster.

    Arguments and errors are those of RayActor.
    """
    return _env_of(spec, lambda: RayActor(spec, memory_gb, cpus, start_seconds))


def shared_env(spec: str, *, start_seconds: float) -> WorkerEnv:
    """Return the environment of a name, which the first of several processes steps.

    Raises:
      EnvironmentTimeout: it did not start within `start_seconds`; 0 sets no deadline.
      ValueError: the environment cannot be made.
    """
    return _env_of(spec, lambda: LocalWorker(spec, start_seconds), begins_early=False)


def _env_of(
    spec: str, make: Callable[[], WorkerConnection], *, begins_early: bool = True
) -> WorkerEnv:
    """Return a worker's environment; its class has the name of the one there.

    Several processes that run one program share the worker of the first one.
    """
    if process_count() > 1:
        worker = SharedWorker(spec, make, begins_early=begins_early)
    else:
        worker = make()
    return type(worker.description["name"], (WorkerEnv,), {})(worker)
