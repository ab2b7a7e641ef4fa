"""Prompts for a large model behind a chat server, and strict parsing of its replies.

query, demonstrations -> messages (DreamGym, Eq. 4); a JSON object -> Reply. Text of the
environment is quoted as JSON strings, so that text which imitates an answer or a
heading stays text. The answer holds the next state in full rather than an edit script,
because large models copy well.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from worldmodel.chat.protocol import ChatReply
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.data.outcomes import OUTCOMES, number_text, outcome_of
from worldmodel.data.records import State, Transition
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import Query
from worldmodel.text.conversation import Message
from worldmodel.text.prompts import Reply, last_actions

_FIELDS = ("reasoning", "next_state", "reward", "outcome")
_LINES = {"type": "array", "items": {"type": "string"}}
_TEXT = {"type": "string"}

PREDICT_SCHEMA = schema(
    reasoning=_TEXT,
    next_state=_LINES,
    reward={"type": "number"},
    outcome={"type": "string", "enum": list(OUTCOMES)},
)
VARY_SCHEMA = schema(instruction=_TEXT, initial_state=_LINES)

_PREDICT = f"""\
You are the world model of a text environment. An agent acts in it, and you say what
its action leads to. A state is a list of lines of text; the number before a line is not
part of it. Examples are real transitions of the same kind of environment: keep to their
rules and to their form.
{QUOTING}
Answer with one JSON object and nothing else:
{{"reasoning": "...", "next_state": ["...", "..."], "reward": 0, "outcome": "go"}}
reasoning: first, in a few words, what the action does in this state and why.
next_state: every line of the state after the action, in full and in order; lines that
do not change are copied letter by letter. An action that cannot be done changes only
what the environment says of it.
reward: what this step earns, a number; 0 unless rules or examples say otherwise.
outcome: "win" if the task is now done, "lose" if it has failed for good, else "go"."""

_VARY = f"""\
You write tasks for an agent in a text environment. Shown tasks with their initial
states, and how often the agent wins them, write a new one: of the same kind, a copy of
none, different in what is asked or in where things are. It must be feasible from the
initial state that you write, and as hard as a task that the agent wins every second
time: harder than those that it always wins, easier than those that it never wins. A
state is a list of lines of text; the number before a line is not part of it. Keep to
the form of the lines.
{QUOTING}
Answer with one JSON object and nothing else:
{{"instruction": "...", "initial_state": ["...", "..."]}}"""


# --- prompts -------------------------------------------------------------------


def _demo(number: int, demo: Transition, chars: int) -> str:
    rows = [f"EXAMPLE {number}", "state", number_lines(demo.state, chars)]
    rows.append(f"action {quote(demo.action)}")
    if demo.reasoning:
        rows.append(f"why {quote(demo.reasoning)}")
    rows += ["next state", number_lines(demo.next_state, chars)]
    rows += [f"reward {number_text(demo.reward)}", f"outcome {outcome_of(demo)}"]
    return "\n".join(rows)


def predict_messages(
    query: Query, demos: Sequence[Transition], *, history: int, demo_chars: int
) -> tuple[Message, ...]:
    """Return the prompt of Eq. 4: demonstrations, task, past actions, state, action."""
    parts = [_demo(i + 1, d, demo_chars) for i, d in enumerate(demos)]
    past = [quote(a) for a in last_actions(query.past, history)]
    parts += [
        f"TASK\n{quote(query.task.instruction)}",
        "\n".join(["EARLIER ACTIONS, oldest first", *(past or ["none"])]),
        f"STATE\n{number_lines(query.state)}",
        f"ACTION\n{quote(query.action)}",
    ]
    return Message("system", _PREDICT), Message("user", "\n\n".join(parts))


def vary_messages(group: Sequence[SeedTask]) -> tuple[Message, ...]:
    """Return the prompt of Eq. 6: seed tasks with their initial states and success."""
    return Message("system", _VARY), Message("user", "\n\n".join(map(_seed, group)))


def _seed(seed: SeedTask) -> str:
    task, success = seed
    won = "not tried yet" if success is None else f"in {100 * success:.0f} % of tries"
    state = number_lines(task.initial_state)
    return f"TASK\n{quote(task.instruction)}\n\nWON\n{won}\n\nSTATE\n{state}"


# --- replies -------------------------------------------------------------------


class Variation(NamedTuple):
    """A task as the model wrote it."""

    instruction: str
    state: State


def _state(value: Any, name: str) -> State:
    """Return the lines that are not empty, each one line of text; raises ValueError."""
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of lines, got {value!r:.60}")
    rows = [_line(x, f"a line of {name}").rstrip() for x in value]
    return tuple(x for x in rows if x)


def _line(value: Any, name: str) -> str:
    text = _text(value, name)
    if len(text.splitlines()) > 1:
        raise ValueError(f"{name} must be one line of text, got {value!r:.60}")
    return text


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {value!r:.60}")
    value.encode()  # half a surrogate pair is a ValueError here
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"reward must be a number, got {value!r:.60}")
    if not abs(value) < 1e308:
        raise ValueError("reward is not finite")
    return float(value)


def read_reply(text: str) -> Reply:
    """Parse an answer strictly. Never raises: a malformed answer has an `error`."""
    try:
        row = json_object(text, _FIELDS)
        outcome = row["outcome"]
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome must be one of {OUTCOMES}, got {outcome!r:.60}")
        return Reply(
            _text(row["reasoning"], "reasoning"),
            _state(row["next_state"], "next_state"),
            _number(row["reward"]),
            outcome,
            None,
        )
    except (ValueError, RecursionError) as error:
        return Reply("", (), 0.0, "go", f"malformed: {error}")


def read_variation(text: str, *, has_instruction: bool = True) -> Variation | None:
    """Return a task and its initial state, or None where the reply is malformed.

    Without `has_instruction` the instruction may be empty.
    """
    try:
        row = json_object(text, ("instruction", "initial_state"))
        instruction = _line(row["instruction"], "instruction").strip()
        state = _state(row["initial_state"], "initial_state")
        well_formed = state and (instruction or not has_instruction)
        return Variation(instruction, state) if well_formed else None
    except (ValueError, RecursionError):
        return None


def confidence(reply: ChatReply) -> float:
    """Return the probability of everything behind the reasoning of a parsed reply.

    NaN where the server sent no log-probabilities, or where the reasoning does not come
    first.
    """
    text = reply.text
    # Quotes inside strings are escaped, so that only keys are found.
    key_positions = [text.find(f'"{name}"') for name in _FIELDS[1:]]
    reasoning_first = text.startswith(f'"{_FIELDS[0]}"', max(text.find('"'), 0))
    if reply.tokens is None or not reasoning_first or min(key_positions) < 0:
        return math.nan
    at, begin, total = len(text[: min(key_positions)].encode(errors="replace")), 0, 0.0
    for token in reply.tokens:
        if begin >= at:
            total += token.logp
        begin += token.size
    return math.exp(total)
