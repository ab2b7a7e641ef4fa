"""The signature of a tool, from the type hints of a Python function or a JSON schema.

method or schema -> Signature: its name, its types, and what it does in one line -> the
text that an agent reads, the JSON schema, the check of arguments, and likely arguments
"""

import contextlib
import dataclasses
import datetime
import enum
import functools
import inspect
import itertools
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dreamgym.envs.tools.values import Sight

MAX_VALUES = 12
"""Values of one argument that `candidates` combines, at most."""

MAX_OPTIONAL = 4
"""Values of an argument with a default that are tried, each with as many others."""
MAX_COMBINATIONS = 2000
"""Combinations of values, at most: with four arguments and more it takes fewer values
of each."""

TYPES = "str, int, float, bool, None, Literal, list, dict or a union of these"
"""The types that an argument may have."""


_SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")

ANY = str | int | float | bool | list | dict | None
"""The hint of an argument that may have any value of JSON."""


def place_of(method: Callable[..., Any]) -> str:
    """Return a method's class, name, file and line, for messages."""
    name = method.__qualname__.rpartition("<locals>.")[2]
    code = inspect.unwrap(method).__code__
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


class Argument(NamedTuple):
    """Whether an argument must be given, and what it is where it is not, if known."""

    required: bool = True
    default: Any = None


class Signature:
    """A tool's name, its arguments' types, and what it does."""

    def __init__(
        self,
        name: str,
        description: str,
        arguments: Mapping[str, Argument],
        hints: Mapping[str, Any],
    ):
        """Describe a tool; every argument has a hint of those that JSON has."""
        self.name, self.description = name, description
        self.arguments, self.hints = dict(arguments), dict(hints)

    @classmethod
    def of_method(cls, method: Callable[..., Any]) -> "Signature":
        """Return the signature of a method, from its type hints and its docstring.

        Raises:
          TypeError: an argument has no type, none that JSON has, or no name in a call;
            or the method is a coroutine, or has letters in its name that no call has.
        """
        if inspect.iscoroutinefunction(method):
            raise TypeError(
                f"{place_of(method)}: a tool cannot be async, since nothing awaits it: "
                "write def, with asyncio.run(...) inside"
            )
        if not method.__name__.isascii():
            raise TypeError(
                f"{place_of(method)}: the name of a tool has ASCII letters, digits and "
                f"underscores, as calls have, got {method.__name__!r}"
            )
        doc = inspect.getdoc(method) or ""
        parameters = dict(list(inspect.signature(method).parameters.items())[1:])
        hints = typing.get_type_hints(method)
        for name, parameter in parameters.items():
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
            try:
                hint_text(hints[name])
            except TypeError as error:
                raise TypeError(
                    f"{place_of(method)}: argument {name!r} needs a type: {TYPES}, "
                    f"{error}"
                ) from None
        return cls(
            method.__name__,
            doc.split("\n")[0].rstrip("."),
            {
                name: Argument(p.default is p.empty, p.default)
                for name, p in parameters.items()
            },
            {name: hints[name] for name in parameters},
        )

    @classmethod
    def of_schema(
        cls, name: str, description: str, schema: Mapping[str, Any]
    ) -> "Signature":
        """Return the signature of a tool whose arguments a JSON schema describes.

        What the schema says beyond types is left to the tool itself. Of the description
        the first sentence is kept.

        Raises:
          ValueError: the schema is not one of arguments by name, or too deep.
        """
        properties = schema.get("properties") or {}
        required = schema.get("required") or []
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise ValueError(
                f"tool {name!r:.60}: expected 'properties' that are an object and "
                "'required' that is a list"
            )
        try:
            hints = {n: schema_hint(value) for n, value in properties.items()}
        except RecursionError:
            raise ValueError(f"tool {name!r:.60}: its schema is too deep") from None
        names = sorted(properties, key=lambda name: name not in required)
        defaults = {
            name: prop["default"]
            for name, prop in properties.items()
            if isinstance(prop, Mapping) and "default" in prop
        }
        return cls(
            name,
            _SENTENCE_END.split(description.strip().split("\n")[0])[0].rstrip("."),
            {n: Argument(n in required, defaults.get(n)) for n in names},
            {n: hints[n] for n in names},
        )

    def __str__(self) -> str:
        parts = [self._argument_text(name) for name in self.arguments]
        return f"{self.name}({', '.join(parts)}) {self.description}".strip()

    def _argument_text(self, name: str) -> str:
        """Return `limit: int`, `limit: int = 3`, or `limit?: int` without a default."""
        argument, hint = self.arguments[name], self.hints[name]
        if argument.required:
            return f"{name}: {hint_text(hint)}"
        if fits(argument.default, hint):
            with contextlib.suppress(TypeError, ValueError):  # no call can write it
                default = json.dumps(
                    argument.default, ensure_ascii=False, allow_nan=False
                )
                return f"{name}: {hint_text(hint)} = {default}"
        return f"{name}?: {hint_text(hint)}"

    def schema(self) -> dict[str, Any]:
        """Return the tool as OpenAI's API describes it (tool_schemas.py)."""
        required = [name for name, a in self.arguments.items() if a.required]
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
        for name, argument in self.arguments.items():
            if name not in arguments:
                if argument.required:
                    raise ValueError(f"{self.name} needs the argument {name!r}")
            elif not fits(arguments[name], self.hints[name]):
                value = json.dumps(arguments[name], ensure_ascii=False)
                want = hint_text(self.hints[name])
                raise ValueError(f"{name} must be {want}, got {value:.80}")

    def candidates(self, sight: Sight) -> list[dict[str, Any]]:
        """Return arguments of values in sight, the likely ones first.

        Behind them stand the likeliest once more, each with one of the arguments that
        have a default.
        """
        names = [name for name, a in self.arguments.items() if a.required]
        required = self._combinations(sight, names)
        optional = [
            {**arguments, name: value}
            for name, argument in self.arguments.items()
            if not argument.required
            for value in itertools.islice(
                sight.values(self.hints[name], name), MAX_OPTIONAL
            )
            if value != argument.default and value is not None
            for arguments in required[:MAX_OPTIONAL]
        ]
        return required + optional

    def never_tried(self) -> list[str]:
        """Return the required arguments of types that have no values in sight."""
        return [
            name
            for name, argument in self.arguments.items()
            if argument.required and _is_object(self.hints[name])
        ]

    def _combinations(self, sight: Sight, names: Sequence[str]) -> list[dict[str, Any]]:
        """Return values in sight of the named arguments, the likely ones first."""
        limit = int(MAX_COMBINATIONS ** (1 / max(len(names), 1)))
        values = [
            list(
                itertools.islice(
                    sight.values(self.hints[name], name), min(limit, MAX_VALUES)
                )
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


def _is_object(hint: Any) -> bool:
    """Return whether a type holds objects, or lists of these, and nothing else."""
    if _is_union(hint):
        return all(map(_is_object, typing.get_args(hint)))
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and parts:
        return _is_object(parts[0])
    return hint == ANY or dict in (hint, origin)


def hint_text(hint: Any) -> str:
    """Return a type hint as an agent reads it: int, "a" | "b", list[str], dict.

    Raises:
      TypeError: JSON has no such values.
    """
    if hint == ANY:
        return "any"
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in parts)
    if _is_union(hint):
        return " | ".join(map(hint_text, parts))
    if origin is dict and not _has_text_keys(hint):
        raise TypeError(f"got {hint}: keys of JSON are texts, write dict[str, ...]")
    if hint in (list, dict) or origin in (list, dict):
        inner = ", ".join(map(hint_text, parts))
        return f"{(origin or hint).__name__}{f'[{inner}]' if inner else ''}"
    raise TypeError(f"got {hint}{_instead(origin or hint)}")


def _has_text_keys(hint: Any) -> bool:
    """Return whether the keys of a type such as dict[str, int] are texts."""
    keys, *_ = typing.get_args(hint) or (str,)
    choices = typing.get_args(keys) if typing.get_origin(keys) is Literal else ()
    return keys is str or (bool(choices) and all(isinstance(c, str) for c in choices))


def _instead(kind: Any) -> str:
    """Return what to write in place of a type that JSON lacks, after a colon."""
    if not isinstance(kind, type):
        return ""
    if issubclass(kind, enum.Enum):
        values = ", ".join(repr(member.value) for member in kind)
        return f": write Literal[{values}]"
    if issubclass(kind, datetime.date | datetime.time | datetime.timedelta):
        return ": take a str, and read it in the tool"
    if dataclasses.is_dataclass(kind) or issubclass(kind, Mapping):
        return ": take a dict"
    if issubclass(kind, Collection):
        return ": take a list"
    return ""


_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def hint_schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of a type hint."""
    if hint == ANY:
        return {}
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


_HINTS = {
    **{name: hint for hint, name in _TYPES.items()},
    "array": list,
    "object": dict,
}


def schema_hint(schema: Any) -> Any:
    """Return the type hint of a JSON schema; any value where it is of another kind."""
    schema = schema if isinstance(schema, Mapping) else {}
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    choices = choices if isinstance(choices, list) else []
    if choices and all(isinstance(c, str | int | bool) for c in choices):
        return Literal[tuple(choices)]  # type: ignore[valid-type]
    parts = schema.get("anyOf") or schema.get("oneOf")
    kind = schema.get("type")
    parts = parts if isinstance(parts, list) else []
    if isinstance(kind, list) and not parts:
        parts = [{**schema, "type": k} for k in kind]
    if parts:
        return functools.reduce(operator.or_, map(schema_hint, parts))
    hint = _HINTS.get(str(kind), ANY)
    if hint is list and isinstance(schema.get("items"), Mapping):
        return list[schema_hint(schema["items"])]
    return hint


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
    if origin is list and parts:
        return all(fits(item, parts[0]) for item in value)
    if origin is dict and parts:
        return all(fits(item, parts[1]) for item in value.values())
    return True


def refuse_static_tool(cls: type, name: str) -> None:
    """Refuse a tool without `self`: its first argument would be taken for it.

    Raises:
      TypeError: the attribute is a tool, and a static or class method.
    """
    raw = inspect.getattr_static(cls, name, None)
    if not isinstance(raw, staticmethod | classmethod):
        return
    if getattr(raw, "_is_tool", False) or getattr(raw.__func__, "_is_tool", False):
        raise TypeError(
            f"{place_of(raw.__func__)}: the tool {name!r} is a {type(raw).__name__}: "
            "write it as a method, with self as its first argument"
        )
