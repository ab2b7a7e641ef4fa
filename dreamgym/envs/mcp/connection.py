"""A session with an MCP server over its standard input and output.

JSON-RPC 2.0, one message a line (modelcontextprotocol.io, transport "stdio"). The
official Python client is asynchronous, and its two major versions share no interface;
of the protocol an environment needs four messages: hello, the tools, a call, a ping.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any

from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.mcp.messages import (
    ToolDescription,
    ToolError,
    parse_line,
    parse_result,
    parse_tools,
    result_text,
)

PROTOCOL_VERSION = "2025-06-18"
START_SECONDS = 120.0
"""Seconds that a server may take to start: its package may have to be fetched."""
STOP_SECONDS = 2.0
"""Seconds after which a server that does not stop is told to by a signal."""
MAX_LINE_BYTES = 8_000_000
"""Bytes of a message, at most."""
MAX_TOOLS = 1_000
"""Tools of a server, at most."""
INHERITED = (
    *("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
"""Environment variables that a server inherits; others may hold secrets, which a tool
would show to the agent and write into episodes."""
LOG_VARIABLE = "DREAMGYM_MCP_LOG"
"""The environment variable that lets the messages of servers through to stderr."""


class McpSession:
    """One running server."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        step_seconds: float,
        start_seconds: float = START_SECONDS,
    ):
        """Start the server and say hello.

        Raises:
          ConnectionError: it cannot be started, or does not speak MCP.
          EnvironmentTimeout: it does not answer in time.
        """
        self._name = f"the MCP server {' '.join(command)!r:.120}"
        self._seconds, self._last_id = step_seconds, 0
        self._writing = threading.Lock()  # the reader answers the server's requests
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if os.environ.get(LOG_VARIABLE) else subprocess.DEVNULL,
                env={k: v for k, v in os.environ.items() if k in INHERITED} | {**env},
                # Ctrl-C is ours: it may not kill a server in the middle of an episode.
                start_new_session=True,
            )
        except OSError as error:
            raise ConnectionError(f"{self._name} cannot be started: {error}") from None
        assert self._process.stdout is not None
        reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True
        )
        reader.start()
        try:
            self._request(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {},
                    "clientInfo": {"name": "dreamgym", "version": "1"},
                },
                start_seconds,
            )
            self._send({"method": "notifications/initialized"})
        except ToolError as error:
            self.close()
            raise ConnectionError(f"{self._name} refuses: {error}") from None
        except BaseException:
            self.close()
            raise

    def tools(self) -> list[ToolDescription]:
        """Return the tools of the server, of all pages.

        Raises:
          ConnectionError: the server is gone, or describes its tools in another form.
        """
        tools, page = list[ToolDescription](), {}
        while True:
            result = self._request("tools/list", page, self._seconds)
            try:
                rows = parse_tools(result)
            except ConnectionError as error:
                raise ConnectionError(f"{self._name}: {error}") from None
            tools += rows
            cursor = result.get("nextCursor")
            if not cursor or not rows or len(tools) > MAX_TOOLS:
                return tools[:MAX_TOOLS]
            page = {"cursor": cursor}

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the text of a tool's result.

        Raises:
          ToolError: the tool says that the call failed, or the server refuses it.
          ConnectionError: the server is gone.
          EnvironmentTimeout: it does not answer in time.
        """
        parameters = {"name": name, "arguments": dict(arguments)}
        return result_text(self._request("tools/call", parameters, self._seconds))

    def close(self, *, at_once: bool = False) -> None:
        """Stop the server and what it has started: end its input, then by signals.

        Args:
          at_once: kills it without waiting, as one that does not answer.
        """
        process = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
        for wait, number in ((STOP_SECONDS, signal.SIGTERM), (1.0, signal.SIGKILL)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.0 if at_once else wait)
            # Its group may outlive it: a program such as npx starts the server itself.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
        process.wait()

    # --- messages ---

    def _request(
        self, method: str, parameters: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """Send a request and return its result."""
        self._last_id += 1
        deadline = time.monotonic() + seconds
        message = {"id": self._last_id, "method": method, "params": parameters}
        self._send_within(message, seconds)
        while True:
            try:
                answer = self._answers.get(timeout=max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise EnvironmentTimeout(
                    f"{self._name} did not answer {method} within {seconds:g} s"
                ) from None
            if answer is None:
                raise self._end()
            if answer.get("id") != self._last_id:
                continue  # a late answer to a request that was given up
            try:
                return parse_result(answer)
            except ConnectionError as error:
                raise ConnectionError(f"{self._name}: {method}: {error}") from None

    def _end(self) -> ConnectionError:
        """Return the error of a server that has closed its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        status = self._process.returncode
        ended = "closed its output" if status is None else f"ended with status {status}"
        return ConnectionError(
            f"{self._name} {ended} ({LOG_VARIABLE}=1 shows its messages)"
        )

    def _send_within(self, message: Mapping[str, Any], seconds: float) -> None:
        """Send a message to a server that may have stopped to read.

        What does not fit into the pipe waits until the server reads on.
        """
        line, errors = _encoded(message), list[ConnectionError]()

        def write() -> None:
            try:
                self._write(line)
            except ConnectionError as error:
                errors.append(error)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(seconds)
        if writer.is_alive():
            # Its end lets the writer go, which holds what close() needs.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            writer.join(1.0)
            raise EnvironmentTimeout(
                f"{self._name} did not read {message['method']} within {seconds:g} s"
            )
        if errors:
            raise errors[0]

    def _send(self, message: Mapping[str, Any]) -> None:
        self._write(_encoded(message))

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._end() from None

    def _read(self, output: IO[bytes]) -> None:
        """Collect answers until the output ends; answer the server's own requests."""
        with contextlib.suppress(OSError, ValueError):
            while line := output.readline(MAX_LINE_BYTES):
                # What a server asks for may end it, or be what JSON cannot write back.
                with contextlib.suppress(ValueError, RecursionError, ConnectionError):
                    if (message := parse_line(line)) is not None:
                        self._receive(message)
        self._answers.put(None)

    def _receive(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            self._answers.put(message)
        elif message["method"] == "ping":
            self._send({"id": message.get("id"), "result": {}})
        elif "id" in message:  # it wants what we have not offered
            error = {"code": -32601, "message": "not supported"}
            self._send({"id": message["id"], "error": error})


def _encoded(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line of JSON."""
    line = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False) + "\n"
    return line.encode("utf-8", "replace")
