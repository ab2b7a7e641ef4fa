"""Tool calls in actions, parsed from text and compared with the expected calls.

action -> Call or None (no call); a task's `options["calls"]` -> the expected call of
each step; arguments of both -> a score in [0, 1].

An action is a call where the whole of it is one of
  {"tool": "weather", "arguments": {"city": "Paris"}}
  {"name": "weather", "arguments": {"city": "Paris"}}
  {"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": ..."}}
  {"type": "call", "which": "weather", "how": {"city": "Paris"}}
  weather(city="Paris", days=2)
  weather {"city": "Paris", "days": 2}
with or without <action>...</action> around it. Instead of `arguments` an object may say
`args` or `parameters`, and the arguments may be a JSON object in a string, as OpenAI
writes them. The importer of OpenAI messages, and `write_call`, write the last form; of
several such lines the first is read. A value of the form before it is JSON, text in
single quotes, or bare words. An action that begins as a call but cannot be parsed is a
malformed call. Everything else (an answer, a command of a text game) is no call.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from worldmodel.data.records import Task

LONG = 2000
"""Characters above which texts are compared for equality only: matching takes long."""

_ARGUMENTS = ("arguments", "args", "parameters")
_KEYS = {"tool": _ARGUMENTS, "which": ("how",), "name": _ARGUMENTS}
"""The key of a tool's name, and the keys under which its arguments may stand."""
_TAGS = re.compile(r"<action>(.*)</action>", re.DOTALL)
_TOOL_KEY = re.compile(r"[\"']?(?:tool|which)[\"']?\s*:\s*(?:[\"']([\w.-]*))?")
_NAME_KEY = re.compile(
    r"[\"']name[\"']\s*:\s*[\"']([\w.-]*).*[\"'](?:arguments|args|parameters)[\"']\s*:",
    re.DOTALL,
)
_NAMED = re.compile(r"([A-Za-z_][\w.-]*)\(")
_SPACED = re.compile(r"([A-Za-z_][\w.-]*)\s+(\{.*)", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"[^,()=\"'{}\[\]]+")
_NEXT = re.compile(r"\s*(,|\Z)")


class Call(NamedTuple):
    """A tool and its arguments by name.

    `valid_json` is false where the call is malformed. Such a call has no arguments, and
    the tool's name only where it could be read.
    """

    tool: str
    arguments: Mapping[str, Any]
    valid_json: bool = True


def read_call(action: str) -> Call | None:
    """Return the call that an action is, or None. Never raises."""
    text = action.strip()
    tagged = _TAGS.fullmatch(text)
    text = tagged[1].strip() if tagged else text
    if text.startswith("{"):
        return _object(text)
    if spaced := _SPACED.fullmatch(text):
        return _several(text) or _spaced(*spaced.groups())
    named = _NAMED.match(text)
    if named is None:
        return None
    inside = text[named.end() : -1] if text.endswith(")") else None
    try:
        arguments = None if inside is None else _arguments(inside)
    except (ValueError, RecursionError):
        arguments = None
    if arguments is None:
        return Call(named[1], {}, False)
    return Call(named[1], arguments)


def _several(text: str) -> Call | None:
    """Return the first of several calls, one a line; None where a line is no call."""
    rows = [_SPACED.fullmatch(line.strip()) for line in text.splitlines()]
    calls = [_spaced(*row.groups()) for row in rows if row is not None]
    several = len(calls) == len(rows) > 1 and all(c.valid_json for c in calls)
    return calls[0] if several else None


def _spaced(tool: str, text: str) -> Call:
    """Return the call of a name and its arguments, a JSON object behind a blank."""
    try:
        arguments = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        arguments = None
    return (
        Call(tool, arguments) if isinstance(arguments, dict) else Call(tool, {}, False)
    )


def write_call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the text of a call that `read_call` reads: weather {"city": "Paris"}."""
    return f"{tool} {json.dumps(dict(arguments), ensure_ascii=False)}"


def gold_calls(task: Task) -> tuple[Call | None, ...] | None:
    """Return the expected calls of a task's steps, or None where the task has none.

    `options["calls"]` lists one {"tool": ..., "arguments": {...}} a step, or null where
    no call is expected.

    Raises:
      ValueError: it has another form; the message names the task and the step.
    """
    rows = task.options.get("calls")
    if rows is None:
        return None
    place = f"task {task.id!r}: options['calls']"
    if not isinstance(rows, list | tuple):
        raise ValueError(f"{place} must be a list, got {type(rows).__name__}")
    out: list[Call | None] = []
    for i, row in enumerate(rows):
        call = None if row is None else _call(row)
        if row is not None and (call is None or not call.valid_json):
            form = '{"tool": name, "arguments": {...}} or null'
            raise ValueError(f"{place}[{i}] must be {form}, got {row!r:.80}")
        out.append(call)
    return tuple(out)


def expected_call(gold: tuple[Call | None, ...], step: int) -> Call | None:
    """Return the expected call of a step; there is none past the end of the list."""
    return gold[step] if step < len(gold) else None


def argument_score(actual: Mapping[str, Any], gold: Mapping[str, Any]) -> float:
    """Return how well arguments match the gold ones, in [0, 1].

    The mean over all names that either has; 1.0 where neither has any. A number `a`
    scores 1 - |a - g| / max(|g|, 1), at least 0 (the primer has -|a - g|, which is
    unbounded); a text scores its similarity to the gold text (difflib, ignoring case
    and blanks); an object scores as arguments do; anything else scores 1 if equal. A
    name that only one side has scores 0.
    """
    names = actual.keys() | gold.keys()
    if not names:
        return 1.0
    both = actual.keys() & gold.keys()
    # Sorted, because a sum of floats must not depend on the hashes of names.
    return sum(_similarity(actual[k], gold[k]) for k in sorted(both)) / len(names)


def _similarity(actual: Any, gold: Any) -> float:
    try:
        if _number(actual) and _number(gold):
            if actual == gold:
                return 1.0
            return max(0.0, 1.0 - abs(actual - gold) / max(abs(gold), 1))
        if isinstance(actual, str) and isinstance(gold, str):
            return _likeness(_plain(actual), _plain(gold))
        if isinstance(actual, Mapping) and isinstance(gold, Mapping):
            return argument_score(actual, gold)
        return float(type(actual) is type(gold) and actual == gold)
    except (OverflowError, RecursionError):  # huge integers, deep nesting
        return 0.0


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())


def _likeness(actual: str, gold: str) -> float:
    if actual == gold or max(len(actual), len(gold)) > LONG:
        return float(actual == gold)
    return difflib.SequenceMatcher(None, actual, gold, autojunk=False).ratio()


# --- reading -----------------------------------------------------------------


def _object(text: str) -> Call | None:
    """Return the call that is written as a JSON object, or None."""
    try:
        row = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        match = _TOOL_KEY.search(text) or _NAME_KEY.search(text)
        return None if match is None else Call(match[1] or "", {}, False)
    return _call(row)


def _call(row: Any) -> Call | None:
    """Return the call that an object stands for, or None."""
    if isinstance(row, dict) and isinstance(row.get("function"), dict):
        row = row["function"]  # OpenAI's form
    if not isinstance(row, dict) or row.get("type") == "answer":
        return None
    key = next((k for k in _KEYS if k in row), None)
    if key is None or row.get("when") is False:
        return None
    place = next((k for k in _KEYS[key] if k in row), None)
    if key == "name" and place is None:
        return None  # an object that only has a name is an answer
    tool, arguments = row[key], {} if place is None else _decoded(row[place])
    named = isinstance(tool, str) and bool(tool)
    if not named or not isinstance(arguments, dict):
        return Call(tool if named else "", {}, False)
    return Call(tool, arguments)


def _decoded(arguments: Any) -> Any:
    """Return arguments, decoded where they are a JSON object in a string."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments or "{}", parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _arguments(text: str) -> dict[str, Any]:
    """Return the values of `a=1, b="x", c='y', d=bare words`; raises ValueError."""
    out: dict[str, Any] = {}
    at = 0
    while text[at:].strip():
        name = _ARGUMENT.match(text, at)
        if name is None or name[1] in out:
            raise ValueError(f"expected a new name= at {text[at : at + 20]!r}")
        out[name[1]], at = _value(text, name.end())
        end = _NEXT.match(text, at)
        if end is None:
            raise ValueError(f"expected a comma at {text[at : at + 20]!r}")
        at = end.end()
        if end[1] and not text[at:].strip():
            raise ValueError("nothing follows the last comma")
    return out


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
    try:
        return json.loads(bare[0], parse_constant=_no_number), bare.end()
    except ValueError:
        return bare[0].strip(), bare.end()
