"""Messages between a run and the worker process of an environment, as JSON.

A request names a method of the environment and its arguments. A reply holds what the
method returned, or the error that it raised. Tasks are written as objects with one key,
TASK. Infinite numbers and NaN pass, so that the run sees a reward that is none.
"""

import builtins
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from worldmodel.data.records import Task

MAX_BYTES = 64 << 20
"""Bytes of a message, at most; whoever sends more has lost its connection."""

TASK = "$task"

OPTIONAL_METHODS = (
    "tasks",
    "expert",
    "valid_actions",
    "variations",
    "fork",
    "render_state",
)
"""Methods that an environment may have (base.py), and that a worker then offers."""


class RemoteError(RuntimeError):
    """An error of an environment whose type the run does not know."""


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


def encodable(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return those entries of an `info` that a message can hold."""
    out = {}
    for key, value in info.items():
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


def error_fields(error: BaseException, place: str) -> dict[str, str]:
    """Return the reply that says what an environment raised, and at which place."""
    return {"type": type(error).__name__, "message": str(error), "place": place}


def raised(fields: Mapping[str, str]) -> Exception:
    """Return the error of a reply: of the same type where it is one of Python's."""
    kind, message = fields["type"], fields["message"]
    known = getattr(builtins, kind, None)
    error: Exception
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            error = known(message)
        except TypeError:  # UnicodeDecodeError wants more
            error = RemoteError(f"{kind}: {message}")
    else:
        error = RemoteError(f"{kind}: {message}")
    error.place = fields["place"]  # type: ignore[attr-defined] # failures.py reads it
    return error
