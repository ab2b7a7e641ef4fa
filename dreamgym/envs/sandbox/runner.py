"""Limits its own process, then runs the code that it reads from standard input.

It is run as a program by process.py. The first line that it reads has processor
seconds, and mebibytes of memory and of a file. It imports nothing but the standard
library.
"""

import ctypes
import os
import resource
import sys

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
FORBIDDEN = (
    "socket.",
    "subprocess.",
    "ctypes.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.spawn",
    "os.posix_spawn",
    "os.kill",
    "os.killpg",
    "os.chmod",
    "os.chown",
    "os.setxattr",
    "resource.",
    "sqlite3.",
    "signal.pthread_kill",
    "webbrowser.",
    "urllib.",
    "ftplib.",
    "smtplib.",
)
"""Beginnings of audit events that end the code."""
MODULES = ("_multiprocessing", "_posixshmem", "_posixsubprocess")
"""Modules that start processes or share memory without an audit event of their own."""
PATHS = (
    "os.chdir",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "shutil.",
)
"""Beginnings of audit events of paths, which must lie in the present directory."""
LISTINGS = ("os.listdir", "os.scandir")
"""Audit events of directories that are read, as imports read those of packages."""


def limit_resources(cpu_seconds: int, memory_mib: int, file_mib: int) -> None:
    """Set the limits of this process, which it cannot raise again."""
    for name, soft, hard in (
        # The signal of the soft limit says what has ended the process.
        (resource.RLIMIT_CPU, cpu_seconds, cpu_seconds + 1),
        (resource.RLIMIT_AS, memory_mib << 20, memory_mib << 20),
        (resource.RLIMIT_FSIZE, file_mib << 20, file_mib << 20),
        (resource.RLIMIT_NOFILE, 32, 32),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        highest = resource.getrlimit(name)[1]
        lowest = [
            number if highest == resource.RLIM_INFINITY else min(number, highest)
            for number in (soft, hard)
        ]
        try:
            resource.setrlimit(name, (lowest[0], lowest[1]))
        except ValueError:
            if name != resource.RLIMIT_AS:  # which macOS does not have
                raise


def leave_network() -> bool:
    """Enter a network namespace without any network, where the machine allows it.

    The user namespace also takes the right to raise limits again from root.
    """
    try:
        unshare = ctypes.CDLL(None, use_errno=True).unshare
    except (OSError, AttributeError):  # another system than Linux
        return False
    return unshare(NEW_USER | NEW_NETWORK) == 0


def watch(work: str) -> None:
    """Refuse audit events that reach beyond Python and the directory `work`."""
    readable = tuple(
        {work, *(os.path.realpath(p) for p in (sys.base_prefix, *sys.path))}
    )

    def is_inside(path: object, places: tuple[str, ...]) -> bool:
        if isinstance(path, int):  # a file that is open already
            return True
        try:
            real = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
        return any(real == p or real.startswith(p + os.sep) for p in places)

    def hook(event: str, args: tuple) -> None:
        if event == "import" and args[0] in MODULES:
            raise PermissionError(f"import of {args[0]} is not allowed here")
        if event.startswith(FORBIDDEN):
            raise PermissionError(f"{event} is not allowed here")
        if event == "open":
            path, mode, flags = args
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            writes = writes or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if path == os.devnull:
                return
            if not is_inside(path, (work,) if writes else readable):
                raise PermissionError(f"{path!r} is not in the present directory")
        paths = [a for a in args if isinstance(a, str | bytes | os.PathLike)]
        places = readable if event in LISTINGS else (work,)
        if event.startswith((*PATHS, *LISTINGS)):
            if not all(is_inside(path, places) for path in paths):
                raise PermissionError(f"{event} is not allowed here")

    for name in ("mkfifo", "mknod"):  # which have no audit event
        for module in (os, sys.modules.get("posix")):
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(hook)


def main() -> None:
    """Run the code on standard input as the program `code`."""
    numbers = [int(n) for n in sys.stdin.buffer.readline().split()]
    code = sys.stdin.buffer.read().decode("utf-8", "replace")
    work = os.path.realpath(os.getcwd())
    leave_network()
    limit_resources(*numbers)
    program = compile(code, "code", "exec")
    watch(work)
    exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    main()
