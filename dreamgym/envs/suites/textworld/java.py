"""The Java virtual machine of TextWorldExpress."""

from textworld_express.constants import JAR_PATH

from dreamgym.envs.suites import java_machine
from dreamgym.envs.suites.java_machine import GameServer, JavaMachine

__all__ = ["GameServer", "JavaMachine", "current_machine"]

PROGRAM = java_machine.Program(
    name="TextWorldExpress",
    jar=str(JAR_PATH),
    memory="1g",
    server_class="textworldexpress.runtime.PythonInterface",
)


def current_machine() -> JavaMachine:
    """Return the machine of this process; a new one where it has ended."""
    return java_machine.machine_of(PROGRAM)
