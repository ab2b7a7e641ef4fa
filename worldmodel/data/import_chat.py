"""Import episodes from chat conversations: OpenAI-style messages and AgentGym's.

messages -> the messages before the agent's first turn -> turns (an action and what
followed it) -> steps. Nothing is invented: without a success field `success` is None,
without a reward there is none, and an action that no message follows, be it a text or
calls, leaves the state unchanged. docs/reference/episodes.md shows both formats.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.import_common import build, name_of, number, task_row
from worldmodel.data.json_reading import RecordError, Where, check_type, field
from worldmodel.data.records import Episode, State, lines
from worldmodel.text.tools.tool_calls import Call, read_action
from worldmodel.text.tools.tool_schemas import ToolSchema, call_error, schemas_of

_LINE = re.IGNORECASE | re.DOTALL | re.MULTILINE
_ACTION = re.compile(r"(.*?)^[ \t]*Action:\s*(\S.*)\Z", _LINE)
_THOUGHT = re.compile(r"\A\s*Thought:", re.IGNORECASE)
_PROMISE = re.compile(r"\A\s*ok\b.*\b(?:follow|instructions?|my best)\b", _LINE)
MAX_ARGUMENT_NESTING = 32
"""The most lists and objects inside each other in the arguments of an expected call."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TOOLS = ("tool", "function")  # `function` answers the older `function_call`


class _Turn(NamedTuple):
    """An action and the texts that followed it, each with its position among them.

    `calls` holds the ids that results may refer to, in order; it is empty where a call
    has no id. `made` holds the calls as objects, None for one that cannot be read.
    """

    action: str
    thought: str | None
    observations: list[tuple[int, str]]
    calls: tuple[str, ...] = ()
    made: tuple[dict[str, Any] | None, ...] = ()

    def then(self, other: "_Turn") -> "_Turn":
        """Merge two turns whose calls were made before any of them was answered."""
        thoughts = [x.thought for x in (self, other) if x.thought]
        return _Turn(
            f"{self.action}\n{other.action}",
            "\n".join(thoughts) or None,
            [],
            self.calls + other.calls,
            self.made + other.made,
        )


def _set_outcome(row: Any, where: Where, steps: list[dict[str, Any]]) -> None:
    """Put the outcome of a whole conversation on its last step.

    `reward` or `score` becomes a component of that name. A success ends the episode
    unless the row says otherwise; of any other conversation it is unknown how it ended.
    """
    last = steps[-1]
    reward_keys = [
        k for k in ("reward", "score") if field(row, k, object, where, None) is not None
    ]
    if len(reward_keys) == 2:
        raise where.at("score").error("reward or score, not both", row["score"])
    for key in reward_keys:
        last["rewards"] = {key: number(row[key], where.at(key))}
    won = last["success"] = field(row, "success", bool, where, None)
    last["truncated"] = field(row, "truncated", bool, where, False)
    ended = won is True and not last["truncated"]
    last["terminated"] = field(row, "terminated", bool, where, ended)


def _steps(state: State, turns: Sequence[_Turn]) -> list[dict[str, Any]]:
    """Return turns as steps; a turn without observations leaves the state unchanged."""
    steps = []
    for turn in turns:
        observation_lines = [
            text for _, text in sorted(turn.observations, key=lambda x: x[0])
        ]
        then = lines("\n".join(observation_lines)) if observation_lines else state
        steps.append(
            {
                "state": list(state),
                "action": turn.action,
                "next_state": list(then),
                "rewards": {},
                "thought": turn.thought,
            }
        )
        state = then
    return steps


# --- OpenAI-style messages ---------------------------------------------------


_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
}
"""Types of the parts of a message that hold text, and where it stands."""


def _content(message: Any, where: Where) -> str | None:
    """Return the text of a message: a string, text parts (one a line), or a refusal."""
    value = field(message, "content", object, where, None)
    if value in (None, "", []):
        return field(message, "refusal", str, where, None) or value
    if isinstance(value, str):
        return value
    content_place = where.at("content")
    out = []
    for i, part in enumerate(check_type(value, list, content_place)):
        at = content_place.at(f"[{i}]")
        kind = field(part, "type", str, at)
        if kind not in _TEXT_PARTS:
            expected = "a part of type 'text', 'input_text', 'output_text' or 'refusal'"
            raise at.error(expected, part)
        out.append(field(part, _TEXT_PARTS[kind], str, at))
    return "\n".join(out)


def _call(call: Any, where: Where) -> tuple[str, dict[str, Any] | None]:
    """Return a tool call as `name {"argument": value}` with sorted keys, and as object.

    Arguments that are not valid JSON are kept as the model wrote them; such a call is
    no object.
    """
    if isinstance(call, dict) and call.get("type") == "custom":
        custom, place = field(call, "custom", dict, where), where.at("custom")
        name = field(custom, "name", str, place)
        arguments = {"input": field(custom, "input", str, place)}
        text = json.dumps(arguments, ensure_ascii=False)
        return f"{name} {text}", {"tool": name, "arguments": arguments}
    function = field(call, "function", dict, where)
    function_place = where.at("function")
    name = field(function, "name", str, function_place)
    arguments = field(function, "arguments", object, function_place, None)
    arguments = {} if arguments is None else arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return f"{name} {arguments}", None
    else:
        arguments = check_type(arguments, dict, function_place.at("arguments"))
    try:
        text = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise function_place.at("arguments").error(
            f"JSON ({error})", type(arguments)
        ) from None
    row = {"tool": name, "arguments": arguments}
    return f"{name} {text}", row if _is_expectable(arguments) else None


def _is_expectable(arguments: Any) -> bool:
    """Return whether arguments can stand in the options of a task."""
    level, numbers = [arguments], []
    for _ in range(MAX_ARGUMENT_NESTING):
        numbers += [x for x in level if isinstance(x, float)]
        level = [
            inner
            for x in level
            if isinstance(x, dict | list)
            for inner in (x.values() if isinstance(x, dict) else x)
        ]
    finite = all(math.isfinite(x) for x in numbers)
    return isinstance(arguments, dict) and finite and not level


def _assistant(message: Any, where: Where) -> _Turn:
    text = (_content(message, where) or "").strip()
    calls = field(message, "tool_calls", list, where, None)
    old = field(message, "function_call", dict, where, None)
    if old is not None and not calls:
        calls = [{"function": old}]
    if not calls:
        if not text:
            raise where.error("content or tool_calls", message)
        return _Turn(text, None, [])
    texts, ids, made = [], [], []
    for i, call in enumerate(calls):
        call_place = where.at(f"tool_calls[{i}]")
        text_of_call, row = _call(call, call_place)
        texts.append(text_of_call)
        made.append(row)
        call_id = field(call, "id", str, call_place, None) or None
        if call_id is not None and call_id in ids:
            raise call_place.at("id").error("an id of its own", call_id)
        ids.append(call_id)
    named = () if None in ids else tuple(ids)
    return _Turn("\n".join(texts), text or None, [], named, tuple(made))


def _expected_calls(
    turns: Sequence[_Turn], schemas: Mapping[str, ToolSchema] | None, won: bool | None
) -> list[Any] | None:
    """Return the recorded calls of each turn as those that the task expects.

    Calls that cannot be read, or that their tool's schema refuses, are left out. A won
    conversation that lists tools and makes no call expects none. None where nothing is
    to go by: after a failure, and where no call is left.
    """
    if won is False:
        return None
    if not any(turn.made for turn in turns):
        calls = [call for turn in turns for call in read_action(turn.action).calls]
        return [None] * len(turns) if won and schemas and not calls else None
    rows: list[Any] = []
    for turn in turns:
        fit = [row for row in turn.made if row is not None and _fits(row, schemas)]
        rows.append(fit[0] if len(fit) == 1 else fit or None)
    return rows if any(rows) else None


def _fits(row: Mapping[str, Any], schemas: Mapping[str, ToolSchema] | None) -> bool:
    """Return whether a call is one of the listed tools, where there are any."""
    call = Call(row["tool"], row["arguments"])
    return schemas is None or call_error(call, schemas) is None


def _tool_options(
    row: Any, where: Where
) -> tuple[dict[str, Any], dict[str, ToolSchema] | None]:
    """Return the task's options from a row, and the tools among them by name."""
    options = {k: row[k] for k in ("tools", "metadata") if row.get(k) is not None}
    key = "tools"
    if key not in options and row.get("functions") is not None:
        key = "functions"  # the older name, with `function_call`
        options["tools"] = row[key]
    if "tools" not in options:
        return options, None
    try:
        return options, schemas_of(options["tools"], key)
    except ValueError as error:
        raise RecordError(f"{where.path}:{where.line}: {error}") from None


def _place(turn: _Turn, message: Any, where: Where) -> int:
    """Return the position of a tool's message: that of the call it answers."""
    call_id = field(message, "tool_call_id", str, where, None)
    if call_id is None or not turn.calls:
        return len(turn.calls)
    if call_id not in turn.calls:
        raise where.at("tool_call_id").error(f"one of {sorted(turn.calls)}", call_id)
    return turn.calls.index(call_id)


def _require_answers(turns: Sequence[_Turn], where: Where) -> None:
    """Raise for a turn of which some calls are answered and others are not."""
    for turn in turns:
        answered = {place for place, _ in turn.observations} - {len(turn.calls)}
        if answered and len(answered) < len(turn.calls):
            lacking = [c for i, c in enumerate(turn.calls) if i not in answered]
            raise where.at("messages").error(
                "an answer to each of the calls of a turn, or to none",
                f"none to {', '.join(lacking)}",
            )


def from_openai(row: Any, where: Where, name: str) -> Episode:
    """Import an object with `messages`.

    The messages before the first assistant turn are the instruction, each assistant
    turn is an action, and the messages behind it are the next state.

    Args:
      row: the parsed object.
      where: its place in the file, for errors.
      name: the episode's id where the object has none.

    Raises:
      RecordError: an unknown role, a message without text, no assistant turn, tools of
        no sense, ...
    """
    before: list[tuple[str, str]] = []
    turns: list[_Turn] = []
    messages = field(row, "messages", list, where)
    named = [x.get("tool_call_id") for x in messages if isinstance(x, dict)]
    answer_ids = {x for x in named if isinstance(x, str)}
    for i, message in enumerate(messages):
        message_place = where.at(f"messages[{i}]")
        role = field(message, "role", str, message_place)
        if role not in _ROLES:
            raise message_place.at("role").error(f"one of {', '.join(_ROLES)}", role)
        if role == "assistant":
            turn = _assistant(message, message_place)
            # Calls that are answered later belong to one turn with this message's.
            waits = (
                turns and not turns[-1].observations and answer_ids & {*turns[-1].calls}
            )
            turns.append(turns.pop().then(turn) if waits and turn.calls else turn)
            continue
        text = _content(message, message_place)
        if text is None and role in _TOOLS:
            text = ""
        if text is None:
            raise message_place.at("content").error("text", text)
        place = len(turns[-1].calls) if turns else 0
        if role in _TOOLS:
            if not turns:
                raise message_place.error(
                    "an assistant turn before a tool's message", role
                )
            place = _place(turns[-1], message, message_place)
        if turns:
            turns[-1].observations.append((place, text))
        else:
            before.append((role, text))
    _require_answers(turns, where)
    if not turns or not before:
        missing = "a user message before the first" if turns else "at least one"
        raise where.at("messages").error(f"{missing} assistant turn", row["messages"])
    user_texts = [text for role, text in before if role == "user"]
    system = [text for role, text in before if role != "user"]
    state = lines("\n".join(user_texts or system))
    steps = _steps(state, turns)
    _set_outcome(row, where, steps)
    success = field(row, "success", bool, where, None)
    options, schemas = _tool_options(row, where)
    if calls := _expected_calls(turns, schemas, success):
        options["calls"] = calls
    task = task_row(
        row,
        where,
        id=name_of(row, "task_id", where, "") or None,
        instruction="\n".join(system + user_texts),
        state=state,
    )
    return build(
        row,
        where,
        name=name,
        source="openai",
        task=task | {"options": options},
        transitions=steps,
        success=success,
    )


# --- AgentGym conversations --------------------------------------------------


def _promises(text: str) -> bool:
    """Return whether a text like "OK. I'll follow your instructions" is no action."""
    return bool(_PROMISE.match(text)) and not _ACTION.match(text)


def _thought_and_action(text: str) -> tuple[str | None, str]:
    """Split "Thought: a / Action: b" into (a, b) at the first line with an action.

    A turn without such a line is an action as a whole.
    """
    match = _ACTION.match(text)
    if not match:
        return None, text.strip()
    thought = _THOUGHT.sub("", match[1]).strip()
    return thought or None, match[2].strip()


def from_agentgym(row: Any, where: Where, name: str) -> Episode:
    """Import an object with `conversations` of human and gpt, AgentGym's format.

    The first human text is the instruction; a first gpt turn that only promises to
    follow it is skipped. Arguments and errors are those of from_openai; `item_id` is
    the task's id.
    """
    messages = field(row, "conversations", list, where)
    speakers = [
        str(field(x, "from", str, where.at(f"conversations[{i}]")))
        for i, x in enumerate(messages)
    ]
    before: list[str] = []
    turns: list[_Turn] = []
    for i, (message, speaker) in enumerate(zip(messages, speakers, strict=True)):
        message_place = where.at(f"conversations[{i}]")
        text = field(message, "value", str, message_place)
        if speaker not in ("human", "gpt"):
            raise message_place.at("from").error("human or gpt", speaker)
        if speaker == "human":
            if turns:
                turns[-1].observations.append((0, text))
            else:
                before.append(text)
            continue
        if not before:
            raise message_place.at("from").error("a human turn first", speaker)
        no_loss = field(message, "loss", object, message_place, None) is False
        if i == 1 and speakers[2:3] == ["human"] and (no_loss or _promises(text)):
            continue
        if not text.strip():
            raise message_place.at("value").error("text", text)
        thought, action = _thought_and_action(text)
        turns.append(_Turn(action, thought, []))
    if not turns:
        raise where.at("conversations").error(
            "at least one gpt turn that acts", messages
        )
    instruction, *observation_lines = before
    state = lines("\n".join(observation_lines or [instruction]))
    steps = _steps(state, turns)
    _set_outcome(row, where, steps)
    task = task_row(
        row,
        where,
        id=name_of(row, "item_id", where, "") or None,
        instruction=instruction,
        state=state,
    )
    return build(
        row,
        where,
        name=name,
        source="agentgym",
        task=task,
        transitions=steps,
        success=field(row, "success", bool, where, None),
    )
