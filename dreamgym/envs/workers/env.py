"""An environment in a worker process, which can crash or hang without the run.

calls -> requests to the process (worker.py) -> what the environment returned or raised.
A process that ends is a ConnectionError, and RestartingEnv starts another. A step can
be begun in many processes (`start_step`) before the first result is waited for.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs.base import TextEnv, TextTooLong
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.restarting import RESET_SECONDS, STEP_SECONDS
from dreamgym.envs.workers.messages import (
    MAX_BYTES,
    OPTIONAL_METHODS,
    decode,
    encode,
    raised,
)
from worldmodel.data.records import State, Task

CLOSE_SECONDS = 5.0
"""Seconds that an environment has to close before its process is ended."""

START = "from dreamgym.envs.workers.worker import main; main({})"
"""The program of a worker process, with the number of its connection."""

TOO_LONG = "bad message length"
"""What Python says of a message above a limit."""


class Process:
    """A worker process and its connection; a lost one is a ConnectionError."""

    def __init__(self, spec: str, memory_gb: float = 0.0):
        """Start a process and wait until it has made its environment.

        Raises:
          ConnectionError: the process ended.
          ValueError: the environment cannot be made.
        """
        self._spec, self._sent, self._dropped = spec, b"", list[int]()
        self._handles = 1
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START.format(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the run
            )
        self._connection = Connection(ours.detach())
        self._end = weakref.finalize(self, _kill, self._process, self._connection)
        start = {"spec": spec, "path": sys.path, "memory_gb": memory_gb}
        try:
            self._send(encode(start))
            self.description = self._received()
        except BaseException:
            self.kill()
            raise

    def call(self, env: int, method: str, *arguments: Any, seconds: float = 0.0) -> Any:
        """Return what a method of an environment of this process returns.

        Args:
          seconds: the deadline, after which the process is ended; 0 for none.

        Raises:
          EnvironmentTimeout: the deadline passed.
          Exception: what the environment raised, of the same type where it is one of
            Python's, else a RemoteError.
          ConnectionError: the process ended.
          TextTooLong: the reply has more than MAX_BYTES; the process is ended.
        """
        request = self._request(env, method, arguments)
        if not self._sent:
            self._send(request)
        elif self._sent != request:
            raise RuntimeError(f"{method} was called while another call was begun")
        self._sent = b""
        return self._received(seconds)

    def start(self, env: int, method: str, *arguments: Any) -> None:
        """Begin a call; the next `call` must be the same, and waits for its result."""
        if self._sent or not self.alive:
            return
        request = self._request(env, method, arguments)
        with contextlib.suppress(ConnectionError):  # the call itself says so
            self._send(request)
            self._sent = request

    def add_handle(self) -> None:
        """Count a fork, for which the process goes on."""
        self._handles += 1

    def drop(self, env: int) -> None:
        """Forget an environment; the process ends with the last one."""
        self._handles -= 1
        if self._handles:
            self._dropped.append(env)  # with the next request
        else:
            self.close()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the environment close, and end its process."""
        if self._end.alive and self.alive and not self._sent:
            with contextlib.suppress(ConnectionError, subprocess.TimeoutExpired):
                self._send(encode({"method": "close"}))
                self._process.wait(CLOSE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process, and those that it started in its session."""
        self._end()

    def _request(self, env: int, method: str, arguments: Sequence[Any]) -> bytes:
        dropped, self._dropped = self._dropped, []
        values = {"env": env, "arguments": arguments, "dropped": dropped}
        return encode({"method": method, **values})

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise self._ended() from None
        except BaseException:  # half a message is sent
            self.kill()
            raise

    def _received(self, seconds: float = 0.0) -> Any:
        try:
            if not self._connection.poll(seconds or None):
                raise EnvironmentTimeout(f"no answer within {seconds:g} s")
            reply = decode(self._connection.recv_bytes(MAX_BYTES))
        except OSError as error:
            if TOO_LONG in str(error):
                self.kill()
                raise TextTooLong(
                    f"a reply of more than {MAX_BYTES >> 20} MiB"
                ) from None
            if isinstance(error, TimeoutError):  # a deadline; half a reply may be read
                self.kill()
                raise
            raise self._ended() from None
        except EOFError:
            raise self._ended() from None
        except ValueError as error:
            self.kill()
            raise ConnectionError(
                f"the worker process of {self._spec} sent no message ({error})"
            ) from None
        except BaseException:
            self.kill()
            raise
        if "error" in reply:
            raise raised(reply["error"])
        return reply["value"]

    def _ended(self) -> ConnectionError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        reason = "" if code is None else f" with exit status {code}"
        if code is not None and code < 0:
            reason = f" by signal {-code} ({signal.strsignal(-code)})"
        self.kill()
        return ConnectionError(f"the worker process of {self._spec} has ended{reason}")


def _kill(process: subprocess.Popen, connection: Connection) -> None:
    """End a process and its session, and close the connection."""
    connection.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class ProcessEnv(TextEnv):
    """An environment that runs in a worker process.

    It has the optional methods of the environment there, its step limit, whether it is
    deterministic, its deadlines and its number of copies. Of an `info` it has what JSON
    can hold. A process is shared with forks only.
    """

    def __init__(self, process: Process, number: int = 0):
        self._process, self._number = process, number
        description = process.description
        self._methods = frozenset(description["methods"])
        for name, value in description["attributes"].items():
            setattr(self, name, value)
        self._drop = weakref.finalize(self, process.drop, number)

    def __getattr__(self, name: str) -> Any:
        methods = self.__dict__.get("_methods", ())
        if name not in OPTIONAL_METHODS or name not in methods:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return getattr(self, f"_{name}")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        seconds = float(getattr(self, "reset_seconds", RESET_SECONDS))
        observation, info = self._call("reset", seed, options, seconds=seconds)
        return observation, info

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        seconds = float(getattr(self, "step_seconds", STEP_SECONDS))
        return tuple(self._call("step", action, seconds=seconds))

    def start_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset; the next call must be `reset` with the same arguments."""
        self._process.start(self._number, "reset", seed, options)

    def start_step(self, action: str) -> None:
        """Begin a step; the next call must be `step` with the same action."""
        self._process.start(self._number, "step", action)

    def seed_anew(self, seed: int) -> None:
        """Seed every random generator that the environment holds (base.seed_anew)."""
        self._call("seed_anew", seed)

    def close(self) -> None:
        """Close the environment; its process ends with the last fork."""
        self._drop()

    def _call(self, method: str, *arguments: Any, seconds: float = 0.0) -> Any:
        call = self._process.call
        return call(self._number, method, *arguments, seconds=seconds)

    def _tasks(self, split: str) -> list[Task]:
        return self._call("tasks", split)

    def _expert(self) -> list[str]:
        return self._call("expert")

    def _valid_actions(self) -> list[str] | None:
        return self._call("valid_actions")

    def _variations(self, task: Task, rng: np.random.Generator) -> list[Task]:
        tasks, state = self._call("variations", task, rng.bit_generator.state)
        rng.bit_generator.state = state
        return tasks

    def _render_state(self, state: State) -> str:
        return self._call("render_state", state)

    def _fork(self) -> gymnasium.Env:
        number = self._call("fork")
        self._process.add_handle()
        return type(self)(self._process, number)


def process_env(spec: str, memory_gb: float = 0.0) -> ProcessEnv:
    """Return the environment of a name (registry.make) in a new worker process.

    Its class has the name of the environment's, for messages.

    Args:
      memory_gb: the memory of the process; 0 sets no limit. Java reserves more than it
        uses, and needs some gigabytes more.

    Raises:
      ConnectionError: the process ended before the environment was made.
      ValueError: the environment cannot be made.
    """
    process = Process(spec, memory_gb)
    return type(process.description["name"], (ProcessEnv,), {})(process)
