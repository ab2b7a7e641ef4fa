"""The values of arguments, in JSON and as Python writes them.

`a=1, b="x", c='y', d=bare words)` or a JSON text -> values
"""

import json
import math
import re
from typing import Any

_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"[^,()=\"'{}\[\]]+")
_NEXT = re.compile(r"\s*([,)])")
_CLOSED = re.compile(r"\s*\)")
_PYTHON = {"True": True, "False": False, "None": None}  # JSON writes them otherwise


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    """Return a number; JSON allows 1e999, which is infinite."""
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is too large a number")


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def read_json(text: str) -> Any:
    """Return the value of a JSON text of finite numbers; raises ValueError."""
    return _DECODER.decode(text)


def read_arguments(text: str, at: int) -> tuple[dict[str, Any], int]:
    """Return the values of `a=1, b="x", c='y', d=bare words)`, and the position behind.

    Raises:
      ValueError: it is something else, or does not end with a bracket.
    """
    out: dict[str, Any] = {}
    if empty := _CLOSED.match(text, at):
        return out, empty.end()
    while True:
        name = _ARGUMENT.match(text, at)
        if name is None or name[1] in out:
            raise ValueError(f"expected a new name= at {text[at : at + 20]!r}")
        out[name[1]], at = _value(text, name.end())
        end = _NEXT.match(text, at)
        if end is None:
            raise ValueError(f"expected a comma at {text[at : at + 20]!r}")
        at = end.end()
        if end[1] == ")":
            return out, at


def _value(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at a position, and the position behind it."""
    if text[at : at + 1] in ('"', "{", "["):
        return _DECODER.raw_decode(text, at)
    single = _SINGLE.match(text, at)
    if single is not None:
        return re.sub(r"\\(.)", r"\1", single[1], flags=re.DOTALL), single.end()
    bare = _BARE.match(text, at)
    if bare is None:
        raise ValueError(f"expected a value at {text[at : at + 20]!r}")
    text = bare[0].strip()
    if text in _PYTHON:
        return _PYTHON[text], bare.end()
    try:
        return read_json(text), bare.end()
    except ValueError:
        return text, bare.end()
