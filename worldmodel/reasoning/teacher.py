"""Reasoning traces by a teacher, a large model behind a chat server.

episode with its outcome -> one question -> a plan, modes and one explanation a step
(DreamGym, Appendix C.1) -> the traces of its transitions that have none.

Unlike in the paper, the teacher's plan, success mode and failure mode are only written
before the explanations and not stored, because no record has a field for them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import number_text, outcome_of
from worldmodel.data.records import Episode, Transition
from worldmodel.reasoning.annotator import Report, missing_traces
from worldmodel.reasoning.rule import annotate
from worldmodel.text.conversation import Message

_MODES = ("overall_plan", "success_mode", "failure_mode")
_TEXT = {"type": "string"}

_TEACHER = f"""\
You explain episodes of an agent in a text environment to a student who has to learn
what actions lead to. You see the task, every state, every action and how it ended. A
state is a list of lines; the number before a line is not part of it.
{QUOTING}
Answer with one JSON object and nothing else:
{{"overall_plan": "...", "success_mode": "...", "failure_mode": "...", \
"explanations": ["...", "..."]}}
overall_plan: how the task is solved, in one or two sentences.
success_mode: what makes an attempt at it succeed, and where this episode did so.
failure_mode: what makes an attempt fail or waste steps, and where this episode did so.
explanations: one for each step, in order. Each says in one short sentence why this
action in this state leads to this next state and reward, such that the next state could
be foretold from it. Name things as the states do. Say nothing of later steps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """What a teacher reads and writes."""

    state_chars: int = 4000
    """Characters of a state that it reads, at most."""
    trace_chars: int = 240
    """Characters of a trace, at most."""
    retries: int = 2
    """Times that a malformed answer is asked for again with another seed."""

    def __post_init__(self):
        if min(self.state_chars, self.trace_chars) < 1 or self.retries < 0:
            raise ValueError(
                "state_chars and trace_chars must be >= 1, retries >= 0, got "
                f"{dataclasses.astuple(self)}"
            )


class TeacherAnnotator:
    """Writes traces with a model behind a chat server, one question an episode.

    A client with a cache makes it resumable. An episode without a well-formed answer
    gets the rule's traces. Reports `annotated` and `fallbacks` in episodes; episodes
    that had all their traces count in neither.
    """

    def __init__(self, client: ChatClient, config: TeacherConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self.report = Report({"annotated": 0, "fallbacks": 0})
        self._retrying = RetryingClient(client, config.retries)

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator.

        Raises:
          ChatError: as RetryingClient.ask.
        """
        todo = [i for i, e in enumerate(episodes) if missing_traces(e)]
        traces, problems = self._retrying.ask(
            todo,
            lambda i, attempt: self._request(episodes[i], attempt),
            lambda i, text: self._read(episodes[i], text),
        )
        self.report = Report(
            {"annotated": len(traces), "fallbacks": len(todo) - len(traces)},
            tuple(
                f"episode {episodes[i].id!r}: {problems[i]}"
                for i in todo
                if i in problems
            ),
        )
        return [annotate(e, traces.get(i)) for i, e in enumerate(episodes)]

    def _request(self, episode: Episode, attempt: int) -> ChatRequest:
        seed = content_seed(self._seed, attempt, episode.id)
        messages = teacher_messages(episode, state_chars=self.config.state_chars)
        return ChatRequest(messages, seed, teacher_schema(len(episode.transitions)))

    def _read(self, episode: Episode, text: str) -> tuple[str, ...]:
        max_chars = self.config.trace_chars
        traces = read_explanations(text, len(episode.transitions), max_chars=max_chars)
        if isinstance(traces, str):
            raise ValueError(traces)
        return traces


def teacher_schema(count: int) -> dict[str, Any]:
    """Return the JSON schema of an answer, with the number of steps.

    Small models do not count so many steps without it.
    """
    items = {"type": "array", "items": _TEXT, "minItems": count, "maxItems": count}
    return schema(**dict.fromkeys(_MODES, _TEXT), explanations=items)


def teacher_messages(episode: Episode, *, state_chars: int) -> tuple[Message, ...]:
    """Return the prompt: task, success, and all states, actions and rewards."""
    scored = {True: "success", False: "failure", None: "not scored"}[episode.success]
    parts = [f"TASK\n{quote(episode.task.instruction)}", f"THE EPISODE: {scored}"]
    first = episode.transitions[0].state if episode.transitions else ()
    parts.append(f"STATE\n{number_lines(first, state_chars)}")
    for i, t in enumerate(episode.transitions):
        parts.append(
            f"STEP {i + 1}\naction {quote(t.action)}\n"
            f"reward {number_text(t.reward)}\noutcome {_outcome(t)}\n"
            f"next state\n{number_lines(t.next_state, state_chars)}"
        )
    parts.append(f"Explain each of the {len(episode.transitions)} steps.")
    return Message("system", _TEACHER), Message("user", "\n\n".join(parts))


def _outcome(t: Transition) -> str:
    return "end" if t.terminated and t.success is None else outcome_of(t)


def read_explanations(
    text: str, count: int, *, max_chars: int
) -> tuple[str, ...] | str:
    """Return `count` one-line traces of at most `max_chars` characters, or the error.

    Never raises.
    """
    try:
        row = json_object(text, (*_MODES, "explanations"))
        for name in _MODES:
            if not isinstance(row[name], str):
                raise ValueError(f"{name} must be text")
        explanations = row["explanations"]
        if not isinstance(explanations, list) or len(explanations) != count:
            actual = (
                len(explanations)
                if isinstance(explanations, list)
                else type(explanations).__name__
            )
            raise ValueError(f"{count} explanations were asked for, got {actual}")
        return tuple(one_line(x, max_chars) for x in explanations)
    except (ValueError, RecursionError) as error:
        return f"malformed: {error}"


def one_line(value: object, max_chars: int) -> str:
    """Return text in one line, cut between words where possible.

    Raises:
      ValueError: the value is no text, or has no letter or digit.
    """
    if not isinstance(value, str) or not any(map(str.isalnum, value)):
        raise ValueError("an explanation must be text")  # not the prompt's "..."
    value.encode()  # half a surrogate pair is a ValueError
    text = " ".join(value.split())
    if len(text) <= max_chars:
        return text
    head = text[: max_chars + 1].rpartition(" ")[0]
    return head or text[:max_chars]
