"""Schemas of tools: their names, their arguments, and the types of these.

a task's `options["tools"]` -> ToolSchema by name -> what is wrong with a call, or None.

Tools are listed as in OpenAI's API, which is what importers find and what a ToolEnv
writes: {"type": "function", "function": {"name": ..., "parameters": {JSON schema}}}.
json_schemas.py says which keywords of JSON schema are read.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from worldmodel.data.records import Task
from worldmodel.text import identifiers
from worldmodel.text.tools.json_schemas import plain_schema, value_fits
from worldmodel.text.tools.tool_calls import Call, expected_calls

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
    return schemas_of(rows, f"task {task.id!r}: options['tools']")


def schemas_of(rows: Any, place: str) -> dict[str, ToolSchema]:
    """Return listed tools by name.

    Raises:
      ValueError: it is no list of tools; the message begins with the `place`.
    """
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
    key = "parameters" if "parameters" in tool else "input_schema"
    if not isinstance(tool.get(key), Mapping):
        return ToolSchema(name, {}, others=True)
    schema = plain_schema(tool[key], f"{place} ({name}).{key}")
    if not isinstance(schema, Mapping):  # nothing fits all of its parts
        schema = {"properties": {}}
    parameters = schema.get("properties", {})
    required = schema.get("required", ())
    # JSON schema allows further properties; a tool that lists its arguments takes
    # those alone unless it says otherwise.
    others = schema.get("additionalProperties", "properties" not in schema)
    return ToolSchema(name, parameters, frozenset(required), others)


def call_error(call: Call, schemas: Mapping[str, ToolSchema]) -> str | None:
    """Return why a call is not well-formed for these tools, or None."""
    if not call.valid_json:
        return f"the arguments of {call.tool or 'the call'} are no JSON object"
    schema = schemas.get(call.tool)
    if schema is None:
        return f"no tool {call.tool!r}; have {', '.join(schemas) or 'none'}"
    return schema.error(call.arguments)
