"""Schemas of tools: their names, their arguments, and the types of these.

a task's `options["tools"]` -> ToolSchema by name -> what is wrong with a call, or None.

Tools are listed as in OpenAI's API, which is what importers find and what a ToolEnv
writes: {"type": "function", "function": {"name": ..., "parameters": {JSON schema}}}. Of
JSON schema the keywords type, enum, const, anyOf, oneOf, items, properties, required
and additionalProperties are checked; others are not read. Unlike there, 2.0 is no
integer, because a function that takes an integer would not take it.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.records import Task
from worldmodel.text import identifiers
from worldmodel.text.tools.tool_calls import Call, expected_calls

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


_CUSTOM = {
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The arguments of a tool of type `custom` in OpenAI's API, which is given one text."""
_JOINT = re.compile(r"_+|(?<=[a-z0-9])(?=[A-Z])")
"""Where the parts of a name such as `create_crate` or `createCrate` meet."""


class ToolSchema(NamedTuple):
    """A tool as an agent may call it.

    `parameters` holds the JSON schema of each argument by name, `others` that of
    arguments which are not listed; False takes none of these.
    """

    name: str
    parameters: Mapping[str, Any]
    required: frozenset[str] = frozenset()
    others: Any = False

    def error(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments of a call, or None."""
        for name in arguments:
            if name not in self.parameters and self.others is False:
                names = ", ".join(self.parameters) or "none"
                return f"{self.name} has no argument {name!r}; have {names}"
        for name in sorted(self.required):
            if name not in arguments:
                return f"{self.name} needs the argument {name!r}"
        for name, value in arguments.items():
            if not value_fits(value, self.parameters.get(name, self.others)):
                text = json.dumps(value, ensure_ascii=False, default=repr)
                return f"{name} does not fit its schema, got {text:.80}"
        return None


def tool_schemas(task: Task) -> dict[str, ToolSchema] | None:
    """Return the tools of a task by name, or None where it lists none.

    Raises:
      ValueError: `options["tools"]` is no list of tools; the message names the task.
    """
    rows = task.options.get("tools")
    if rows is None:
        return None
    place = f"task {task.id!r}: options['tools']"
    if not isinstance(rows, list | tuple):
        raise ValueError(f"{place} must be a list, got {type(rows).__name__}")
    schemas = [_tool_schema(row, f"{place}[{i}]") for i, row in enumerate(rows)]
    return {schema.name: schema for schema in schemas}


def tool_words(task: Task) -> frozenset[str]:
    """Return the words of a task's tools in lower case, and the parts of their names.

    These are all words of `options["tools"]`: names, arguments and descriptions. A name
    `create_crate` has the parts `create` and `crate`.
    """
    text = json.dumps(task.options.get("tools", ()), ensure_ascii=False, default=str)
    words = identifiers.words(text)
    parts = (part for word in words for part in _JOINT.split(word))
    return frozenset(word.casefold() for word in (*words, *parts))


def complete_options(task: Task, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's options with the tools and calls that a reset's info declares.

    These are `info["tool_schemas"]` and `info["calls"]`; the task's own count more.

    Raises:
      ValueError: they are no tools or no expected calls; the message names the task.
    """
    declared = {"tools": info.get("tool_schemas"), "calls": info.get("calls")}
    options = {k: v for k, v in declared.items() if v is not None} | dict(task.options)
    complete = dataclasses.replace(task, options=options)
    try:
        tool_schemas(complete)
        expected_calls(complete)
    except ValueError as error:
        raise ValueError(
            f"{error}; runs read the tools and the expected calls of a task there, or "
            "in info['tool_schemas'] and info['calls'] of its reset: give anything "
            "else another name"
        ) from None
    return options


def _tool_schema(row: Any, place: str) -> ToolSchema:
    tool = row.get("function", row) if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(row.get("custom"), Mapping):
        tool = {"parameters": _CUSTOM, **row["custom"]}  # OpenAI's tools of one text
    # Tools that a server brings along have a type and no name: {"type": "web_search"}.
    name = tool.get("name", tool.get("type")) if isinstance(tool, Mapping) else None
    if not isinstance(name, str) or not name or tool is None:
        form = '{"name": ..., "parameters": {...}}'
        raise ValueError(f"{place} must be {form}, got {row!r:.80}")
    schema = tool.get("parameters", tool.get("input_schema"))
    if not isinstance(schema, Mapping):
        return ToolSchema(name, {}, others=True)
    parameters = schema.get("properties", {})
    required = schema.get("required", ())
    if not isinstance(parameters, Mapping) or not isinstance(required, list | tuple):
        raise ValueError(f"{place} must have a JSON schema, got {schema!r:.80}")
    # JSON schema allows further properties; a tool that lists its arguments takes
    # those alone unless it says otherwise.
    others = schema.get("additionalProperties", "properties" not in schema)
    return ToolSchema(name, parameters, frozenset(map(str, required)), others)


def call_error(call: Call, schemas: Mapping[str, ToolSchema]) -> str | None:
    """Return why a call is not well-formed for these tools, or None."""
    if not call.valid_json:
        return f"the arguments of {call.tool or 'the call'} are no JSON object"
    schema = schemas.get(call.tool)
    if schema is None:
        return f"no tool {call.tool!r}; have {', '.join(schemas) or 'none'}"
    return schema.error(call.arguments)


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
