"""Tool calls in actions, parsed from text and compared with the expected calls.

action -> Action: its calls, or its answer; a task's `options["calls"]` -> the expected
calls of each step; arguments of both -> a score in [0, 1].

An action is a call where the whole of it is one of
  {"tool": "weather", "arguments": {"city": "Paris"}}
  {"name": "weather", "arguments": {"city": "Paris"}}
  {"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": ..."}}
  {"type": "call", "which": "weather", "how": {"city": "Paris"}}
  weather(city="Paris", days=2)
  weather {"city": "Paris", "days": 2}
with or without <action>...</action>, <tool_call>...</tool_call> or a fence around it.
Instead of `arguments` an object may say `args`, `parameters`, `input` or `params`, and
the arguments may be a JSON object in a string, as OpenAI writes them. The importer of
OpenAI messages, and `write_call`, write the last form. A value of the form before it is
JSON, text in single quotes, or bare words. Several calls are made at once by one call a
line, by a JSON list of calls, or by several <tool_call> blocks.

An answer is one of
  {"type": "answer", "content": "It will rain."}
  answer {"content": "It will rain."}
or any other text (a command of a text game is an answer in this sense). What begins as
a call or as a JSON object and cannot be parsed is a malformed call, not an answer.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from worldmodel.data.records import Task

ANSWER = "answer"
"""The name under which an answer is written as strictly as a call (`write_answer`)."""
CONTENT = "content"
"""The key of an answer's text."""

MATCHES = ("step", "order", "assignment")
"""How calls are matched with the expected ones (call_matching.py)."""

LONG = 2000
"""Characters above which texts are compared for equality only, and behind which no
tool's name is looked for in a broken call: matching takes long."""

MAX_ACTION_WORDS = 6
"""Words of an action that a reasoning trace quotes, at most."""

_ARGUMENTS = ("arguments", "args", "parameters", "input", "params")
_KEYS = {
    "tool": _ARGUMENTS,
    "which": ("how",),
    "name": _ARGUMENTS,
    "tool_name": _ARGUMENTS,
    "function": _ARGUMENTS,
    "action": ("action_input",),
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
_INPUTS = ("input", "params")  # objects that are no calls have them as well
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
_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=\s*")
_SINGLE = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"[^,()=\"'{}\[\]]+")
_NEXT = re.compile(r"\s*(,|\Z)")
_PYTHON = {"True": True, "False": False, "None": None}  # JSON writes them otherwise


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


def read_action(action: str) -> Action:
    """Return the calls or the answer of an action. Never raises."""
    text = _without_wrapper(action)
    if _CALL_TAG.match(text) and not _CALL_TAG.sub("", text):  # one block a call
        text = "\n".join(call.strip() for call in _CALL_TAG.findall(text))
    calls = _calls(text)
    if calls is None:
        return Action((), _answer(text) or None)
    if len(calls) == 1 and calls[0].tool == ANSWER:
        content = calls[0].arguments.get(CONTENT)
        if calls[0].arguments.keys() == {CONTENT} and isinstance(content, str):
            return Action((), content.strip() or None)
    return Action(calls, None)


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
        rows = _json(text)
    except (ValueError, RecursionError):
        return (Call("", {}, False),) if _OBJECT_LIST.match(text) else None
    calls = [_call(row) for row in rows] if isinstance(rows, list) else []
    return tuple(c for c in calls if c) if calls and None not in calls else None


def _one(text: str) -> Call | None:
    """Return the one call that a text is, or None."""
    if text.startswith("{"):
        return _object(text)
    if spaced := _SPACED.fullmatch(text):
        return _spaced(*spaced.groups())
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
        arguments = _json(text)
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
        row = _json(text)
    except (ValueError, RecursionError):
        # The tool stands near the beginning; a long search would take minutes.
        start = text[:LONG]
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
    if key in _ALSO_OTHERS and (
        place is None or (place in _INPUTS and others - {"id"})
    ):
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
    """Return arguments, decoded where they are a JSON object in a string."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return _json(arguments or "{}")
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    """Return a number; JSON allows 1e999, which is infinite."""
    if math.isfinite(value := float(text)):
        return value
    raise ValueError(f"{text} is too large a number")


_DECODER = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def _json(text: str) -> Any:
    """Return the value of a JSON text of finite numbers; raises ValueError."""
    return _DECODER.decode(text)


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
    text = bare[0].strip()
    if text in _PYTHON:
        return _PYTHON[text], bare.end()
    try:
        return _json(text), bare.end()
    except ValueError:
        return text, bare.end()
