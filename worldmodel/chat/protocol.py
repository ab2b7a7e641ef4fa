"""The protocol of a chat server: errors, records and JSON.

ChatConfig, ChatRequest -> body_of -> a server -> read_answer -> ChatReply or ChatError.
`quoting` puts text from outside into prompts and reads objects from replies.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worldmodel.chat.config import ChatConfig
from worldmodel.text.conversation import Message


class ChatError(Exception):
    """A request has no usable answer; the message begins with `kind`."""

    kind = "failed"

    def __str__(self) -> str:
        return f"{self.kind}: {super().__str__()}"


class ChatTimeout(ChatError):
    """The server took longer than the limits allow."""

    kind = "timeout"


class ChatUnavailable(ChatError):
    """The server cannot be reached, fails (5xx) or sends no completion."""

    kind = "unavailable"


class ChatRefused(ChatError):
    """The server refuses the request (4xx)."""

    kind = "refused"

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class ChatMalformed(ChatError):
    """An answer that cannot be used: without text, cut short or too long."""

    kind = "malformed"
    cached = False


class ChatCut(ChatMalformed):
    """An answer that ended at `max_tokens`: complete for the server, and paid for."""

    def __init__(self, *, cached: bool = False):
        super().__init__("cut at max_tokens")
        self.cached = cached


class ChatRequest(NamedTuple):
    """One question; `schema` (a JSON schema) asks for JSON, `logprobs` for tokens."""

    messages: tuple[Message, ...]
    seed: int | None = None
    schema: Mapping[str, Any] | None = None
    logprobs: bool = False


class Token(NamedTuple):
    """A token of a reply: its size in bytes and its log-probability."""

    size: int
    logp: float


class ChatReply(NamedTuple):
    """An answer; `tokens` is None where the server did not send them."""

    text: str
    tokens: tuple[Token, ...] | None = None
    cached: bool = False


class ChatUsage(NamedTuple):
    """Counts: requests, cached ones, retries, tokens read and written, and the cost.

    `cached` counts requests that were in the cache or twice in one batch. Tokens are
    those that the server reports; cached answers have none.
    """

    requests: int = 0
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def plus(self, other: "ChatUsage") -> "ChatUsage":
        """Return the sum of both."""
        return ChatUsage._make(a + b for a, b in zip(self, other, strict=True))

    def since(self, earlier: "ChatUsage") -> "ChatUsage":
        """Return the usage after `earlier`."""
        return ChatUsage._make(a - b for a, b in zip(self, earlier, strict=True))


def body_of(config: ChatConfig, request: ChatRequest) -> dict[str, Any]:
    """Return the JSON that is posted; all that can change the answer is part of it."""
    out: dict[str, Any] = {
        "model": config.model,
        "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
    }
    if request.seed is not None:
        out["seed"] = request.seed
    if request.schema is not None:
        form = {"name": "reply", "strict": True, "schema": request.schema}
        out["response_format"] = {"type": "json_schema", "json_schema": form}
    if request.logprobs:
        out["logprobs"] = True
    return out


def read_answer(
    raw: bytes, *, must_be_complete: bool, server: str, quote: Callable[[str], str]
) -> tuple[ChatReply | ChatError, tuple[int, int]]:
    """Return the reply in a body, and its token counts (read, written).

    A body without `choices` is no answer: ChatUnavailable, or ChatRefused where it
    holds an error with a 4xx code, as gateways send with status 200.

    Args:
      must_be_complete: an answer that was cut short is a ChatCut.
      server: the server's address, for errors.
      quote: turns foreign text into text for errors.
    """

    def describe(why: str) -> str:
        return f"{why}: {quote(raw.decode(errors='replace'))}"

    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        row = None
    row = row if isinstance(row, dict) else {}
    choices, error = row.get("choices"), row.get("error")
    if not isinstance(choices, list) or (error and not choices):
        return _failure(error, describe(f"{server}: no completion in the answer")), (
            0,
            0,
        )
    try:
        choice = choices[0]
        text, why = choice["message"]["content"], choice.get("finish_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        return ChatMalformed(describe("no choice with a message in the answer")), (0, 0)
    used = row.get("usage")
    used = used if isinstance(used, dict) else {}
    read, written = (
        n if isinstance(n := used.get(k), int) and 0 < n < 2**40 else 0
        for k in ("prompt_tokens", "completion_tokens")
    )
    reply: ChatReply | ChatError
    if not isinstance(text, str):
        reply = ChatMalformed(f"the answer is no text but {type(text).__name__}")
    elif must_be_complete and why == "length":
        reply = ChatCut()
    else:
        reply = ChatReply(text, _tokens(choice, text))
    return reply, (read, written)


def _failure(error: Any, message: str) -> ChatError:
    """Return the error that a body without a completion stands for, by its code."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500:
        return ChatRefused(message, code)
    return ChatUnavailable(message)


def _tokens(choice: Mapping[str, Any], text: str) -> tuple[Token, ...] | None:
    """Return sizes and log-probabilities where the tokens make up the text, else None.

    A server may strip what stood around the text, such as a Markdown fence (llama.cpp):
    tokens before the text are left out, the answer ends with those behind it.
    """
    try:
        rows = choice["logprobs"]["content"]
        pieces = [
            bytes(raw)
            if isinstance(raw := token.get("bytes"), list)
            else token["token"].encode()
            for token in rows
        ]
        logps = [min(float(token["logprob"]), 0.0) for token in rows]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    at = b"".join(pieces).find(text.encode(errors="replace"))
    if at < 0:
        return None
    ends = list(itertools.accumulate(map(len, pieces)))
    return tuple(
        Token(min(len(piece), end - at), logp)
        for piece, end, logp in zip(pieces, ends, logps, strict=True)
        if end > at or at == 0
    )
