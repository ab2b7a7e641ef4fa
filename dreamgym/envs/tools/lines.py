"""Texts of a state: those of results, and of many lines the newest, each not too long.

what a method returned -> its text; rows, a limit in characters -> the last rows that
fit it, and how many come before
"""

import contextlib
import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.text.tools.tool_calls import Call


def first_newest(rows: Sequence[str], limit: int) -> int:
    """Return where the last rows begin that have at most `limit` characters."""
    first, size = len(rows), 0
    while first and size + len(rows[first - 1]) <= limit:
        first -= 1
        size += len(rows[first])
    return first


def newest_lines(rows: Sequence[str], limit: int, name: str = "calls") -> list[str]:
    """Return the last lines of at most `limit` characters, and how many come before.

    These are the line "earlier calls 3", where `name` is "calls".
    """
    first = first_newest(rows, limit)
    return [*([f"earlier {name} {first}"] if first else []), *rows[first:]]


def shorten(text: str, limit: int) -> str:
    """Return a text as one line, cut off where it has more than `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def texts_of(value: Any) -> list[str]:
    """Return what `observation()` returned as texts; raise a TypeError for others."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        texts = list(value)
        if all(isinstance(x, str) for x in texts):
            return texts
    raise TypeError(
        f"observation() must return a text or a list of texts, got {value!r:.60}"
    )


def result_text(value: Any) -> str:
    """Return a tool's result as text: a dict, list or set as JSON, where it can be.

    In these, values of numpy and dataclasses are plain numbers, lists and objects.

    Raises:
      TypeError: the result is a coroutine or a generator, which nothing runs.
    """
    checks = inspect.isawaitable, inspect.isgenerator, inspect.isasyncgen
    if any(check(value) for check in checks):
        raise TypeError(f"a tool must return a value, got {type(value).__name__}")
    if isinstance(value, dict | list | set | frozenset):
        with contextlib.suppress(TypeError, ValueError):
            return json.dumps(
                value, ensure_ascii=False, allow_nan=False, default=_json_value
            )
    return str(value)


def _json_value(value: Any) -> Any:
    """Return what JSON can hold in place of a value that it lacks.

    A set is a list in the order of its texts, which all processes share.

    Raises:
      TypeError: there is no such value.
    """
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    raise TypeError(f"JSON has no {type(value).__name__}")


def error_text(error: Exception, what: Any) -> str:
    """Return what is wrong with a call or an answer, as the agent reads it."""
    if not error.args:
        return type(error).__name__
    cause = error.args[0]
    given = what.arguments.values() if isinstance(what, Call) else [what]
    # A text with a space that the agent did not give is a message.
    is_message = isinstance(cause, str) and " " in cause and cause not in given
    if isinstance(error, UnicodeError):  # of several arguments
        return str(error)
    if not isinstance(error, KeyError) or is_message:
        return str(cause)
    name = json.dumps(cause, ensure_ascii=False) if isinstance(cause, str) else cause
    return f"nothing is named {name!s:.80}"
