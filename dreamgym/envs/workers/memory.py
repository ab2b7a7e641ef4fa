"""The memory limit of worker processes: what a worker and its children use.

/proc -> proportional set sizes of a worker's process tree -> the tree is killed where
their sum exceeds the limit. A limit of the address space (RLIMIT_AS) would not do: a
browser or a Java machine inherits it, and reserves a thousand times what it uses.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

INTERVAL_SECONDS = 0.1
"""Seconds between two looks at the workers, at least."""

INTERVALS_OF_A_LOOK = 20
"""Looks are further apart where they take long: 5 % of one core at most."""


class ProcessEntry(NamedTuple):
    """The parent and the session of a process."""

    parent: int
    session: int


class MemoryLimit:
    """The limit of one worker process, which a thread of the run watches.

    `error` says by how much the worker exceeded it, "" before that.
    """

    def __init__(self, process: subprocess.Popen, gigabytes: float):
        """Watch a process, which leads a session of its own, until it ends.

        Raises:
          ValueError: this system does not say what processes use.
        """
        if not (PROC / "self" / "smaps_rollup").exists():
            raise ValueError(
                f"env.worker_memory_gb = {gigabytes:g} needs Linux, whose /proc says "
                "what a process uses: set it to 0"
            )
        self.process, self.error = process, ""
        self._gigabytes = gigabytes
        self._tree = list[int]()
        self._shared_bytes = 0  # of its processes, when last measured
        _watch(self)

    def check(self, processes: Mapping[int, ProcessEntry]) -> None:
        """Kill the worker and what it started where they exceed the limit."""
        root, size = self.process.pid, int(self._gigabytes * 2**30)
        tree = process_tree(root, processes)
        resident = sum(map(resident_bytes, tree))
        if resident - self._shared_bytes * (tree == self._tree) <= size:
            return
        used = sum(map(proportional_bytes, tree))  # takes 100 times as long
        self._tree, self._shared_bytes = tree, resident - used
        if used <= size:
            return
        self.error = (
            f"the worker and what it started took {used / 2**30:.2f} GB: "
            f"env.worker_memory_gb = {self._gigabytes:g}"
        )
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGKILL)
        for pid in tree:  # a browser is a session of its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


_limits: list[MemoryLimit] = []
"""Limits of the workers that run; a thread watches them where there are any."""
_lock = threading.Lock()


def _watch(limit: MemoryLimit) -> None:
    with _lock:
        _limits.append(limit)
        if len(_limits) == 1:
            threading.Thread(target=_check_limits, daemon=True).start()


def _check_limits() -> None:
    """Check all limits again and again, until no worker runs."""
    while True:
        with _lock:
            _limits[:] = [x for x in _limits if x.process.poll() is None]
            limits = list(_limits)
        if not limits:
            return
        start = time.monotonic()
        processes = read_processes()
        for limit in limits:
            limit.check(processes)
        seconds = time.monotonic() - start
        time.sleep(max(INTERVAL_SECONDS, INTERVALS_OF_A_LOOK * seconds))


def read_processes() -> dict[int, ProcessEntry]:
    """Return parent and session of all processes, by process id."""
    return dict(_entries())


def _entries() -> Iterator[tuple[int, ProcessEntry]]:
    for name in os.listdir(PROC):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            text = (PROC / name / "stat").read_text(errors="replace")
            # PID (NAME) STATE PARENT GROUP SESSION: a name may hold parentheses
            fields = text[text.rindex(")") + 1 :].split()
            yield int(name), ProcessEntry(int(fields[1]), int(fields[3]))


def process_tree(root: int, processes: Mapping[int, ProcessEntry]) -> list[int]:
    """Return a session's leader and every process that it started, also indirectly.

    A process whose parent has ended belongs to it by its session.
    """
    tree = {root}
    size = 0
    while len(tree) > size:
        size = len(tree)
        tree |= {
            pid
            for pid, entry in processes.items()
            if entry.parent in tree or entry.session in tree
        }
    return sorted(tree)


def resident_bytes(pid: int) -> int:
    """Return the resident set size of a process, 0 where it has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = (PROC / str(pid) / "statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def proportional_bytes(pid: int) -> int:
    """Return the proportional set size of a process: a shared page counts in parts.

    Of a process that hides it, as sandboxed ones do, it is the resident set size.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return resident_bytes(pid)
