"""Chat conversations as token ids that only grow: sampled ids are never encoded again.

messages -> the model's own template, with a mark in place of each content -> scaffold
and contents -> ids. Control tokens are recognised in the scaffold only, never in a
content, whatever text it holds. A later turn is rendered together with all earlier
ones; the rendered text must begin with what was encoded before, and only the rest is
added. Templates that rewrite history are refused.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jinja2
import jinja2.nodes
import jinja2.sandbox

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


MAX_ITERATIONS = 100_000
"""The most iterations of all loops in one rendering of a template."""

MAX_TEMPLATE_TEXT = 10_000_000
"""The most characters of a text that a template makes, and of the template itself."""

MAX_WIDTH = 1000
"""The most blanks that a template puts before or around a text."""

# What a template of somebody else may raise: it runs code, though in a sandbox.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
    AssertionError,
    RuntimeError,
)


class _BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox in which loops, texts and powers are bounded.

    The sandbox of Jinja bounds one `range`, but not loops inside each other.
    """

    intercepted_binops = frozenset(["+", "*", "**", "%", "//"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation whose result is not too large."""
        sizes = [len(x) if hasattr(x, "__len__") else 1 for x in (left, right)]
        numbers = [x for x in (left, right) if isinstance(x, int)]
        texts = any(hasattr(x, "__len__") for x in (left, right))
        if operator == "*" and texts and numbers:
            sizes.append(max(sizes) * max(numbers))
        bad_power = operator == "**" and any(abs(x) > 1000 for x in numbers)
        bad_format = operator == "%" and isinstance(left, str) and "%" in left
        bad_format = bad_format and re.search(r"%[^a-zA-Z%]*(\d{4}|\*)", left)
        if bad_power or bad_format or sum(sizes) > MAX_TEMPLATE_TEXT:
            raise jinja2.TemplateError(f"the result of {operator!r} is not bounded")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, unless it is a method that makes a huge text.

        One such call computes for minutes in C, where nothing can stop it.
        """
        method = getattr(obj, "__wrapped__", obj)  # Jinja wraps str.format
        text, name = (getattr(method, x, "") for x in ("__self__", "__name__"))
        if isinstance(text, str):
            if _made_size(text, name, [*args, *kwargs.values()]) > MAX_TEMPLATE_TEXT:
                raise jinja2.TemplateError(f"the result of {name!r} is not bounded")
        return super().call(context, obj, *args, **kwargs)

    def bounded_template(self, source: str) -> jinja2.Template:
        """Return a template whose loops and joined texts are counted."""
        if len(source) > MAX_TEMPLATE_TEXT:
            raise jinja2.TemplateError(f"it has {len(source):,} characters")
        tree = self.parse(source)
        for loop in list(tree.find_all(jinja2.nodes.For)):
            loop.iter = _filtered(loop.iter, "bounded_loop")
        for joined in list(tree.find_all(jinja2.nodes.Concat)):
            joined.nodes = [_filtered(n, "bounded_text") for n in joined.nodes]
        return self.from_string(tree)


def _made_size(text: str, method: str, args: Sequence[Any]) -> int:
    """Return about how many characters a method of a text makes, at most."""
    numbers = [a for a in args if isinstance(a, int)]
    if method in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        tabs = text.count("\t") if method == "expandtabs" else 1
        return len(text) + tabs * max(numbers, default=8)
    if method == "replace":
        old, new = (*(a for a in args if isinstance(a, str)), "", "")[:2]
        return len(text) + text.count(old) * len(new)
    if method == "join" and args and hasattr(args[0], "__len__"):
        parts = [len(a) for a in args[0] if isinstance(a, str)]
        return sum(parts) + len(text) * len(parts)
    if method in ("format", "format_map"):
        widths = [int(digits) for digits in re.findall(r"\d+", text)]
        nested = "{" in text and re.search(r":[^}]*{", text) is not None
        return MAX_TEMPLATE_TEXT + 1 if nested else max(widths, default=0)
    if method == "translate":
        return MAX_TEMPLATE_TEXT + 1
    return len(text)


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _bounded_loop(context: Any, values: Any) -> Iterator[Any]:
    """Yield the values of a loop; count them with those of all other loops."""
    counter = context["bounded_iterations"]
    for value in values:
        counter.append(None)
        if len(counter) > MAX_ITERATIONS:
            raise jinja2.TemplateError(f"more than {MAX_ITERATIONS:,} iterations")
        yield value


@jinja2.pass_context
def _bounded_text(context: Any, value: Any) -> Any:
    """Return a part of a text that is put together."""
    del context  # so that it is not computed while the template is compiled
    if isinstance(value, str) and len(value) > MAX_TEMPLATE_TEXT // 10:
        raise jinja2.TemplateError(f"a text of {len(value):,} characters")
    return value


def _bounded_width(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter of Jinja that adds blanks, with a bound on how many."""

    def bounded(text: Any, width: Any = 4, *args: Any, **options: Any) -> Any:
        if isinstance(width, int) and width > MAX_WIDTH:
            raise jinja2.TemplateError(f"a width of {width:,} characters")
        return make(text, width, *args, **options)

    return bounded


class ChatTemplate:
    """The chat template of a model directory.

    Raises:
      TemplateError: the directory has no template, or one that is not valid Jinja.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        source = vocabulary.chat_template
        if source is None:
            raise TemplateError("this model directory has no chat template")
        environment = _BoundedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _tojson
        for name in ("center", "indent"):
            environment.filters[name] = _bounded_width(environment.filters[name])
        environment.filters["bounded_loop"] = _bounded_loop
        environment.filters["bounded_text"] = _bounded_text
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.bounded_template(source)
        except _TEMPLATE_ERRORS as error:
            raise TemplateError(
                f"the chat template is not valid Jinja: {error}"
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
                bounded_iterations=[],
                **special,
            )
        except _TEMPLATE_ERRORS as error:
            kind = (
                "" if isinstance(error, jinja2.TemplateError) else type(error).__name__
            )
            reason = f"{kind}: {error}".removeprefix(": ")
            raise TemplateError(f"the chat template refused: {reason}") from error
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


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


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
