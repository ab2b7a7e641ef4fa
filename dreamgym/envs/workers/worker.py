"""The worker's side: one environment, which a run asks from outside.

requests -> calls of the environment -> replies. As a process (`main`) it ends with its
connection and with the run, and what the environment prints goes to stderr.
"""

import atexit
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base, limits
from dreamgym.envs.actions import as_list
from dreamgym.envs.failures import NOT_CAUGHT, as_exception, error_place
from dreamgym.envs.restarting import CAPABILITIES
from dreamgym.envs.workers.messages import (
    MAX_BYTES,
    decode,
    encode,
    error_fields,
    plain_info,
)

END_SECONDS = 5.0
"""Seconds in which a worker ends by itself once its run has ended."""

DECLARED_ATTRIBUTES = ("max_copies", "reset_seconds", "step_seconds")
"""Attributes of an environment that the run reads, where they are declared."""


OUT_OF_MEMORY = encode(
    {"error": error_fields(MemoryError("the worker's memory is used up"), "?")}
)
"""The reply to a call that ran out of memory, made while there is some."""


class Worker:
    """The environments of a worker by number: the first, and forks of it.

    `ended` says that it answers no more: it was closed, its environment could not be
    made, or memory ran out, after which nobody knows what was left half done.
    """

    def __init__(self):
        self._envs: dict[int, gymnasium.Env] = {}
        self._count, self.ended = 1, False
        self._variation_iterator: Any = None

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a request: what the method returned, or its error."""
        request = decode(message)
        try:
            return encode({"value": self._value(request)})
        except MemoryError:  # whatever else is done may run out of it, too
            self.ended = True
            return OUT_OF_MEMORY
        except NOT_CAUGHT:
            raise
        except BaseException as error:
            cause, place = as_exception(error), error_place(error)
        self.ended |= request["method"] == "make"
        return encode({"error": error_fields(cause, place)})

    def _value(self, request: Mapping[str, Any]) -> Any:
        if request["method"] == "make":
            return self._make(request)
        if request["method"] == "close":
            self.close()
            return None
        for number in request["dropped"]:
            with contextlib.suppress(Exception):
                self._envs.pop(number).close()
        call: Callable[..., Any] = getattr(self, f"_{request['method']}")
        return call(self._envs[request["env"]], *request["arguments"])

    def _make(self, request: Mapping[str, Any]) -> dict[str, Any]:
        from dreamgym.envs import registry

        self._envs[0] = registry.start(request["spec"], seconds=request["seconds"])
        return self.describe()

    def describe(self) -> dict[str, Any]:
        """Return what the run must know of the environment before it asks anything."""
        env = self._envs[0]
        attributes = {
            name: value
            for name in DECLARED_ATTRIBUTES
            if isinstance(value := getattr(env.unwrapped, name, None), int | float)
        }
        return {
            "name": type(env.unwrapped).__name__,
            "methods": [n for n in CAPABILITIES if base.provider(env, n)],
            "attributes": {
                **attributes,
                "max_episode_steps": limits.declared_step_limit(env),
                "deterministic": base.declared_determinism(env),
                "plans_from_any_state": base.plans_from_any_state(env),
            },
        }

    def _reset(
        self, env: gymnasium.Env, seed: int | None, options: dict[str, Any] | None
    ) -> Any:
        observation, info = env.reset(seed=seed, options=options)
        return observation, plain_info(info)

    def _step(self, env: gymnasium.Env, action: str) -> Any:
        *parts, info = env.step(action)
        return *parts, plain_info(info)

    def _tasks(self, env: gymnasium.Env, split: str) -> Any:
        return as_list(base.provider(env, "tasks").tasks(split))

    def _expert(self, env: gymnasium.Env) -> Any:
        return as_list(base.provider(env, "expert").expert())

    def _valid_actions(self, env: gymnasium.Env) -> Any:
        return as_list(base.provider(env, "valid_actions").valid_actions())

    def _variations(
        self, env: gymnasium.Env, task: Any, generator: Mapping[str, Any]
    ) -> Any:
        """Begin variations; return the state of the generator they are drawn by."""
        rng = np.random.Generator(getattr(np.random, generator["bit_generator"])())
        rng.bit_generator.state = generator
        varied = base.provider(env, "variations").variations(task, rng)
        self._variation_iterator = iter(varied), rng
        return rng.bit_generator.state

    def _next_variation(self, env: gymnasium.Env, generator: Mapping[str, Any]) -> Any:
        """Return the next variation, None after the last, and the generator's state."""
        del env
        tasks, rng = self._variation_iterator
        rng.bit_generator.state = generator
        return next(tasks, None), rng.bit_generator.state

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
        self.ended = True
        for env in self._envs.values():
            with contextlib.suppress(Exception):
                env.close()


def _end_with(run: int) -> None:
    """End this process once its run has ended, also where it hangs in a call."""
    while os.getppid() == run:
        time.sleep(1.0)
    time.sleep(END_SECONDS)  # where it does not hang, it ends by itself
    os.killpg(0, signal.SIGKILL)


def main(descriptor: int) -> None:
    """Answer the requests of a run on a connection, until either of them ends."""
    watch = threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True)
    watch.start()
    # The run ends it; what the environment starts gets SIGINT as usual.
    signal.signal(signal.SIGINT, lambda *_: None)
    os.set_inheritable(descriptor, False)
    atexit.register(os.killpg, 0, signal.SIGKILL)  # what was started ends with it
    os.dup2(2, 1)
    connection, worker = Connection(descriptor), Worker()
    try:
        while not worker.ended:
            connection.send_bytes(worker.answer(connection.recv_bytes(MAX_BYTES)))
    except (EOFError, OSError):  # the run has ended, or has given it up
        pass
    finally:
        worker.close()
