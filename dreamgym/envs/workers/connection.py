"""Calls of environments that run elsewhere: requests, replies, deadlines.

A worker holds one environment and its forks, by number. A subclass moves the messages:
to a process of this machine (process.py) or to an actor of a cluster (ray_actor.py).
"""

import abc
import contextlib
import time
from collections.abc import Sequence
from typing import Any

from dreamgym.envs.failures import EnvironmentTimeout, no_answer, not_started
from dreamgym.envs.workers.messages import decode, encode, error_from

SPARE_SECONDS = 5.0
"""Seconds after its deadline in which a worker says itself where its start hangs."""


class WorkerConnection(abc.ABC):
    """A worker and how it is asked; a lost one is a ConnectionError.

    `description` says what the environment is and has (worker.py). At most one request
    is on its way: a call that was begun must be the next one.
    """

    description: dict[str, Any]

    def __init__(self, spec: str):
        self.spec = spec
        self._dropped, self._handles = list[int](), 1
        self._pending, self._pending_since = b"", 0.0

    @property
    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether the worker may still answer."""

    @abc.abstractmethod
    def send(self, message: bytes) -> None:
        """Send a request; raise ConnectionError where the worker has ended."""

    @abc.abstractmethod
    def receive(self, seconds: float) -> bytes:
        """Return the reply to the request that was sent last.

        Args:
          seconds: the deadline, after which the worker is ended; 0 for none.

        Raises:
          ConnectionError: the worker ended.
          EnvironmentTimeout: the deadline passed.
          TextTooLong: the reply is too long; the worker is ended.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let the environment close, and end the worker."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the worker at once."""

    def open(self, seconds: float) -> None:
        """Let the worker make its environment.

        Args:
          seconds: the deadline, after which the worker is ended; 0 for none.

        Raises:
          ConnectionError: the worker ended.
          EnvironmentTimeout: the deadline passed.
          ValueError: the environment cannot be made.
        """
        request = {"method": "make", "spec": self.spec, "seconds": seconds}
        try:
            self.send(encode(request))
            try:
                reply = self.receive(seconds + SPARE_SECONDS if seconds else 0.0)
            except EnvironmentTimeout:
                raise not_started(self.spec, seconds) from None
            self.description = self._value(reply)
        except BaseException:
            self.kill()
            raise

    def call(self, env: int, method: str, *arguments: Any, seconds: float = 0.0) -> Any:
        """Return what a method of an environment of this worker returns.

        Args:
          seconds: the deadline, after which the worker is ended; 0 for none.

        Raises:
          EnvironmentTimeout: the deadline passed.
          Exception: what the environment raised, of the same type where it is one of
            Python's, else a RemoteError.
          ConnectionError: the worker ended.
          TextTooLong: the reply is too long; the worker is ended.
        """
        pending, spent = self._pending, time.monotonic() - self._pending_since
        request = encode((env, method, arguments))
        if not pending:
            self._send(env, method, arguments)
            spent = 0.0
        elif pending != request:
            self.kill()
            raise ConnectionError(f"{method} was called while another call was begun")
        self._pending = b""
        left = max(seconds - spent, 0.01) if seconds else 0.0
        try:
            reply = self.receive(left)
        except EnvironmentTimeout:
            named = "" if method in ("reset", "step") else method
            raise no_answer(seconds, named) from None
        return self._value(reply)

    def start(self, env: int, method: str, *arguments: Any) -> None:
        """Begin a call; the next `call` must be the same, and waits for its result."""
        if self._pending or not self.alive:
            return
        request = encode((env, method, arguments))
        with contextlib.suppress(ConnectionError):  # the call itself says so
            self._send(env, method, arguments)
            self._pending, self._pending_since = request, time.monotonic()

    @property
    def has_pending_call(self) -> bool:
        """Whether a call was begun whose result nobody has asked for yet."""
        return bool(self._pending)

    def add_handle(self) -> None:
        """Count a fork, for which the worker goes on."""
        self._handles += 1

    def drop(self, env: int) -> None:
        """Forget an environment; the worker ends with the last one."""
        self._handles -= 1
        if self._handles:
            self._dropped.append(env)  # with the next request
        else:
            self.close()

    def _send(self, env: int, method: str, arguments: Sequence[Any]) -> None:
        """Send a request, and with it which forks are no longer needed."""
        values = {"env": env, "arguments": arguments, "dropped": self._dropped}
        message = encode({"method": method, **values})
        self._dropped = []
        self.send(message)

    def _value(self, message: bytes) -> Any:
        try:
            reply = decode(message)
        except ValueError as error:
            self.kill()
            raise ConnectionError(
                f"the worker of {self.spec} sent no message ({error})"
            ) from None
        if "error" in reply:
            raise error_from(reply["error"])
        return reply["value"]
