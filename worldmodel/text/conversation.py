"""Chat conversations as token ids that only grow: sampled ids are never encoded again.

messages -> the model's own template, with a mark in place of each content -> scaffold
and contents -> ids. Control tokens are recognised in the scaffold only, never in a
content, whatever text it holds. A later turn is rendered together with all earlier
ones; the rendered text must begin with what was encoded before, and only the rest is
added. Templates that rewrite history are refused.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.text.chat_templates.sandbox import (
    TEMPLATE_ERRORS,
    compile_template,
    error_reason,
)
from worldmodel.text.tokenizer import Vocabulary

ROLES = ("system", "user", "assistant", "tool")
_MARK = re.compile("\ue000(\\d+)\ue001")  # private use: no template writes them


class TemplateError(ValueError):
    """A chat template cannot be used token by token, or refuses the messages."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    content: str


class _Piece(NamedTuple):
    """A stretch of rendered text; `is_content` where it is the content of a message."""

    text: str
    is_content: bool


class ChatTemplate:
    """The chat template of a model directory.

    Raises:
      TemplateError: the directory has no template, or one that is not valid Jinja.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        source = vocabulary.chat_template
        if source is None:
            raise TemplateError(f"{vocabulary.directory} has no chat template")
        self.name = f"the chat template of {vocabulary.directory}"
        try:
            self._template = compile_template(source)
        except TEMPLATE_ERRORS as error:
            raise TemplateError(
                f"{self.name} is not valid Jinja: {error_reason(error)}"
            ) from error
        names = "|".join(
            re.escape(t) for t in sorted(vocabulary.added, key=len, reverse=True)
        )
        self._controls = re.compile(f"({names})") if names else None

    def render(self, messages: Sequence[Message], *, prompt: bool) -> list[_Piece]:
        """Return scaffold and contents in order; a `prompt` ends where a reply begins.

        Raises:
          TemplateError: the template refuses the messages or drops a content.
        """
        marked, cores = [], []
        for number, (role, content) in enumerate(messages):
            if role not in ROLES:
                raise TemplateError(f"role must be one of {list(ROLES)}, got {role!r}")
            # Surrounding white space stays outside the mark, for templates that trim.
            core = content.strip()
            leading, trailing = content, ""
            if core:
                leading, _, trailing = content.partition(core)
            mark = f"{leading}\ue000{number}\ue001{trailing}"
            marked.append({"role": role, "content": mark})
            cores.append(core)
        special = {
            f"{n}_token": self.vocabulary.piece(ids[0]) if ids else ""
            for n, ids in self.vocabulary.ends.items()
        }
        try:
            text = self._template.render(
                messages=marked,
                add_generation_prompt=prompt,
                **special,
            )
        except TEMPLATE_ERRORS as error:
            raise TemplateError(
                f"{self.name} refused: {error_reason(error)}"
            ) from error
        parts = _MARK.split(text)  # scaffold, number, scaffold, ...
        pieces = [_Piece(parts[0], False)]
        for number, scaffold in zip(parts[1::2], parts[2::2], strict=True):
            pieces.append(_Piece(cores[int(number)], True))
            pieces.append(_Piece(scaffold, False))
        numbers = [int(n) for n in parts[1::2]]
        if numbers != list(range(len(messages))):
            raise TemplateError(
                f"{self.name} shows messages {numbers} of {len(messages)}"
            )
        return pieces

    def encode(self, pieces: Sequence[_Piece]) -> list[int]:
        """Return the ids of rendered pieces; only the scaffold has control tokens."""
        ids: list[int] = []
        plain = ""  # adjacent scaffold and content are encoded as one text
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


class Conversation:
    """A conversation as the ids that a model read and sampled.

    `ids` only grows. `sampled` is true for ids that the model sampled; `logp` holds
    their log-probabilities and 0 for all other ids.
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
        """Add a sampled turn with its ids unchanged.

        Raises:
          ValueError: it is not the model's turn, or the numbers of ids and
            log-probabilities differ.
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
        """Add messages after an answer and return the ids that they add.

        Raises:
          ValueError: the model has not answered yet, or there are no messages.
          TemplateError: the template rewrites earlier messages.
        """
        if not self._answered or not messages:
            raise ValueError("add at least one message, after an answer")
        extended = [*self._messages, Message("assistant", "answer"), *messages]
        pieces = self._template.render(extended, prompt=True)
        count = len(self._pieces)
        before, added = "".join(p.text for p in self._pieces), pieces[count:]
        # All text up to the answer must be unchanged, the end of the scaffold too.
        if "".join(p.text for p in pieces[:count]) != before:
            raise TemplateError(
                f"{self._template.name} rewrites earlier messages: a conversation "
                "could not grow by appending"
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
