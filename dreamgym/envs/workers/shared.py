"""A worker that several processes of one program share.

The first process calls it, and every process gets the same reply or the same error, so
that each real step is taken once.
"""

from collections.abc import Callable
from typing import Any

from dreamgym.envs.base import TextTooLong
from dreamgym.envs.failures import Deadline, EnvironmentTimeout, error_place
from dreamgym.envs.workers.connection import WorkerConnection
from dreamgym.envs.workers.messages import decode, encode, error_fields, error_from
from dreamgym.envs.workers.worker import Worker
from worldmodel.data.processes import from_first_process, is_first_process

CONNECTION_LOST = (ConnectionError, EnvironmentTimeout, TextTooLong)
"""Errors of a connection, after which its worker answers no more."""


class LocalWorker(WorkerConnection):
    """A worker without a process of its own: it makes calls in the calling process.

    A call that exceeds its deadline is interrupted by an exception, which code that
    catches every exception may swallow.
    """

    def __init__(self, spec: str, start_seconds: float):
        """Make the environment.

        Raises:
          EnvironmentTimeout: that took more than `start_seconds`; 0 sets no deadline.
          Exception: whatever the environment raises.
        """
        super().__init__(spec)
        self._worker, self._request = Worker(), b""
        self.open(start_seconds)

    @property
    def alive(self) -> bool:
        """See WorkerConnection."""
        return not self._worker.ended

    def send(self, message: bytes) -> None:
        """See WorkerConnection; `receive` makes the call."""
        self._request = message

    def receive(self, seconds: float) -> bytes:
        """See WorkerConnection."""
        with Deadline(seconds):
            return self._worker.answer(self._request)

    def close(self) -> None:
        """See WorkerConnection."""
        self._worker.close()

    def kill(self) -> None:
        """See WorkerConnection."""
        self._worker.close()


class SharedWorker(WorkerConnection):
    """The worker of the first process, whose replies all processes get.

    All processes must make the same calls in the same order.
    """

    def __init__(
        self, spec: str, make: Callable[[], WorkerConnection], *, begins_early: bool
    ):
        """Start the worker, in the first process; `make` starts it.

        Args:
          begins_early: whether the worker begins a call that `start` announces.

        Raises:
          ConnectionError: the worker ended.
          EnvironmentTimeout: the worker did not start within its deadline.
          ValueError: the environment cannot be made.
        """
        super().__init__(spec)
        self._worker: WorkerConnection | None = None
        self._send_error: Exception | None = None
        self._alive, self._begins_early = True, begins_early
        self.description = decode(self._share(lambda: encode(self._start(make))))

    def start(self, env: int, method: str, *arguments: Any) -> None:
        """See WorkerConnection; without a process of its own nothing begins early."""
        if self._begins_early:
            super().start(env, method, *arguments)

    def _start(self, make: Callable[[], WorkerConnection]) -> Any:
        self._worker = make()
        return self._worker.description

    def _share(self, reply: Callable[[], bytes]) -> bytes:
        """Return in all processes what `reply` returns or raises in the first one."""
        message = None
        if is_first_process():
            try:
                message = b"+" + reply()
            except Exception as error:
                message = b"-" + encode(error_fields(error, error_place(error)))
        shared = from_first_process(message)
        if shared[:1] == b"+":
            return shared[1:]
        error = error_from(decode(shared[1:]))
        self._alive = self._alive and not isinstance(error, CONNECTION_LOST)
        raise error

    @property
    def alive(self) -> bool:
        """See WorkerConnection; the same in all processes."""
        return self._alive

    def send(self, message: bytes) -> None:
        """See WorkerConnection; `receive` says where the worker has ended."""
        self._send_error = None
        if self._worker is None:
            return
        try:
            self._worker.send(message)
        except ConnectionError as error:
            self._send_error = error

    def receive(self, seconds: float) -> bytes:
        """See WorkerConnection."""
        return self._share(lambda: self._receive(seconds))

    def _receive(self, seconds: float) -> bytes:
        if self._send_error is not None:
            raise self._send_error
        assert self._worker is not None, "the first process has the worker"
        return self._worker.receive(seconds)

    def close(self) -> None:
        """See WorkerConnection."""
        if self._worker is not None:
            self._worker.close()

    def kill(self) -> None:
        """See WorkerConnection."""
        self._alive = False
        if self._worker is not None:
            self._worker.kill()
