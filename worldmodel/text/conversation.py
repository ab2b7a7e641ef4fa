"""Conversations as ids that only grow: what was sampled is never encoded again.

messages -> the model's own template, with a mark in place of each content -> scaffold
and contents -> ids. Scaffold is read with control tokens, a content never is, whatever
it imitates. A later turn is rendered with all earlier ones, must begin with what stands
there already (templates that rewrite history are refused), and only its rest is added.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jinja2
import jinja2.sandbox

from worldmodel.text.tokenizer import Vocabulary

ROLES = ("system", "user", "assistant", "tool")
_MARK = re.compile("\ue000(\\d+)\ue001")  # private use: no template writes them


class TemplateError(ValueError):
    """A template that cannot be used token by token, or messages that it refuses."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


class _Piece(NamedTuple):
    """A stretch of rendered text; `outside` if it is a message's content."""

    text: str
    is_content: bool


class ChatTemplate:
    """A model directory's chat template.

    Raises:
      TemplateError: the directory has none, or it is no Jinja.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        source = vocabulary.chat_template
        if source is None:
            raise TemplateError("this model directory has no chat template")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )  # fmt: skip
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template is no Jinja: {error}") from error
        names = "|".join(
            re.escape(t) for t in sorted(vocabulary.added, key=len, reverse=True)
        )
        self._controls = re.compile(f"({names})") if names else None

    def render(self, messages: Sequence[Message], *, prompt: bool) -> list[_Piece]:
        """Scaffold and contents in order; with `prompt` up to where a reply begins.

        Raises:
          TemplateError: the template refuses the messages, or drops a content.
        """
        marked, cores = [], []
        for number, (role, content) in enumerate(messages):
            if role not in ROLES:
                raise TemplateError(f"role must be one of {list(ROLES)}, got {role!r}")
            # White space around stays, for templates that trim.
            core = content.strip()
            leading, _, trailing = (
                content.partition(core) if core else (content, "", "")
            )
            mark = f"{leading}\ue000{number}\ue001{trailing}"
            marked.append({"role": role, "content": mark})
            cores.append(core)
        special = {
            f"{n}_token": self.vocabulary.piece(ids[0]) if ids else ""
            for n, ids in self.vocabulary.ends.items()
        }
        try:
            text = self._template.render(
                messages=marked, add_generation_prompt=prompt, **special
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"the chat template refused: {error}") from error
        parts = _MARK.split(text)  # scaffold, number, scaffold, ...
        pieces = [_Piece(parts[0], False)]
        for number, scaffold in zip(parts[1::2], parts[2::2], strict=True):
            pieces.append(_Piece(cores[int(number)], True))
            pieces.append(_Piece(scaffold, False))
        numbers = [int(n) for n in parts[1::2]]
        if numbers != list(range(len(messages))):
            raise TemplateError(
                f"the chat template shows messages {numbers} of {len(messages)}"
            )
        return pieces

    def encode(self, pieces: Sequence[_Piece]) -> list[int]:
        """Ids of rendered pieces: control tokens from the scaffold only."""
        ids: list[int] = []
        plain = ""  # scaffold and content that touch are one text, as if never split
        for text, is_content in pieces:
            parts = [text]
            if not is_content and self._controls is not None:
                parts = self._controls.split(text)
            for place, part in enumerate(parts):
                if place % 2:
                    ids += self.vocabulary.encode(plain)
                    ids.append(self.vocabulary.added[part])
                    plain = ""
                else:
                    plain += part
        return ids + self.vocabulary.encode(plain)


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


class Conversation:
    """A conversation as the ids that a model saw and sampled.

    `ids` only grows; `sampled` is true where the model wrote, and `logp` holds the
    log-probability there, 0 elsewhere.
    """

    def __init__(self, template: ChatTemplate, messages: Sequence[Message]):
        if not messages:
            raise TemplateError("a conversation begins with at least one message")
        self._template, self._messages = template, list(messages)
        self._pieces = template.render(self._messages, prompt=True)
        self.ids = template.encode(self._pieces)
        self.sampled = [False] * len(self.ids)
        self.logp = [0.0] * len(self.ids)
        self._answered = False

    def answer(self, ids: Sequence[int], logp: Sequence[float]) -> None:
        """Add a sampled turn, just as it was sampled.

        Raises:
          ValueError: not the model's turn, or not one log-probability an id.
        """
        if self._answered:
            raise ValueError("the model has answered: add messages first")
        if len(ids) != len(logp) or not ids:
            raise ValueError(f"got {len(ids)} ids and {len(logp)} log-probabilities")
        self.ids += [int(i) for i in ids]
        self.sampled += [True] * len(ids)
        self.logp += [float(x) for x in logp]
        self._answered = True

    def add(self, messages: Sequence[Message]) -> list[int]:
        """Add messages after an answer; returns the ids that this adds.

        Raises:
          ValueError: the model has not answered yet, or no messages.
          TemplateError: the template rewrites what stands there already.
        """
        if not self._answered or not messages:
            raise ValueError("messages are added after an answer, one at least")
        extended = [*self._messages, Message("assistant", "answer"), *messages]
        pieces = self._template.render(extended, prompt=True)
        count = len(self._pieces)
        before, added = "".join(p.text for p in self._pieces), pieces[count:]
        # Up to the answer the text must be what it was, at the end of the scaffold too.
        if "".join(p.text for p in pieces[:count]) != before:
            raise TemplateError(
                "the chat template rewrites earlier messages: a conversation could not "
                "grow by appending"
            )
        rest = self._template.encode(added[1:])
        ends = self._template.vocabulary.ends["eos"]
        if self.ids[-1] in ends and rest[:1] == self.ids[-1:]:
            rest = rest[1:]  # the model wrote the end of its turn itself
        old = list(self.ids)
        self.ids += rest
        self.sampled += [False] * len(rest)
        self.logp += [0.0] * len(rest)
        assert self.ids[: len(old)] == old, "a conversation may only grow"
        self._messages, self._pieces, self._answered = extended, pieces, False
        return rest
