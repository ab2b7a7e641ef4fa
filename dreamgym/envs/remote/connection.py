"""One episode's connection to an OpenEnv server.

open (retried while the server is full) -> request, answer, request, answer -> closed.
Every wait has a deadline. A connection that failed is never used again: on a new one
the server would go on with an environment that was not reset.
"""

import contextlib
import json
import random
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dreamgym.envs.failures import EnvironmentTimeout

MAX_MESSAGE_BYTES = 4 * 2**20
"""Bytes of one answer, at most: a text of 100,000 characters, however it is escaped."""

RETRY_CODES = ("CAPACITY_REACHED",)
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
"""Seconds between attempts at a server that is full: doubled, with some randomness."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class ProtocolError(ValueError):
    """An answer that is not what the protocol expects."""


class ServerRefusal(RuntimeError):
    """The server answered with an error; `code` is OpenEnv's."""

    def __init__(self, code: str, message: str):
        super().__init__(f"the server refuses: {message} ({code})")
        self.code = code


class ServerFull(ConnectionError):
    """The server had no place for a session, as long as it was asked."""


class Server(NamedTuple):
    """Where a server is, and what each request to it may take."""

    url: str
    """Such as http://127.0.0.1:8000, without a path behind it."""
    token: str = ""
    reset_seconds: float = 120.0
    step_seconds: float = 60.0

    @property
    def socket_url(self) -> str:
        """The address of its WebSocket."""
        return f"{self.url.replace('http', 'ws', 1)}/ws"

    @property
    def is_local(self) -> bool:
        """Whether it runs on this machine, where no proxy leads."""
        return urlsplit(self.url).hostname in LOOPBACK

    @property
    def headers(self) -> dict[str, str]:
        """The headers that every request has."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


class Connection:
    """A WebSocket on which one episode is played."""

    def __init__(self, server: Server):
        """Prepare a connection; `reset` opens it."""
        self._server = server
        self._socket: Any = None
        self._opened = contextlib.ExitStack()

    def reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Open the socket and begin an episode; return the first observation.

        A server that is full, or closes the socket before it answers, is asked again
        until the deadline of a reset.

        Raises:
          ServerFull: it had no place until then.
          ConnectionError: nobody listens, or the connection was lost.
          EnvironmentTimeout: the reset took too long.
          ServerRefusal, ProtocolError: as `request`.
        """
        import websockets.exceptions as closed

        deadline = time.monotonic() + self._server.reset_seconds
        wait = FIRST_WAIT
        while True:
            try:
                self._open(max(deadline - time.monotonic(), 0.01))
                left = max(deadline - time.monotonic(), 0.01)
                return self._request("reset", data, left)
            except ServerRefusal as refusal:
                self.close()
                if refusal.code not in RETRY_CODES:
                    raise
                reason = str(refusal)
            except (closed.ConnectionClosed, BrokenPipeError) as error:
                self.close()
                reason = f"the connection was closed before it was used ({error})"
            except BaseException:
                self.close()
                raise
            wait = min(2 * wait, LONGEST_WAIT)
            pause = wait * random.uniform(0.5, 1.0)  # not all clients at once
            if time.monotonic() + pause >= deadline:
                raise ServerFull(f"{self._server.url}: {reason}")
            time.sleep(pause)

    def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; return what was observed.

        Raises:
          RuntimeError: the connection is closed.
          ConnectionError: it was lost.
          EnvironmentTimeout: the step took too long.
          ServerRefusal, ProtocolError: the answer is an error, or makes no sense.
        """
        import websockets.exceptions as closed

        if self._socket is None:
            raise RuntimeError("no episode is running: reset first")
        try:
            return self._request("step", action, self._server.step_seconds)
        except (closed.ConnectionClosed, OSError) as error:
            self.close()
            if isinstance(error, EnvironmentTimeout):
                raise
            raise ConnectionError(
                f"{self._server.url}: the connection was lost in the middle of an "
                f"episode ({error})"
            ) from error
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether an episode is played on it."""
        return self._socket is not None

    def close(self) -> None:
        """Close the socket; what the server still sends is not read."""
        self._socket = None
        self._opened.close()

    def _open(self, seconds: float) -> None:
        try:
            from websockets.exceptions import InvalidHandshake, InvalidURI
            from websockets.sync.client import connect
        except ImportError:
            raise ImportError(
                "an environment behind a URL needs websockets: pip install "
                "'dreamgym[remote]'"
            ) from None
        url = self._server.socket_url
        try:
            self._socket = self._opened.enter_context(
                connect(
                    url,
                    open_timeout=seconds,
                    close_timeout=1.0,
                    max_size=MAX_MESSAGE_BYTES,
                    additional_headers=self._server.headers,
                    proxy=None if self._server.is_local else True,
                )
            )
        except TimeoutError:
            raise EnvironmentTimeout(
                f"{url}: no connection within {seconds:.1f} s"
            ) from None
        except (InvalidHandshake, InvalidURI) as error:
            raise ConnectionError(f"{url}: {error}") from error
        except OSError as error:
            raise ConnectionError(f"{url}: {error}") from error

    def _request(
        self, kind: str, data: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Send a message and return the data of its answer."""
        self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
        try:
            text = self._socket.recv(timeout=seconds)
        except TimeoutError:
            raise EnvironmentTimeout(f"no answer within {seconds:.1f} s") from None
        return parse_answer(text)


def parse_answer(text: str | bytes) -> dict[str, Any]:
    """Return the data of an observation.

    Raises:
      ServerRefusal: the answer is an error.
      ProtocolError: it is no JSON, or not an observation.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"expected JSON, got {text[:60]!r} ({type(error).__name__})"
        ) from None
    if not isinstance(value, dict) or not isinstance(value.get("data"), dict):
        raise ProtocolError(f"expected type and data, got {text[:60]!r}")
    data = value["data"]
    if value.get("type") == "error":
        code, message = data.get("code"), data.get("message")
        raise ServerRefusal(f"{code!s:.40}", f"{message!s:.300}")
    if value.get("type") != "observation":
        raise ProtocolError(f"expected an observation, got {value.get('type')!r:.60}")
    return data
