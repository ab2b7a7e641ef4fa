"""Calls into environments, which are foreign code: their errors and deadlines.

A call returns its value, or an EnvironmentFailure with the reason why there is none.
`guarded` is the only place of the library that catches every exception of an
environment.
"""

import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium

from dreamgym.envs.interrupts import check_interrupt
from worldmodel.data import processes

Value = TypeVar("Value")


class EnvironmentDown(ConnectionError):
    """An environment does not come back after a restart, or breaks all its games.

    It is not counted as one bad game: the stage ends without a marker.
    """


class EnvironmentTimeout(TimeoutError):
    """A call into an environment took longer than its deadline."""


class EnvironmentFailure(NamedTuple):
    """The reason why a call into an environment's code returned nothing.

    `environment` is the name of its class, `place` the file and line in which its code
    raised `error`.
    """

    environment: str
    error: Exception
    place: str

    @property
    def reason(self) -> str:
        """The type and message of the error."""
        return f"{type(self.error).__name__}: {self.error}"


def guarded(
    env: gymnasium.Env, call: Callable[[], Value], *, seconds: float = 0.0
) -> Value | EnvironmentFailure:
    """Return what a call into an environment's code returns, or why it failed.

    An environment is foreign code: it may raise any exception, and the caller counts or
    reports the failure. So does a call of sys.exit(), which would end a run without a
    word. KeyboardInterrupt and EnvironmentDown are not caught. A Ctrl-C that the
    environment swallowed is raised again.

    Args:
      seconds: the deadline of the call (see Deadline), 0 for none.
    """
    # Of several processes the one that asks keeps the deadline (workers/shared.py): an
    # alarm in another one would leave the rest waiting.
    limit = Deadline(seconds if processes.process_count() == 1 else 0.0)
    try:
        with limit:
            value = call()
    except EnvironmentDown:
        raise
    except (Exception, SystemExit) as error:
        check_interrupt()
        if isinstance(error, SystemExit):
            cause = RuntimeError(f"it called sys.exit({error.code!r})")
        else:
            cause = limit.error() if limit.expired else error
        name = type(env.unwrapped).__name__
        return EnvironmentFailure(name, cause, error_place(error))
    check_interrupt()
    return value


class Deadline:
    """A block that is interrupted after some seconds; 0 sets no deadline.

    It is an alarm signal, which ends a sleep and waiting for a socket in the code that
    hangs. Python delivers signals to the main thread alone: elsewhere, and where there
    are no alarms (Windows), there is no deadline.
    """

    def __init__(self, seconds: float):
        self.expired, self._seconds = False, seconds
        self._previous: Any = None
        main = threading.current_thread() is threading.main_thread()
        self._active = seconds > 0 and main and hasattr(signal, "setitimer")

    def error(self) -> EnvironmentTimeout:
        """Return the error of a call that took longer."""
        return EnvironmentTimeout(f"no answer within {self._seconds:g} s")

    def _on_alarm(self, *_: Any) -> None:
        self.expired = True
        raise self.error()

    def __enter__(self) -> "Deadline":
        if self._active:
            self._previous = signal.signal(signal.SIGALRM, self._on_alarm)
            # Again each second: the code that hangs may catch what is raised in it.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, 1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._previous)


def error_place(error: BaseException) -> str:
    """Return file and line of the last frame that is not Python's standard library.

    Errors of a worker process bring their own `place`.
    """
    place = getattr(error, "place", None)
    if isinstance(place, str):
        return place
    library = Path(sysconfig.get_path("stdlib"))
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        inside = Path(frame.filename).is_relative_to(library)
        ours = frame.filename == __file__
        if "site-packages" in frame.filename or not (
            inside or ours or frame.filename.startswith("<")
        ):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
