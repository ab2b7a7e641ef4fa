"""The signature of a tool, from the type hints of a Python function.

method -> Signature: its name, types and first line of documentation -> the text that an
agent reads, the JSON schema, the check of a call's arguments, and arguments in sight.
"""

import inspect
import itertools
import json
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from dreamgym.envs.tool_values import Sight

MAX_VALUES = 12
"""Values of one argument that `candidates` combines, at most."""

MAX_COMBINATIONS = 2000
"""Combinations of values, at most: with four arguments and more it takes fewer values
of each."""

TYPES = "str, int, float, bool, None, Literal, list, dict or a union of these"
"""The types that an argument may have."""


def place_of(method: Callable[..., Any]) -> str:
    """Return a method's class, name, file and line, for messages."""
    name = method.__qualname__.rpartition("<locals>.")[2]
    code = inspect.unwrap(method).__code__
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


class Signature:
    """A tool's name, its arguments' types, and what it does."""

    def __init__(self, method: Callable[..., Any]):
        self.name = method.__name__
        doc = inspect.getdoc(method) or ""
        self.description = doc.split("\n")[0].rstrip(".")
        self.parameters = dict(list(inspect.signature(method).parameters.items())[1:])
        hints = typing.get_type_hints(method)
        for name, parameter in self.parameters.items():
            if parameter.kind not in (
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                inspect.Parameter.KEYWORD_ONLY,
            ):
                raise TypeError(
                    f"{place_of(method)}: argument {str(parameter)!r} has no name in a "
                    "call: write every argument of a tool by its name"
                )
            if name not in hints:
                raise TypeError(
                    f"{place_of(method)}: argument {name!r} needs a type: {TYPES}"
                )
        self.hints = {name: hints[name] for name in self.parameters}
        for name, hint in self.hints.items():
            try:
                hint_text(hint)
            except TypeError as error:
                raise TypeError(
                    f"{place_of(method)}: argument {name!r} needs a type: {TYPES}, "
                    f"{error}"
                ) from None

    def __str__(self) -> str:
        parts = [
            f"{name}: {hint_text(self.hints[name])}"
            + ("" if p.default is p.empty else f" = {json.dumps(p.default)}")
            for name, p in self.parameters.items()
        ]
        return f"{self.name}({', '.join(parts)}) {self.description}".strip()

    def schema(self) -> dict[str, Any]:
        """Return the tool as OpenAI's API describes it (tool_schemas.py)."""
        required = [n for n, p in self.parameters.items() if p.default is p.empty]
        parameters = {
            "type": "object",
            "properties": {n: hint_schema(hint) for n, hint in self.hints.items()},
            "required": required,
            "additionalProperties": False,
        }
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": function | {"parameters": parameters}}

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise a ValueError that names the first argument which does not fit."""
        for name in arguments:
            if name not in self.hints:
                names = ", ".join(self.hints) or "none"
                raise ValueError(f"{self.name} has no argument {name!r}; have {names}")
        for name, parameter in self.parameters.items():
            if name not in arguments:
                if parameter.default is parameter.empty:
                    raise ValueError(f"{self.name} needs the argument {name!r}")
            elif not fits(arguments[name], self.hints[name]):
                value = json.dumps(arguments[name], ensure_ascii=False)
                want = hint_text(self.hints[name])
                raise ValueError(f"{name} must be {want}, got {value:.80}")

    def candidates(self, sight: Sight) -> list[dict[str, Any]]:
        """Return arguments of values in sight, the likely ones first.

        Arguments with a default are left out.
        """
        names = [n for n, p in self.parameters.items() if p.default is p.empty]
        limit = int(MAX_COMBINATIONS ** (1 / max(len(names), 1)))
        values = [
            list(
                itertools.islice(sight.values(self.hints[name]), min(limit, MAX_VALUES))
            )
            for name in names
        ]
        ranks = sorted(itertools.product(*(range(len(v)) for v in values)), key=sum)
        return [
            {name: v[i] for name, v, i in zip(names, values, rank, strict=True)}
            for rank in ranks
        ]


_SIMPLE = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def hint_text(hint: Any) -> str:
    """Return a type hint as an agent reads it: int, "a" | "b", list[str], dict.

    Raises:
      TypeError: JSON has no such values.
    """
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(value) for value in parts)
    if _is_union(hint):
        return " | ".join(map(hint_text, parts))
    if hint in (list, dict) or origin in (list, dict):
        inner = ", ".join(map(hint_text, parts))
        return f"{(origin or hint).__name__}{f'[{inner}]' if inner else ''}"
    raise TypeError(f"got {hint}")


_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def hint_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type hint."""
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return {"enum": list(parts)}
    if _is_union(hint):
        return {"anyOf": [hint_schema(part) for part in parts]}
    if list in (hint, origin):
        items = {"items": hint_schema(parts[0])} if parts else {}
        return {"type": "array"} | items
    values = {"additionalProperties": hint_schema(parts[1])} if parts else {}
    return {"type": "object"} | values


def fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value is of a type; an int is a float, a bool is no int."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return any(type(value) is type(p) and value == p for p in parts)
    if _is_union(hint):
        return any(fits(value, part) for part in parts)
    if hint in (int, float):
        kinds = (int,) if hint is int else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    if not isinstance(value, origin or hint):
        return False
    if origin is list:
        return all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return all(fits(item, parts[1]) for item in value.values())
    return True
