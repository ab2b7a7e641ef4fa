"""JSON schemas of tools' arguments: read, merged, and compared with values.

a schema as it was recorded -> plain_schema: no references, no allOf, names of JSON's
types -> does a value fit it?; the schema of the values that fit two schemas

The keywords $ref (inside the schema), allOf, type, enum, const, anyOf, oneOf (as
anyOf), items, properties, required and additionalProperties are read. All others are
not: minimum, pattern, minItems, format, not, patternProperties and so on. Unlike in
JSON schema 2.0 is no integer, because a function that takes an integer would not take
it. A type that JSON does not have is any JSON value, if it is not a common name of one.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}
"""The types of JSON schema, as Python has them."""

_ALIASES = {
    "bool": "boolean",
    "dict": "object",
    "float": "number",
    "int": "integer",
    "list": "array",
    "str": "string",
    "tuple": "array",
}
"""Names of types that JSON schema does not have, and what is meant by them."""

MAX_REFERENCES = 500
"""The most references that are followed in one schema; further ones are not read."""
MAX_REFERENCES_INSIDE = 16
"""The most references inside each other that are followed."""

_REPLACED = frozenset({"$ref", "allOf", "$defs", "definitions"})
_ANY_VALUE = frozenset({"const", "default", "example"})
"""Keywords that may have the value null; any other one is absent then."""


def plain_schema(schema: Any, place: str) -> Any:
    """Return a JSON schema without references and allOf, as the others here take it.

    What a reference names stands in its place. Where that is in itself, or cannot be
    found, only its type is left, or any JSON value. Keywords that are null are absent.

    Args:
      schema: a JSON schema, which references begin from.
      place: where it stands, for errors.

    Raises:
      ValueError: a keyword has a value of another type, or the schema is too deep.
    """
    try:
        return _Reader(schema).read(schema, place, ("#",))
    except RecursionError:
        raise ValueError(f"{place} are too deep") from None


class _Reader:
    """Reads the parts of one schema."""

    def __init__(self, root: Any):
        self._root, self._left = root, MAX_REFERENCES

    def read(self, schema: Any, place: str, inside: tuple[str, ...]) -> Any:
        """Return a part as `plain_schema` does; it is `inside` these references."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            return {}
        out = {
            key: value
            for key, value in schema.items()
            if key not in _REPLACED and (value is not None or key in _ANY_VALUE)
        }
        if (kinds := _types(out.pop("type", None), f"{place}.type")) is not None:
            out["type"] = kinds
        properties = _checked(out, "properties", Mapping, "an object", place)
        if properties is not None:
            out["properties"] = {
                name: self.read(part, f"{place}.properties.{name}", inside)
                for name, part in properties.items()
            }
        if isinstance(out.get("required"), bool):  # of an argument, in old drafts
            del out["required"]
        names = _checked(out, "required", list | tuple, "a list of names", place)
        if not all(isinstance(name, str) for name in names or ()):
            raise ValueError(f"{place}.required must be a list of names, got {names}")
        _checked(out, "enum", list | tuple, "a list", place)
        for key in ("anyOf", "oneOf"):
            parts = _checked(out, key, list | tuple, "a list of schemas", place)
            if parts is not None:
                out[key] = [
                    self.read(part, f"{place}.{key}[{i}]", inside)
                    for i, part in enumerate(parts)
                ]
        for key in ("items", "additionalProperties"):
            if key in out:  # a list of items is of an old draft, and not read
                out[key] = self.read(out[key], f"{place}.{key}", inside)
        parts = _checked(schema, "allOf", list | tuple, "a list of schemas", place)
        merged = [
            self.read(part, f"{place}.allOf[{i}]", inside)
            for i, part in enumerate(parts or ())
        ]
        if schema.get("$ref") is not None:
            merged.insert(0, self._referred(schema["$ref"], place, inside))
        return functools.reduce(both, [*merged, out])

    def _referred(self, reference: Any, place: str, inside: tuple[str, ...]) -> Any:
        """Return what a reference names, as a plain schema."""
        if not isinstance(reference, str):
            return {}
        target = self._target(reference)
        if reference not in inside and len(inside) <= MAX_REFERENCES_INSIDE:
            self._left -= 1
            if self._left >= 0:
                return self.read(target, f"{place}.$ref", (*inside, reference))
        kinds = target.get("type") if isinstance(target, Mapping) else None
        kinds = _types(kinds, f"{place}.$ref.type")
        return {} if kinds is None else {"type": kinds}

    def _target(self, reference: str) -> Any:
        """Return the part of the schema that a JSON pointer names, or None."""
        if not reference.startswith("#"):
            return None
        part = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list | tuple) and key.isdecimal():
                part = part[int(key)] if int(key) < len(part) else None
            else:
                part = part.get(key) if isinstance(part, Mapping) else None
        return part


def _checked(
    schema: Mapping[str, Any], key: str, kind: Any, words: str, place: str
) -> Any:
    """Return the value of a keyword, None where it has none."""
    value = schema.get(key)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"{place}.{key} must be {words}, got {value!r:.80}")
    return value


def _types(kinds: Any, place: str) -> str | list[str] | None:
    """Return the names of JSON's types, None where any value is meant."""
    if kinds is None:
        return None
    names = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) for name in names
    ):
        raise ValueError(f"{place} must be a name or several, got {kinds!r:.80}")
    read = [_ALIASES.get(name.lower(), name.lower()) for name in names]
    if not all(name in TYPES for name in read):
        return None
    return read[0] if isinstance(kinds, str) else read


def value_fits(value: Any, schema: Any) -> bool:
    """Return whether a JSON value is what a JSON schema describes."""
    if not isinstance(schema, Mapping):
        return bool(schema)  # true and false are schemas, too
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if options and not any(value_fits(value, option) for option in options):
            return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    if "enum" in schema and not any(_same(value, x) for x in schema["enum"]):
        return False
    kinds = schema.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is_type(value, name) for name in names):
            return False
    if isinstance(value, Mapping):
        return _object_fits(value, schema)
    if isinstance(value, list | tuple) and "items" in schema:
        return all(value_fits(item, schema["items"]) for item in value)
    return True


def _object_fits(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties: Mapping[str, Any] = schema.get("properties", {})
    required: Sequence[str] = schema.get("required", ())
    rest = schema.get("additionalProperties", True)
    return all(name in value for name in required) and all(
        value_fits(x, properties.get(name, rest)) for name, x in value.items()
    )


def _is_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES.get(name, (object,)))


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def both(schema: Any, other: Any) -> Any:
    """Return the schema of values that fit two schemas; False where none can."""
    if not isinstance(schema, Mapping) or not isinstance(other, Mapping):
        if schema is False or other is False:
            return False
        return other if isinstance(other, Mapping) else schema
    if "const" in schema and "const" in other and schema["const"] != other["const"]:
        return False
    merged = {**schema, **other}
    for key in ("anyOf", "oneOf"):
        if schema.get(key) and other.get(key):
            merged[key] = [both(x, y) for x in schema[key] for y in other[key]]
    if "type" in schema and "type" in other:
        merged["type"] = _common_types(schema["type"], other["type"])
        if not merged["type"]:
            return False
    if "enum" in schema and "enum" in other:
        merged["enum"] = [x for x in other["enum"] if value_fits(x, schema)]
    if "items" in schema and "items" in other:
        merged["items"] = both(schema["items"], other["items"])
    if "required" in schema and "required" in other:
        merged["required"] = [*schema["required"], *other["required"]]
    pairs = ((schema, other), (other, schema))
    if any("properties" in x or "additionalProperties" in x for x in pairs[0]):
        properties: dict[str, Any] = {}
        for one, another in pairs:
            rest = another.get("additionalProperties", True)
            for name, value in one.get("properties", {}).items():
                listed = another.get("properties", {}).get(name, rest)
                properties.setdefault(name, both(value, listed))
        merged["properties"] = properties
    if any("additionalProperties" in x for x in (schema, other)):
        rests = [x.get("additionalProperties", True) for x in (schema, other)]
        merged["additionalProperties"] = both(*rests)
    return merged


def _common_types(kinds: Any, others: Any) -> list[str]:
    """Return the types that two schemas both allow; an integer is a number."""
    a, b = ([x] if isinstance(x, str) else list(x) for x in (kinds, others))
    either = dict.fromkeys([*a, *b])
    return [
        name
        for name in either
        if all(name in x or (name == "integer" and "number" in x) for x in (a, b))
    ]
