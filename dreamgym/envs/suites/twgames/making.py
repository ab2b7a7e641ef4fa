"""Make games in processes of this machine, as many at once as it has cores.

games that are missing in the cache -> a process for each core -> archives in the cache

One process of this machine makes games at a time, whoever else needs some waits for it:
so environments in several workers do not make the same games twice.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dreamgym.envs.suites.twgames.games import (
    Game,
    GameError,
    cache_folder,
    compile_game,
    load_game,
)

START = """import sys
sys.path[:] = sys.argv[1:]
from dreamgym.envs.suites.twgames.making import main
main()
"""
"""The program of a process that makes games.

Its arguments are the places of modules.
"""

INTERVAL = 10.0
"""Seconds between two lines of progress."""

_BAR = 20


def make_games(
    games: Sequence[Game], report: Callable[[], None] = lambda: None
) -> dict[Game, str]:
    """Make the games that are missing; return the reasons of those that have failed.

    Args:
      report: is called after each game.

    Raises:
      ConnectionError: a process that makes games was ended from outside.
      OSError: the cache cannot be written.
    """
    with _alone():
        missing = [g for g in dict.fromkeys(games) if load_game(g) is None]
        count = min(len(missing), core_count())
        shares = [missing[i::count] for i in range(count)]
        processes: list[subprocess.Popen[str]] = []
        failures: dict[Game, str] = {}
        try:
            for share in shares:
                processes.append(_start(share))
            for game, error in _answers(shares, processes):
                if error:
                    failures[game] = error
                report()
        finally:
            for process in processes:
                _end(process)
        return failures


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process makes games.

    The lock of a process that was killed is gone with it.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start(share: Sequence[Game]) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", START, *sys.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # The generator goes through sets of words: equal games in every process.
        env=os.environ | {"PYTHONHASHSEED": "0"},
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its answers say that it has ended
        process.stdin.write("".join(f"{json.dumps(game)}\n" for game in share))
        process.stdin.close()
    return process


def _answers(
    shares: Sequence[Sequence[Game]], processes: Sequence["subprocess.Popen[str]"]
) -> Iterator[tuple[Game, str]]:
    """Yield each game when it is made, with "" or the reason why it is not."""
    for share, process in zip(shares, processes, strict=True):
        assert process.stdout is not None
        for game in share:
            line = process.stdout.readline()
            if not line:
                raise ConnectionError(
                    "a process that makes games of TextWorld has ended: "
                    f"{_ending(process.wait())}"
                )
            yield game, json.loads(line)


def _ending(code: int) -> str:
    if code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}, see its error output"


def _end(process: Any) -> None:
    """End a process with the compilers that it runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()


def main() -> None:
    """Make the games that the lines of standard input name; write how each went.

    It ends where nobody waits for the answers any more.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # what the package and its compilers print
    for line in sys.stdin:
        try:
            compile_game(Game(*json.loads(line)))
            error = ""
        except (GameError, OSError) as failure:
            error = str(failure)
        try:
            os.write(answers, f"{json.dumps(error)}\n".encode())
        except BrokenPipeError:  # whoever wanted the games was killed
            return


class Progress:
    """Lines of progress on standard error, one each INTERVAL seconds at most."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def update(self, text: str, done: int, total: int) -> None:
        """Report that so many of so many games are made."""
        if time.monotonic() - self._last < INTERVAL:
            return
        self._last = time.monotonic()
        filled = "#" * (_BAR * done // max(total, 1))
        bar = f"[{filled:.<{_BAR}}]"
        print(f"{text} {bar} {done} of {total}", file=sys.stderr, flush=True)
