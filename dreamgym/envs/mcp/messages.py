"""What an MCP server writes, and what is read of it: a line, a result, tools, a text.

line of a server -> message -> result -> descriptions of tools, or the text of a call.
Whatever a server writes, an error of these functions is one of those that they name.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_RESULT = 20_000
"""Characters of a result, at most; what is longer is cut, and the result says so."""


class ToolError(ValueError):
    """A tool answered with an error: the agent reads it."""


class ToolDescription(NamedTuple):
    """A tool as its server describes it; `schema` is the JSON schema of arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the message of a line, or None where it holds none.

    A half of a surrogate pair becomes a question mark: no episode could be written with
    it, because UTF-8 has none.
    """
    try:
        message = json.loads(line)
        if b"\\u" in line:
            text = json.dumps(message, ensure_ascii=False)
            message = json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def parse_result(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of an answer to a request.

    Raises:
      ToolError: the answer is an error.
      ConnectionError: it has no result.
    """
    if isinstance(error := answer.get("error"), dict):
        raise ToolError(_text(error.get("message", "refused"))[:MAX_RESULT])
    result = answer.get("result")
    if not isinstance(result, dict):
        raise ConnectionError("an answer without a result")
    return result


def parse_tools(result: Mapping[str, Any]) -> list[ToolDescription]:
    """Return the tools that a result of tools/list describes.

    Raises:
      ConnectionError: the tools are no list, or one has no name.
    """
    rows = result.get("tools") or []
    if not isinstance(rows, list):
        raise ConnectionError(f"tools must be a list, got {type(rows).__name__}")
    tools = list[ToolDescription]()
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise ConnectionError("a tool without a name")
        schema = row.get("inputSchema")
        tools.append(
            ToolDescription(
                row["name"],
                _text(row.get("description") or ""),
                schema if isinstance(schema, dict) else {},
            )
        )
    return tools


def result_text(result: Mapping[str, Any]) -> str:
    """Return the text of a result of tools/call.

    Raises:
      ToolError: the tool says that the call failed.
    """
    content = result.get("content")
    rows = content if isinstance(content, list) else []
    parts = [p for p in rows if isinstance(p, dict)]
    text = "\n".join(_text(p.get("text", f"({_text(p.get('type'))})")) for p in parts)
    if len(text) > MAX_RESULT:
        text = f"{text[:MAX_RESULT]}\n({len(text) - MAX_RESULT} more characters)"
    if result.get("isError"):
        raise ToolError(text or "the call failed")
    return text


def _text(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:
        return "(nested too deep)"
