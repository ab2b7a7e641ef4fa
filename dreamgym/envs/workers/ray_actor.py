"""A worker as an actor of a Ray cluster, for more environments than one machine holds.

The cluster is the one that the environment variable RAY_ADDRESS names, else the one
that was started last on this machine and still runs, else one of this machine alone,
which Ray then starts (so does RAY_ADDRESS=local). Ray places an actor where its
processors and memory are free, and waits where none are. An actor whose machine is lost
is a ConnectionError: RestartingEnv asks for another one, which Ray places elsewhere.
"""

import os
import sys
import textwrap
import weakref
from logging import WARNING
from typing import Any

from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.workers.connection import WorkerConnection
from dreamgym.envs.workers.worker import Worker


class Actor:
    """What Ray runs: it answers the messages of one worker."""

    def __init__(self) -> None:
        self._worker = Worker()

    def ready(self) -> bytes:
        """Return an empty message, once Ray has found a place."""
        return b""

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a request."""
        return self._worker.answer(message)


class RayActor(WorkerConnection):
    """A worker in an actor of a Ray cluster."""

    def __init__(self, spec: str, memory_gb: float, cpus: float, start_seconds: float):
        """Place an actor and wait until it has made its environment.

        Args:
          memory_gb: memory that Ray reserves for the actor; 0 reserves none.
          cpus: processors that Ray reserves for it.
          start_seconds: the deadline of each of the two; 0 sets none.

        Raises:
          ConnectionError: the actor ended.
          EnvironmentTimeout: there was no place for it, or its start took too long.
          ValueError: the environment cannot be made, or Ray is not installed.
        """
        super().__init__(spec)
        self._ray = connect_ray()
        places = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        options: dict[str, Any] = {"num_cpus": cpus, "max_restarts": 0}
        options["runtime_env"] = {"env_vars": places}  # it imports what the run imports
        if memory_gb:
            options["memory"] = int(memory_gb * 2**30)
        self._actor = self._ray.remote(**options)(Actor).remote()
        self._answer: Any = None
        self._end = weakref.finalize(self, _kill, self._ray, self._actor)
        self._answer = self._actor.ready.remote()
        try:
            self.receive(start_seconds)
        except EnvironmentTimeout:
            raise EnvironmentTimeout(
                f"Ray started no worker for {spec} within {start_seconds:g} s: it "
                f"needs {cpus:g} processors and {memory_gb:g} GB; the cluster has "
                f"{_free(self._ray)} (env.start_seconds; 0: no deadline)"
            ) from None
        self.open(start_seconds)

    @property
    def alive(self) -> bool:
        """See WorkerConnection; an actor that was lost is known once it is asked."""
        return self._end.alive

    def send(self, message: bytes) -> None:
        """See WorkerConnection."""
        if not self.alive:
            raise ConnectionError(f"the actor of {self.spec} has ended")
        self._answer = self._actor.answer.remote(message)

    def receive(self, seconds: float) -> bytes:
        """See WorkerConnection."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._answer, timeout=seconds or None)
        except errors.GetTimeoutError:
            self.kill()
            raise EnvironmentTimeout(f"no answer within {seconds:g} s") from None
        except errors.RayError as error:
            self.kill()
            raise ConnectionError(
                f"the actor of {self.spec} has ended: {type(error).__name__}: "
                f"{_reason(str(error))}"
            ) from None
        except BaseException:
            self.kill()
            raise

    def close(self) -> None:
        """See WorkerConnection; the actor's process ends with it."""
        self.kill()

    def kill(self) -> None:
        """End the actor."""
        self._end()


def connect_ray() -> Any:
    """Connect to a cluster; return the module `ray`.

    Raises:
      ValueError: it is not installed.
      ConnectionError: the cluster of RAY_ADDRESS does not answer.
    """
    try:
        import ray
    except ImportError:
        raise ValueError(
            "env.fleet = ray: the package is not installed: pip install 'dreamgym[ray]'"
        ) from None
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        ray.init(address=address, log_to_driver=False, logging_level=WARNING)
    return ray


def _reason(error: str) -> str:
    """Return an error of Ray in one line, without the identifiers it indents."""
    lines = [line for line in error.strip().splitlines() if not line[:1].isspace()]
    return textwrap.shorten(" ".join(lines), 240)


def _free(ray: Any) -> str:
    free = ray.available_resources()
    gigabytes = free.get("memory", 0.0) / 2**30
    return f"{free.get('CPU', 0.0):g} and {gigabytes:.1f} free"


def _kill(ray: Any, actor: Any) -> None:
    if ray.is_initialized():
        ray.kill(actor)
