"""Tool calls in actions, parsed from text, and the expected calls of a task.

action -> Action: its calls, or its answer; a task's `options["calls"]` -> the expected
calls of each step.

An action is a call where the whole of it is one of
  {"tool": "weather", "arguments": {"city": "Paris"}}
  {"name": "weather", "arguments": {"city": "Paris"}}
  {"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": ..."}}
  {"type": "call", "which": "weather", "how": {"city": "Paris"}}
  weather(city="Paris", days=2)
  weather {"city": "Paris", "days": 2}
with or without <action>...</action>, <tool_call>...</tool_call> or a fence around it.
Instead of `arguments` an object may say `args`, `parameters`, `input` or `params`, and
the arguments may be a JSON object in a string, as OpenAI writes them, or null where
there are none. The importer of OpenAI messages, and `write_call`, write the last form.
A value of the form before it is JSON, text in single quotes, or bare words. An object
may name its tool under `action` as well, with nothing beside the arguments. Several
calls are made at once by one call a line, by a JSON list of calls, by a message
{"tool_calls": [...]} of OpenAI, by a list [weather(city="Paris"), news()] of Python, or
by several <tool_call> blocks.

An answer is one of
  {"type": "answer", "content": "It will rain."}
  answer {"content": "It will rain."}
or any other text (a command of a text game is an answer in this sense). What begins as
a call or as a JSON object and cannot be parsed is a malformed call, not an answer.
"""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.records import Task
from worldmodel.text.tools.call_values import read_arguments, read_json

ANSWER = "answer"
"""The name under which an answer is written as strictly as a call (`write_answer`)."""
CONTENT = "content"
"""The key of an answer's text."""

MATCHES = ("step", "order", "assignment")
"""How calls are matched with the expected ones (call_matching.py)."""

_LONG = 2000
"""Characters behind which no tool's name is looked for in a broken call, since matching
takes long."""

MAX_ACTION_WORDS = 6
"""Words of an action that a reasoning trace quotes, at most."""

_ARGUMENTS = ("arguments", "args", "parameters", "input", "params")
_KEYS = {
    "tool": _ARGUMENTS,
    "which": ("how",),
    "name": _ARGUMENTS,
    "tool_name": _ARGUMENTS,
    "function": _ARGUMENTS,
    "action": ("action_input", *_ARGUMENTS),
}
"""The key of a tool's name, and the keys under which its arguments may stand."""
_ALSO_OTHERS = frozenset({"name", "function", "action"})
"""Keys that objects have as well which are no calls: they need arguments."""
_WITH_OBJECT = frozenset({"function", "action"})
"""Keys of these whose arguments must be an object: a final answer has a text there."""
_TAGS = re.compile(r"<action>(.*)</action>", re.DOTALL)
_CALL_TAG = re.compile(r"\s*<tool_call>(.*?)(?:</tool_call>\s*|\Z)", re.DOTALL)
"""A call in its block, of which the end may be cut off."""
_THOUGHT = "<think>", "</think>"  # around a thought before a call
_FENCE = re.compile(r"```(?:json)?\s*\n\s*([{\[].*)\n\s*```", re.DOTALL)
_OTHER_KEYS = frozenset({"when", "type", "thought", "reasoning"})
"""Keys beside a tool's name that are no arguments."""
_INPUTS = ("input", "params")  # objects that are no calls have them, with other keys
_MESSAGE = "tool_calls"
"""The key of the calls in a message of OpenAI."""
_MESSAGE_KEYS = frozenset(
    {_MESSAGE, "role", "content", "refusal", "annotations", "audio", "function_call"}
    | {"reasoning", "reasoning_content", "thought"}
)
"""The keys of such a message: an object with others is data, and an answer."""
NAME = r"[A-Za-z_][\w./-]*"  # as MCP allows it
_TOOL_KEY = re.compile(r"[\"']?(?:tool|which)[\"']?\s*:\s*(?:[\"']([\w./-]*))?")
_NAME_KEY = re.compile(
    r"[\"']name[\"']\s*:\s*[\"']([\w./-]*).*[\"'](?:arguments|args|parameters|input|params)[\"']\s*:",
    re.DOTALL,
)
_NAMED = re.compile(rf"({NAME})\(")
_SPACED = re.compile(rf"({NAME})\s+(\{{.*)", re.DOTALL)
_CALL_LINE = re.compile(rf"{NAME}(\s+\{{.*|\(.*\))|\{{.*\}}")
_OBJECT_LIST = re.compile(r"\[\s*\{")
_LISTED = re.compile(rf"\s*({NAME})\(")
_LIST_NEXT = re.compile(r"\s*(,|\]\Z)")
_CALL_LIST = re.compile(rf"\[\s*({NAME})\(\s*[^\W\d]\w*\s*=")
"""How a list of calls begins; [sin(x)] is none, nor is a link [here](...)."""


class Call(NamedTuple):
    """A tool and its arguments by name.

    `valid_json` is false where the call is malformed. Such a call has no arguments, and
    the tool's name only where it could be read.
    """

    tool: str
    arguments: Mapping[str, Any]
    valid_json: bool = True


class Action(NamedTuple):
    """What an action decides: the calls to make, or the answer.

    `answer` is None where there are calls. An action with neither is empty.
    """

    calls: tuple[Call, ...]
    answer: str | None

    @property
    def void(self) -> bool:
        """Whether the action is neither a readable call nor an answer."""
        return not (self.answer or any(call.valid_json for call in self.calls))


def read_action(action: str, tools: Container[str] | None = None) -> Action:
    """Return the calls or the answer of an action. Never raises.

    Args:
      tools: the names of the task's tools, where they are at hand: an object {"action":
        ..., "args": {...}} is an answer where it names none of them, such as a record
        that was asked for.
    """
    text = _without_wrapper(action)
    if _CALL_TAG.match(text) and not _CALL_TAG.sub("", text):  # one block a call
        text = "\n".join(call.strip() for call in _CALL_TAG.findall(text))
    calls = _calls(text)
    if calls is None or _is_record(text, calls, tools):
        return Action((), _answer(text) or None)
    if len(calls) == 1 and calls[0].tool == ANSWER:
        content = calls[0].arguments.get(CONTENT)
        if calls[0].arguments.keys() == {CONTENT} and isinstance(content, str):
            return Action((), content.strip() or None)
    return Action(calls, None)


def _is_record(text: str, calls: Sequence[Call], tools: Container[str] | None) -> bool:
    """Return whether an object that could be a call names no tool of the task."""
    if tools is None or not text.startswith("{") or len(calls) != 1:
        return False
    if calls[0].tool in tools or not calls[0].valid_json:
        return False
    row = json.loads(text)  # _object has read it
    return row.get("action") == calls[0].tool and "action_input" not in row


def action_words(action: str) -> list[str]:
    """Return the words of an action; of a tool call its name and its plain values."""
    calls, answer = read_action(action)
    words = [answer or ""]
    for call in calls:
        values = [v for v in call.arguments.values() if not isinstance(v, dict | list)]
        words += [call.tool]
        words += [v if isinstance(v, str) else json.dumps(v) for v in values]
    return " ".join(words).split()


def has_answer_form(action: str) -> bool:
    """Return whether an action is an answer that is written as one, no other text."""
    answer = read_action(action).answer
    return answer is not None and answer != _without_wrapper(action)


def _without_wrapper(action: str) -> str:
    begin, end = _THOUGHT
    text = action.strip()
    if text.startswith(begin):
        thought, _, rest = text.partition(end)
        text = (rest or thought).strip()
    for wrapper in (_TAGS, _FENCE):
        if wrapped := wrapper.fullmatch(text):
            text = wrapped[1].strip()
    return text


def read_call(action: str) -> Call | None:
    """Return the first call of an action, or None. Never raises."""
    return next(iter(read_action(action).calls), None)


def _calls(text: str) -> tuple[Call, ...] | None:
    """Return the calls that a text is, or None where it is none."""
    if text.startswith("["):
        return _list(text)
    if text.startswith("{") and f'"{_MESSAGE}"' in text:
        calls = _message(text)
        if calls is not None:
            return calls
    rows = [line.strip() for line in text.split("\n") if line.strip()]
    if len(rows) > 1 and all(_CALL_LINE.fullmatch(row) for row in rows):
        calls = [_one(row) for row in rows]
        if None not in calls:
            return tuple(call for call in calls if call is not None)
    call = _one(text)
    return None if call is None else (call,)


def _list(text: str) -> tuple[Call, ...] | None:
    """Return the calls of a JSON list, or None where an item is no call."""
    try:
        rows = read_json(text)
    except (ValueError, RecursionError):
        malformed = (Call("", {}, False),) if _OBJECT_LIST.match(text) else None
        return malformed or _python_list(text)
    calls = [_call(row) for row in rows] if isinstance(rows, list) else []
    return tuple(c for c in calls if c) if calls and None not in calls else None


def _python_list(text: str) -> tuple[Call, ...] | None:
    """Return the calls of [weather(city="Paris"), news()], or None.

    One that begins with an argument by name and cannot be read is a malformed call,
    unless more text stands behind it.
    """
    at, calls = 1, list[Call]()
    try:
        while named := _LISTED.match(text, at):
            arguments, at = read_arguments(text, named.end())
            calls.append(Call(named[1], arguments))
            end = _LIST_NEXT.match(text, at)
            if end is None:
                break
            if end[1] != ",":
                return tuple(calls)
            at = end.end()
    except (ValueError, RecursionError):
        pass  # it is no list of calls, or a malformed one
    opening = _CALL_LIST.match(text)
    if opening is None or ("]" in text and not text.endswith("]")):
        return None
    return (Call(opening[1], {}, False),)


def _message(text: str) -> tuple[Call, ...] | None:
    """Return the calls of a message of OpenAI, or None where an object is none."""
    try:
        row = read_json(text)
    except (ValueError, RecursionError):
        return None  # a malformed call, as any object
    rows = row.get(_MESSAGE)
    if row.keys() - _MESSAGE_KEYS or not isinstance(rows, list) or not rows:
        return None
    if not all(isinstance(x, dict) for x in rows):
        return None
    return tuple(_call(x) or Call("", {}, False) for x in rows)


def _one(text: str) -> Call | None:
    """Return the one call that a text is, or None."""
    if text.startswith("{"):
        return _object(text)
    if spaced := _SPACED.fullmatch(text):
        return _spaced(*spaced.groups())
    named = _NAMED.match(text)
    if named is None:
        return None
    try:
        arguments, end = read_arguments(text, named.end())
    except (ValueError, RecursionError):
        return Call(named[1], {}, False)
    if end < len(text):  # more text stands behind it
        return Call(named[1], {}, False)
    return Call(named[1], arguments)


def _answer(text: str) -> str:
    """Return the text of an answer; text that is no JSON object stays as it is."""
    if not text.startswith("{"):
        return text
    row = json.loads(text)  # _object has read it
    content = row.get(CONTENT) if row.get("type") == ANSWER else None
    return content.strip() if isinstance(content, str) else text


def _spaced(tool: str, text: str) -> Call:
    """Return the call of a name and its arguments, a JSON object behind a blank."""
    try:
        arguments = read_json(text)
    except (ValueError, RecursionError):
        arguments = None
    return (
        Call(tool, arguments) if isinstance(arguments, dict) else Call(tool, {}, False)
    )


def write_call(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the text of a call that `read_call` reads: weather {"city": "Paris"}."""
    return f"{tool} {json.dumps(dict(arguments), ensure_ascii=False)}"


def write_answer(content: str) -> str:
    """Return an answer written as a call is: answer {"content": "It will rain."}."""
    return write_call(ANSWER, {CONTENT: content})


def expected_calls(task: Task) -> tuple[tuple[Call, ...], ...] | None:
    """Return the expected calls of a task's steps, or None where the task has none.

    `options["calls"]` lists one {"tool": ..., "arguments": {...}} a step, a list of
    them where several are expected at once, or null where no call is expected.

    Raises:
      ValueError: it has another form; the message names the task and the step.
    """
    rows = task.options.get("calls")
    if rows is None:
        return None
    place = f"task {task.id!r}: options['calls']"
    if not isinstance(rows, list | tuple):
        raise ValueError(f"{place} must be a list, got {type(rows).__name__}")
    try:
        rows = json.loads(json.dumps(rows))  # tuples become lists
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place} must be JSON ({error})") from None
    out: list[tuple[Call, ...]] = []
    for i, row in enumerate(rows):
        several = row if isinstance(row, list | tuple) else [row] * (row is not None)
        calls = [_call(x) for x in several]
        if any(c is None or not c.valid_json for c in calls):
            form = '{"tool": name, "arguments": {...}}, a list of these or null'
            raise ValueError(f"{place}[{i}] must be {form}, got {row!r:.80}")
        out.append(tuple(c for c in calls if c is not None))
    return tuple(out)


def calls_option(actions: Iterable[str]) -> list[Any]:
    """Return `options["calls"]` of a task that these actions solve."""
    rows: list[Any] = []
    for action in actions:
        calls = [
            {"tool": c.tool, "arguments": dict(c.arguments)}
            for c in read_action(action).calls
        ]
        rows.append(calls[0] if len(calls) == 1 else calls or None)
    return rows


# --- reading -----------------------------------------------------------------


def _object(text: str) -> Call | None:
    """Return the call that is written as a JSON object, or None."""
    try:
        row = read_json(text)
    except (ValueError, RecursionError):
        # The tool stands near the beginning; a long search would take minutes.
        start = text[:_LONG]
        match = _TOOL_KEY.search(start) or _NAME_KEY.search(start)
        return Call("" if match is None else match[1] or "", {}, False)
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
    others = row.keys() - _OTHER_KEYS - {key, place}
    loose_form = place in _INPUTS or (key == "action" and place in _ARGUMENTS)
    if key in _ALSO_OTHERS and (place is None or (loose_form and others - {"id"})):
        return None  # an object that only has a name, or a person's, is an answer
    tool, arguments = row[key], {} if place is None else _decoded(row[place])
    if key in _WITH_OBJECT and not isinstance(arguments, dict):
        return None
    named = isinstance(tool, str) and bool(tool)
    # Arguments beside the tool's name are none of these forms.
    loose = place is None and others
    if not named or loose or not isinstance(arguments, dict):
        return Call(tool if named else "", {}, False)
    return Call(tool, arguments)


def _decoded(arguments: Any) -> Any:
    """Return arguments, decoded where they are JSON in a string; null is none."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments or "{}")
        except (ValueError, RecursionError):
            return arguments  # a text, which no tool takes
    return {} if arguments is None else arguments
