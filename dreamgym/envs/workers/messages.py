"""Messages between a run and the worker process of an environment, as JSON.

A request names a method of the environment and its arguments. A reply holds what the
method returned, or the error that it raised. Tasks are written as objects with one key,
TASK. Infinite numbers and NaN pass, so that the run sees a reward that is none.
"""

import builtins
import contextlib
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamgym.envs.base import TextTooLong
from dreamgym.envs.failures import EnvironmentDown, EnvironmentTimeout
from worldmodel.data.records import Task

MAX_BYTES = 64 << 20
"""Bytes of a message, at most; whoever sends more has lost its connection."""

TASK = "$task"

RATES = ("rewards", "costs")
FLAGS = ("success", "invalid", "reveals")
TEXTS = ("instruction", "tools")
DATA = ("tool_schemas", "calls")
"""What `begin` and `take` (base.py) read of an `info`: it is never left out."""


class RemoteError(RuntimeError):
    """An error of an environment whose type the run does not know."""


OUR_ERRORS = {
    error.__name__: error
    for error in (EnvironmentDown, EnvironmentTimeout, TextTooLong)
}
"""Errors of ours that mean something to a run."""


def encode(value: Any) -> bytes:
    """Return a message.

    The options of a task must be JSON as they are: they are recorded.

    Raises:
      TypeError: JSON cannot hold the value.
    """
    return json.dumps(value, default=_plain).encode()


def decode(message: bytes) -> Any:
    """Return the value of a message.

    Raises:
      ValueError: it is no JSON, or holds an object that is no task.
    """
    try:
        return json.loads(message, object_hook=_with_tasks)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def plain_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return an `info` for a message, without entries that it cannot hold.

    Raises:
      TypeError, ValueError: an entry that is read is not what it must be.
    """
    out: dict[str, Any] = {}
    for key, value in info.items():
        if key in RATES:
            out[key] = {str(name): float(x) for name, x in value.items()}
        elif key in FLAGS:
            out[key] = None if value is None else bool(value)
        elif key in (*TEXTS, *DATA):
            encode(value)
            out[key] = value
        if key in out:
            continue
        try:
            encode({str(key): value})
        except (TypeError, ValueError, RecursionError):
            continue
        out[str(key)] = value
    return out


def _plain(value: Any) -> Any:
    """Return a value that JSON does not know as one that it does."""
    if isinstance(value, Task):
        json.dumps(value.options)
        names = (f.name for f in dataclasses.fields(value))
        return {TASK: {name: getattr(value, name) for name in names}}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a worker process cannot send a {type(value).__name__}")


def _with_tasks(value: dict[str, Any]) -> Any:
    if set(value) != {TASK}:
        return value
    fields = value[TASK]
    tuples = {k: tuple(fields[k]) for k in ("initial_state", "lineage") if k in fields}
    return Task(**{**fields, **tuples})


def error_fields(error: BaseException, place: str) -> dict[str, Any]:
    """Return the reply that says what an environment raised, and at which place."""
    types = [kind.__name__ for kind in type(error).__mro__]
    text = error.args[0] if len(error.args) == 1 else str(error)
    message = text if isinstance(text, str) else str(error)
    return {"types": types, "message": message, "place": place}


def error_from(fields: Mapping[str, Any]) -> Exception:
    """Return the error of a reply.

    It is of the same type where that is one of Python's or ours, else of the nearest
    one that it is derived from, so that a lost connection stays one.
    """
    types, message = fields["types"], fields["message"]
    error: Exception = RemoteError(f"{types[0]}: {message}")
    for kind in types:
        error_class = OUR_ERRORS.get(kind, getattr(builtins, kind, None))
        if not (isinstance(error_class, type) and issubclass(error_class, Exception)):
            continue
        if error_class is not Exception:
            text = message if kind == types[0] else f"{types[0]}: {message}"
            with contextlib.suppress(TypeError):  # UnicodeDecodeError wants more
                error = error_class(text)
        break
    error.place = fields["place"]  # type: ignore[attr-defined] # failures.py reads it
    return error
