"""Type hints of arguments: those that JSON has, as text, as schema, and as a check.

a hint of a method, or of a JSON schema -> what an agent reads, a JSON schema, whether a
value fits
"""

import dataclasses
import datetime
import enum
import functools
import json
import operator
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal

from worldmodel.text.tools.json_schemas import both

TYPES = (
    "str, int, float, bool, None, Literal, list, dict, TypedDict or a union of these"
)
"""The types that an argument may have."""

MAX_OBJECTS = 3
"""Objects inside each other of which a schema's fields are read; others are dicts."""

ANY = str | int | float | bool | list | dict | None
"""The hint of an argument that may have any value of JSON."""

_SIMPLE = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null"}


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def is_object(hint: Any) -> bool:
    """Return whether a type holds objects, or lists of these, and nothing else."""
    if _is_union(hint):
        return all(map(is_object, typing.get_args(hint)))
    if typing.is_typeddict(hint):
        return True
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is list and parts:
        return is_object(parts[0])
    return hint == ANY or dict in (hint, origin)


def hint_text(hint: Any) -> str:
    """Return a type hint as an agent reads it: int, "a" | "b", list[str], {x: int}.

    Raises:
      TypeError: JSON has no such values.
    """
    if hint == ANY:
        return "any"
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if typing.is_typeddict(hint):
        optional = hint.__optional_keys__
        fields = [
            f"{name}{'?' if name in optional else ''}: {hint_text(part)}"
            for name, part in typing.get_type_hints(hint).items()
        ]
        return f"{{{', '.join(fields)}}}"
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
    if typing.is_typeddict(hint):
        parts = typing.get_type_hints(hint)
        return {
            "type": "object",
            "properties": {name: hint_schema(part) for name, part in parts.items()},
            "required": [name for name in parts if name in hint.__required_keys__],
        }
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
}


def schema_hint(schema: Any, objects: int = 0) -> Any:
    """Return the type hint of a plain JSON schema that is inside so many objects.

    Any value where it is of another kind.
    """
    schema = schema if isinstance(schema, Mapping) else {}
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices and all(isinstance(c, str | int | bool) for c in choices):
        return Literal[tuple(choices)]  # type: ignore[valid-type]
    key = next((k for k in ("anyOf", "oneOf") if schema.get(k)), None)
    kind = schema.get("type")
    parts = []
    if key is not None:
        rest = {k: v for k, v in schema.items() if k != key}
        parts = [both(rest, part) for part in schema[key]]
    elif isinstance(kind, list):
        parts = [{**schema, "type": k} for k in kind]
    if hints := [schema_hint(x, objects) for x in parts if x is not False]:
        return functools.reduce(operator.or_, hints)
    if kind == "object" or (kind is None and "properties" in schema):
        return _object_hint(schema, objects)
    hint = _HINTS.get(str(kind), ANY)
    if hint is list and isinstance(schema.get("items"), Mapping):
        return list[schema_hint(schema["items"], objects)]
    return hint


def _object_hint(schema: Mapping[str, Any], objects: int) -> Any:
    """Return the type hint of an object: its fields, or of which type all are."""
    fields, rest = schema.get("properties"), schema.get("additionalProperties")
    if objects >= MAX_OBJECTS:
        return dict
    if not fields:
        hint = ANY if not rest else schema_hint(rest, objects + 1)
        return dict if hint == ANY else dict[str, hint]
    required = schema.get("required", ())
    hints = {
        name: schema_hint(part, objects + 1)
        for name, part in fields.items()
        if part is not False
    }
    hints = {n: typing.Required[h] if n in required else h for n, h in hints.items()}
    # Type checkers want fields that stand in the code.
    return typing.TypedDict("Fields", hints, total=False)  # type: ignore[operator]


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
    if typing.is_typeddict(hint):
        fields = typing.get_type_hints(hint)
        return (
            isinstance(value, dict)
            and hint.__required_keys__ <= value.keys()
            and all(fits(value[n], part) for n, part in fields.items() if n in value)
        )
    if not isinstance(value, origin or hint):
        return False
    if origin is list and parts:
        return all(fits(item, parts[0]) for item in value)
    if origin is dict and parts:
        return all(fits(item, parts[1]) for item in value.values())
    return True
