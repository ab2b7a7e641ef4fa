"""Calls into environments, which are foreign code: their errors and deadlines.

A call returns its value, or an EnvironmentFailure with the reason why there is none.
`guarded` is the only place of the library that catches every exception of an
environment.
"""

import math
import numbers
import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import gymnasium
import numpy as np

from dreamgym.envs.interrupts import check_interrupt, restore_handler
from worldmodel.data import processes

Value = TypeVar("Value")

RESET_SECONDS, STEP_SECONDS = 120.0, 30.0
"""Deadlines of reset and step where the environment declares none."""

OTHER_CALLS = 3
"""The deadline of every other call (an expert may search for long), in deadlines of
reset."""

MAX_DECLARED = 10**9
"""The largest deadline in seconds, and number of copies, that may be declared: more is
no limit, and alarms do not count as far."""

REPEAT_SECONDS = 1.0
"""Seconds between the alarms of a deadline that has passed."""


NOT_CAUGHT = (KeyboardInterrupt, GeneratorExit)
"""What foreign code raises and is not a fault of its own: it passes through."""


class EnvironmentDown(ConnectionError):
    """An environment does not come back after a restart, or breaks all its games.

    It is not counted as one bad game: the stage ends without a marker.
    """


class EnvironmentTimeout(TimeoutError):
    """A call into an environment took longer than its deadline."""


def no_answer(seconds: float, method: str = "") -> EnvironmentTimeout:
    """Return the error of a call that took longer than its deadline.

    Args:
      method: its name, where that is neither reset nor step.
    """
    source = (
        f" from {method}(), which may take {OTHER_CALLS} times the `reset_seconds` of "
        "its class"
    )
    return EnvironmentTimeout(f"no answer within {seconds:g} s{source * bool(method)}")


def not_started(spec: str, seconds: float, place: str = "") -> EnvironmentTimeout:
    """Return the error of an environment that was not made within its deadline.

    Args:
      place: the file and line in which it hung, where that is known.
    """
    where = f", it was at {place}" if place else ""
    return EnvironmentTimeout(
        f"{spec} did not start within {seconds:g} s{where}: its __init__ hangs, or "
        "needs more (env.start_seconds; 0: no deadline)"
    )


class Deadlines(NamedTuple):
    """Seconds that the calls of an environment may take; 0 is no deadline."""

    reset: float
    step: float
    other: float
    """Of all other methods."""


USUAL_DEADLINES = Deadlines(RESET_SECONDS, STEP_SECONDS, OTHER_CALLS * RESET_SECONDS)
"""Those of an environment that declares none."""


def deadlines_of(env: gymnasium.Env) -> Deadlines:
    """Return the deadlines that an environment declares, else the usual ones."""
    reset = _declared(env, "reset_seconds", RESET_SECONDS)
    step = _declared(env, "step_seconds", STEP_SECONDS)
    return Deadlines(reset, step, OTHER_CALLS * reset)


def declared_copies(env: gymnasium.Env) -> int | None:
    """Return how many copies of an environment may be made, None for any number.

    Raises:
      ValueError: `max_copies` is no number.
    """
    if getattr(env.unwrapped, "max_copies", None) in (None, math.inf):
        return None
    return max(int(_declared(env, "max_copies", 1.0)), 1)


def _declared(env: gymnasium.Env, name: str, usual: float) -> float:
    """Return a number that an environment declares; 0, without a limit, for None.

    Raises:
      ValueError: it declares something else.
    """
    value = getattr(env.unwrapped, name, usual)
    if value is None or value == math.inf:
        return 0.0
    number: Any = value
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 <= number <= MAX_DECLARED:
        raise ValueError(
            f"{type(env.unwrapped).__name__}.{name} must be a number of 0 to "
            f"{MAX_DECLARED:,}, or None for no limit, got {value!r:.60}"
        )
    return float(value)


def declared_flag(env: gymnasium.Env, name: str, *, default: bool) -> bool | None:
    """Return a flag of an environment, the default where it is not declared.

    None stands for what the environment does not know of itself.

    Raises:
      ValueError: it is neither true nor false, as an array of several values.
    """
    try:
        value = env.get_wrapper_attr(name)
    except AttributeError:
        return default
    try:
        return None if value is None else bool(value)
    except ValueError:
        owner = type(env.unwrapped).__name__
        raise ValueError(f"{owner}.{name} must be a bool, got {value!r:.60}") from None


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


def as_exception(error: BaseException) -> Exception:
    """Return what foreign code raised as an Exception, which a caller can raise again.

    A call of sys.exit() would end a run without a word, and what cancels a task of
    asyncio or trio, or a panic of Rust, with a traceback.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, SystemExit):
        return RuntimeError(f"it called sys.exit({error.code!r})")
    return RuntimeError(f"it raised {type(error).__name__}: {error}")


def guarded(
    env: gymnasium.Env,
    call: Callable[[], Value],
    *,
    seconds: float = 0.0,
    method: str = "",
) -> Value | EnvironmentFailure:
    """Return what a call into an environment's code returns, or why it failed.

    An environment is foreign code: it may raise any exception, also one that is no
    Exception (see `as_exception`), and the caller counts or reports the failure.
    KeyboardInterrupt, GeneratorExit and EnvironmentDown are not caught. A Ctrl-C that
    the environment swallowed is raised again, and a handler of it that the environment
    installed is replaced by ours.

    Args:
      seconds: the deadline of the call (see Deadline), 0 for none.
      method: what is called, where that is neither reset nor step.
    """
    # Of several processes the one that asks keeps the deadline (workers/shared.py): an
    # alarm in another one would leave the rest waiting.
    limit = Deadline(seconds if processes.process_count() == 1 else 0.0)
    restore_handler()  # its __init__ may have replaced it
    try:
        with limit, np.errstate():  # errors that it turns on end no fit of ours
            value = call()
    except (*NOT_CAUGHT, EnvironmentDown):
        raise
    except BaseException as error:
        check_interrupt()
        late = limit.expired and not isinstance(error, SystemExit)
        cause = no_answer(seconds, method) if late else as_exception(error)
        name = type(env.unwrapped).__name__
        place = limit.place if limit.expired else error_place(error)
        return EnvironmentFailure(name, cause, place)
    finally:
        restore_handler()
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
        self.place = ""  # the file and line that was interrupted first
        self._previous: Any = None
        main = threading.current_thread() is threading.main_thread()
        self._active = seconds > 0 and main and hasattr(signal, "setitimer")

    def _on_alarm(self, _: int, frame: FrameType | None) -> None:
        if not self.expired:
            self.place = _place_in(traceback.extract_stack(frame))
        self.expired = True
        raise no_answer(self._seconds)

    def __enter__(self) -> "Deadline":
        if self._active:
            self._previous = signal.signal(signal.SIGALRM, self._on_alarm)
            # Again each second: the code that hangs may catch what is raised in it.
            signal.setitimer(signal.ITIMER_REAL, self._seconds, REPEAT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._active:
            return
        # An environment that set up alarms of its own needs them later.
        ours = signal.getsignal(signal.SIGALRM) == self._on_alarm
        if ours or signal.getitimer(signal.ITIMER_REAL)[1] == REPEAT_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        if ours:
            signal.signal(signal.SIGALRM, self._previous)


def error_place(error: BaseException) -> str:
    """Return file and line of the last frame that is not Python's standard library.

    Errors of a worker process bring their own `place`.
    """
    place = getattr(error, "place", None)
    if isinstance(place, str):
        return place
    return _place_in(traceback.extract_tb(error.__traceback__))


def _place_in(frames: traceback.StackSummary) -> str:
    """Return the place of the last frame outside the library, or of the last one.

    Where a tool of a user calls ToolEnv with a wrong argument, that is the user's line.
    """
    library, package = Path(sysconfig.get_path("stdlib")), Path(__file__).parents[1]
    helper = None
    for frame in reversed(frames):
        path = Path(frame.filename)
        inside = path.is_relative_to(library)
        ours = frame.filename == __file__
        if "site-packages" not in frame.filename and (
            inside or ours or frame.filename.startswith("<")
        ):
            continue
        if path.is_relative_to(package / "envs/tools"):
            helper = helper or frame
            continue
        packaged = path.is_relative_to(package) or "site-packages" in frame.filename
        if helper is None or not packaged:
            return f"{path.name}:{frame.lineno}"
        break  # a wrapper, or a caller of ours, but no tool
    last = helper or frames[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
