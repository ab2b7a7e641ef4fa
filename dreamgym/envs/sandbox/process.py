"""Runs Python code of an agent in a process of its own, with limits.

code -> a new Python in an empty directory: limits on processor time, memory, files and
output, no network, no other processes, a deadline -> what it printed, or why it failed.

The limits are against what a policy writes while it learns: endless loops, huge lists,
deleted files. They are two layers, a network namespace where the machine allows one,
and Python's audit events everywhere; code that is written to break out of Python can
get past the second one. Do not run code of people you do not trust with it. Memory is
not limited on macOS, and the number of files nowhere.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RUNNER = Path(__file__).with_name("runner.py")
"""What the new Python runs: it limits itself, then runs the code."""


class Limits(NamedTuple):
    """What code may use: seconds, mebibytes (of each file), characters of output."""

    seconds: float | int = 5.0
    cpu_seconds: int = 3
    memory_mib: int = 512
    file_mib: int = 1
    output: int = 2000


class SandboxResult(NamedTuple):
    """What code printed, and why it did not end well: "" where it did.

    `reason` is the last line of a traceback, or names the limit that ended it.
    """

    output: str
    reason: str


def run_python(code: str, limits: Limits | None = None) -> SandboxResult:
    """Run code in a new Python process, and return what it printed.

    Raises:
      OSError: no process can be started.
    """
    limits = Limits() if limits is None else limits
    with _folder() as folder:
        printed, errors = Path(folder, "stdout"), Path(folder, "stderr")
        work = Path(folder, "work")
        work.mkdir()
        with printed.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", str(RUNNER)],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=work,
                env={"PATH": os.defpath, "HOME": str(work), "TMPDIR": str(work)},
                start_new_session=True,
            )
            late = False
            try:
                process.communicate(_program(code, limits), limits.seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                _kill(process)
        output = _text(printed)[: limits.output]
        if late:
            return SandboxResult(output, f"it ran longer than {limits.seconds:g} s")
        return SandboxResult(output, _reason(process.returncode, _end(errors), limits))


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """Yield a new directory, and remove it, whatever code has left there."""
    folder = tempfile.mkdtemp(prefix="dreamgym-sandbox-")
    try:
        yield folder
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        except RecursionError:  # directories in directories, a thousand deep
            subprocess.run(["rm", "-rf", folder], check=False)


def _program(code: str, limits: Limits) -> bytes:
    """Return what the new Python reads: a line of limits, and the code."""
    numbers = f"{limits.cpu_seconds} {limits.memory_mib} {limits.file_mib}"
    return f"{numbers}\n{code}".encode("utf-8", "replace")


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End the process and what it has started, and wait for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    process.wait()


READ = 1 << 16
"""Bytes of what code printed that are read."""


def _text(path: Path) -> str:
    """Return the beginning of a file."""
    with path.open("rb") as file:
        return file.read(READ).decode("utf-8", "replace")


def _end(path: Path) -> str:
    """Return the end of a file."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - READ, 0))
        return file.read(READ).decode("utf-8", "replace")


def _reason(status: int, errors: str, limits: Limits) -> str:
    """Return why code did not end well, "" if it did."""
    if status == 0:
        return ""
    if -status == signal.SIGXCPU:
        return f"it took more than {limits.cpu_seconds} s of processor time"
    lines = [line for line in errors.splitlines() if line.strip()]
    if lines:
        return lines[-1].strip()[:200]
    return f"it ended with signal {-status}" if status < 0 else f"exit status {status}"
