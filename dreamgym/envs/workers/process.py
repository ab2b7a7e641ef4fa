"""A worker in a process of this machine, asked over a pair of sockets."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection

from dreamgym.envs.base import TextTooLong
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.workers.connection import WorkerConnection
from dreamgym.envs.workers.memory import MemoryLimit
from dreamgym.envs.workers.messages import MAX_BYTES, encode, error_fields, error_from

CLOSE_SECONDS = 5.0
"""Seconds that an environment has to close before its process is ended."""

START = """import sys
sys.path[:] = sys.argv[2:]
from dreamgym.envs.workers.worker import main
main(int(sys.argv[1]))
"""
"""The program of a worker process: it imports what the run imports.

Its arguments are the number of its connection, and the places of modules.
"""

TOO_LONG = "bad message length"
"""What Python says of a message above a limit."""


class Process(WorkerConnection):
    """A worker process."""

    def __init__(
        self,
        spec: str,
        memory_gb: float,
        start_seconds: float,
        variables: Mapping[str, str] | None = None,
    ):
        """Start a process and wait until it has made its environment.

        Args:
          memory_gb: memory that it and what it starts may use; 0 sets no limit.
          variables: environment variables that it has besides those of this process.

        Raises:
          ConnectionError: the process ended.
          EnvironmentTimeout: that took more than `start_seconds`; 0 sets no deadline.
          MemoryError: that took more than `memory_gb`.
          ValueError: the environment cannot be made, or memory cannot be limited.
        """
        super().__init__(spec)
        run_socket, worker_socket = socket.socketpair()
        with worker_socket:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(worker_socket.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[worker_socket.fileno()],
                start_new_session=True,  # Ctrl-C is for the run
                env={**os.environ, **(variables or {})},
            )
        self._connection = Connection(run_socket.detach())
        self._end = weakref.finalize(self, _kill, self._process, self._connection)
        self._memory_limit: MemoryLimit | None = None
        if memory_gb:
            try:
                self._memory_limit = MemoryLimit(self._process, memory_gb)
            except ValueError:
                self.kill()
                raise
        self.open(start_seconds)

    @property
    def alive(self) -> bool:
        """See WorkerConnection."""
        return self._process.poll() is None

    def send(self, message: bytes) -> None:
        """See WorkerConnection."""
        try:
            self._connection.send_bytes(message)
        except OSError:
            raise self._ended() from None
        except BaseException:  # half a message is sent
            self.kill()
            raise

    def receive(self, seconds: float) -> bytes:
        """See WorkerConnection.

        Raises:
          MemoryError: the worker exceeded its memory in this call, and was ended.
        """
        try:
            self._wait(seconds)
            return self._connection.recv_bytes(MAX_BYTES)
        except TimeoutError:  # half a reply may be read
            self.kill()
            raise
        except OSError as error:
            if TOO_LONG not in str(error):
                raise self._out_of_memory() or self._ended() from None
            self.kill()
            size = MAX_BYTES >> 20
            raise TextTooLong(f"a reply of more than {size} MiB") from None
        except EOFError:
            raise self._out_of_memory() or self._ended() from None
        except BaseException:
            self.kill()
            raise

    def _wait(self, seconds: float) -> None:
        """Wait for a reply; a worker that has ended may have left its socket open."""
        end = time.monotonic() + seconds if seconds else math.inf
        while not self._connection.poll(max(min(end - time.monotonic(), 1.0), 0.0)):
            if time.monotonic() >= end:
                raise EnvironmentTimeout(f"no answer within {seconds:g} s")
            if not self.alive and not self._connection.poll():
                raise EOFError

    def close(self) -> None:
        """See WorkerConnection."""
        try:
            if self._end.alive and self.alive and not self.has_pending_call:
                with contextlib.suppress(ConnectionError, subprocess.TimeoutExpired):
                    self.send(encode({"method": "close"}))
                    self._process.wait(CLOSE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the process, and those that it started in its session."""
        self._end()

    def _out_of_memory(self) -> Exception | None:
        """Return the error of a call that ended the worker by its memory limit."""
        if self._memory_limit is None or not self._memory_limit.error:
            return None
        self.kill()
        return error_from(error_fields(MemoryError(self._memory_limit.error), "?"))

    def _ended(self) -> ConnectionError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        reason = "" if code is None else f" with exit status {code}"
        if code is not None and code < 0:
            reason = f" by signal {-code} ({signal.strsignal(-code)})"
        if self._memory_limit is not None and self._memory_limit.error:
            reason = f": {self._memory_limit.error}"
        self.kill()
        return ConnectionError(f"the worker process of {self.spec} has ended{reason}")


def _kill(process: subprocess.Popen, connection: Connection) -> None:
    """End a process and its session, and close the connection."""
    connection.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
