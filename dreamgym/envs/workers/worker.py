"""The worker process of one environment.

requests on a connection -> calls of the environment -> replies. The environment's own
output goes to stderr. The process ends with its connection, and with the run.
"""

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base, limits
from dreamgym.envs.failures import error_place
from dreamgym.envs.workers.messages import (
    MAX_BYTES,
    OPTIONAL_METHODS,
    decode,
    encodable,
    encode,
    error_fields,
)

DECLARED = ("max_copies", "reset_seconds", "step_seconds")
"""Attributes of an environment that the run reads, where they are declared."""


MAX_VARIATIONS = 256
"""Variations of a task that are asked for at most; an environment may know no end."""


class Worker:
    """The environments of a worker process by number: the first, and forks of it."""

    def __init__(self, env: gymnasium.Env):
        self._envs, self._count = {0: env}, 1

    def answer(self, request: Mapping[str, Any]) -> Any:
        """Return what the method of a request returns."""
        for number in request["dropped"]:
            self._envs.pop(number).close()
        call: Callable[..., Any] = getattr(self, f"_{request['method']}")
        return call(self._envs[request["env"]], *request["arguments"])

    def describe(self) -> dict[str, Any]:
        """Return what the run must know of the environment before it asks anything."""
        env = self._envs[0]
        attributes = {
            name: value
            for name in DECLARED
            if isinstance(value := getattr(env.unwrapped, name, None), int | float)
        }
        return {
            "name": type(env.unwrapped).__name__,
            "methods": [n for n in OPTIONAL_METHODS if base.provider(env, n)],
            "attributes": {
                **attributes,
                "max_episode_steps": limits.declared_step_limit(env),
                "deterministic": base.is_deterministic(env),
            },
        }

    def _reset(
        self, env: gymnasium.Env, seed: int | None, options: dict[str, Any] | None
    ) -> Any:
        observation, info = env.reset(seed=seed, options=options)
        return observation, encodable(info)

    def _step(self, env: gymnasium.Env, action: str) -> Any:
        *parts, info = env.step(action)
        return *parts, encodable(info)

    def _tasks(self, env: gymnasium.Env, split: str) -> Any:
        return list(base.provider(env, "tasks").tasks(split))

    def _expert(self, env: gymnasium.Env) -> Any:
        return list(base.provider(env, "expert").expert())

    def _valid_actions(self, env: gymnasium.Env) -> Any:
        valid = base.provider(env, "valid_actions").valid_actions()
        return None if valid is None else list(valid)

    def _variations(
        self, env: gymnasium.Env, task: Any, generator: Mapping[str, Any]
    ) -> Any:
        """Return variations, and the state of the generator that they were drawn by."""
        bits = getattr(np.random, generator["bit_generator"])()
        bits.state = generator
        rng = np.random.Generator(bits)
        varied = base.provider(env, "variations").variations(task, rng)
        tasks = list(itertools.islice(varied, MAX_VARIATIONS))
        return tasks, rng.bit_generator.state

    def _render_state(self, env: gymnasium.Env, state: Sequence[str]) -> Any:
        return base.provider(env, "render_state").render_state(tuple(state))

    def _fork(self, env: gymnasium.Env) -> int:
        forkable = base.as_forkable(env)
        assert forkable is not None, "the run asks for a fork where there can be one"
        number, self._count = self._count, self._count + 1
        self._envs[number] = forkable.fork()
        return number

    def _seed_anew(self, env: gymnasium.Env, seed: int) -> None:
        base.seed_anew(env, seed)

    def close(self) -> None:
        """Close all environments."""
        for env in self._envs.values():
            with contextlib.suppress(Exception):
                env.close()


def serve(connection: Connection, worker: Worker) -> None:
    """Answer requests until the connection ends.

    After a MemoryError the process ends: nobody knows what it left half done.
    """
    while True:
        try:
            request = decode(connection.recv_bytes(MAX_BYTES))
        except (EOFError, OSError):
            return
        if request["method"] == "close":
            return
        reply = _reply(lambda request=request: worker.answer(request))
        connection.send_bytes(reply)
        if decode(reply).get("error", {}).get("type") == "MemoryError":
            return


def _reply(call: Callable[[], Any]) -> bytes:
    try:
        return encode({"value": call()})
    except SystemExit as error:
        cause = RuntimeError(f"it called sys.exit({error.code!r})")
        return encode({"error": error_fields(cause, error_place(error))})
    except Exception as error:
        return encode({"error": error_fields(error, error_place(error))})


def _end_with(run: int) -> None:
    """End this process once its run has ended, also where it hangs in a call."""
    while os.getppid() == run:
        time.sleep(1.0)
    os._exit(1)


def _limit_memory(gigabytes: float) -> None:
    if gigabytes:
        import resource  # no module of Windows

        size = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def main(descriptor: int) -> None:
    """Make the environment that the first message names, and serve it."""
    watch = threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True)
    watch.start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run ends it
    os.dup2(2, 1)
    connection = Connection(descriptor)
    start = decode(connection.recv_bytes(MAX_BYTES))
    sys.path[:] = start["path"]
    worker: Worker | None = None

    def make() -> Any:
        nonlocal worker
        from dreamgym.envs import registry

        _limit_memory(start["memory_gb"])
        worker = Worker(registry.make(start["spec"]))
        return worker.describe()

    connection.send_bytes(_reply(make))
    if worker is not None:
        try:
            serve(connection, worker)
        finally:
            worker.close()
