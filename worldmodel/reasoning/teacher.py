"""Reasoning traces by a teacher, a large model behind a chat server.

episode, with its outcome -> one question -> a plan, modes and one explanation a step
(papers.md 1.4, C.1) -> the traces of its transitions that have none.

Unlike the paper the teacher's plan, success mode and failure mode are only thought, in
front of the explanations: no record has a place for them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, numbered, quote, schema
from worldmodel.chat.retrying import Asker
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Episode
from worldmodel.reasoning.annotator import Report, missing
from worldmodel.reasoning.rule import annotate
from worldmodel.text.conversation import Message
from worldmodel.text.prompts import number_text, outcome_of

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
    """How many characters a teacher is shown of a state and may say of a step.

    An answer that makes no sense is asked for again with another seed, `retries` times.
    """

    state_chars: int = 4000
    trace_chars: int = 240
    retries: int = 2

    def __post_init__(self):
        if min(self.state_chars, self.trace_chars) < 1 or self.retries < 0:
            raise ValueError(
                "state_chars and trace_chars must be >= 1, retries >= 0, got "
                f"{dataclasses.astuple(self)}"
            )


class TeacherAnnotator:
    """Traces by a model behind a chat server, one question an episode.

    Resumable where the client has a cache: what was answered is not asked again. An
    episode without a sensible answer gets the rule's traces. Reports `annotated` and
    `fallbacks`, in episodes; those that had all their traces are in neither number.
    """

    def __init__(self, client: ChatClient, config: TeacherConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self.report = Report({"annotated": 0, "fallbacks": 0})
        self._asker = Asker(client, config.retries)

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator.

        Raises:
          ChatError: as Asker.ask.
        """
        todo = [i for i, e in enumerate(episodes) if missing(e)]
        found, problems = self._asker.ask(
            todo,
            lambda i, attempt: self._request(episodes[i], attempt),
            lambda i, text: self._read(episodes[i], text),
        )
        self.report = Report(
            {"annotated": len(found), "fallbacks": len(todo) - len(found)},
            tuple(
                f"episode {episodes[i].id!r}: {problems[i]}"
                for i in todo if i in problems
            ),
        )  # fmt: skip
        return [annotate(e, found.get(i)) for i, e in enumerate(episodes)]

    def _request(self, episode: Episode, attempt: int) -> ChatRequest:
        seed = content_seed(self._seed, attempt, episode.id)
        messages = teacher_messages(episode, state_chars=self.config.state_chars)
        return ChatRequest(messages, seed, teacher_schema(len(episode.transitions)))

    def _read(self, episode: Episode, text: str) -> tuple[str, ...]:
        most = self.config.trace_chars
        found = read_explanations(text, len(episode.transitions), most=most)
        if isinstance(found, str):
            raise ValueError(found)
        return found


def teacher_schema(count: int) -> dict[str, Any]:
    """The JSON schema of an answer: small models do not count so many steps unaided."""
    told = {"type": "array", "items": _TEXT, "minItems": count, "maxItems": count}
    return schema(**dict.fromkeys(_MODES, _TEXT), explanations=told)


def teacher_messages(episode: Episode, *, state_chars: int) -> tuple[Message, ...]:
    """The question: task, whether it succeeded, all states, actions and rewards."""
    scored = {True: "success", False: "failure", None: "not scored"}[episode.success]
    parts = [f"TASK\n{quote(episode.task.instruction)}", f"THE EPISODE: {scored}"]
    first = episode.transitions[0].state if episode.transitions else ()
    parts.append(f"STATE\n{numbered(first, state_chars)}")
    for i, t in enumerate(episode.transitions):
        outcome = "end" if t.terminated and t.success is None else outcome_of(t)
        parts.append(
            f"STEP {i + 1}\naction {quote(t.action)}\n"
            f"reward {number_text(t.reward)}\noutcome {outcome}\n"
            f"next state\n{numbered(t.next_state, state_chars)}"
        )
    parts.append(f"Explain each of the {len(episode.transitions)} steps.")
    return Message("system", _TEACHER), Message("user", "\n\n".join(parts))


def read_explanations(text: str, count: int, *, most: int) -> tuple[str, ...] | str:
    """As many one-line traces of at most `most` characters, or what is wrong.

    Never raises.
    """
    try:
        row = json_object(text, (*_MODES, "explanations"))
        for name in _MODES:
            if not isinstance(row[name], str):
                raise ValueError(f"{name} must be text")
        told = row["explanations"]
        if not isinstance(told, list) or len(told) != count:
            got = len(told) if isinstance(told, list) else type(told).__name__
            raise ValueError(f"{count} explanations were asked for, got {got}")
        return tuple(one_line(x, most) for x in told)
    except (ValueError, RecursionError) as error:
        return f"malformed: {error}"


def one_line(value: object, most: int) -> str:
    """Text in one line, cut between words where there is a place to cut.

    Raises:
      ValueError: no text, or none that says anything.
    """
    if not isinstance(value, str) or not any(map(str.isalnum, value)):
        raise ValueError("an explanation must be text")  # not the prompt's "..."
    value.encode()  # half a surrogate pair is a ValueError
    text = " ".join(value.split())
    if len(text) <= most:
        return text
    head = text[: most + 1].rpartition(" ")[0]
    return head or text[:most]
