"""A client of OpenAI-compatible chat servers with limits, retries, a cache and counts.

requests -> cache -> POST {base_url}/chat/completions, several at once -> replies in the
order of the requests. A failure is an answer too: a ChatError.

Requests are asynchronous rather than threads: a deadline then ends whatever a request
waits for, while a thread that reads from a socket cannot be stopped.
"""

import asyncio
import concurrent.futures
import email.utils
import hashlib
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from worldmodel.chat.cache import ChatCache
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import (
    ChatCut,
    ChatError,
    ChatMalformed,
    ChatRefused,
    ChatReply,
    ChatRequest,
    ChatTimeout,
    ChatUnavailable,
    ChatUsage,
    body_of,
    read_answer,
)
from worldmodel.data.records import atomic_write

MAX_BODY = 16 << 20
MAX_PAUSE = 30.0
_QUOTED = 200


class _Attempt(NamedTuple):
    """One POST: its reply, whether to retry, and after how many seconds.

    Without `retry_after` the client backs off exponentially.
    """

    reply: ChatReply | ChatError
    retry: bool = False
    retry_after: float | None = None


class CircuitBreaker:
    """Stops a batch of requests after `limit` in a row have failed.

    Failures are time-outs, an unavailable server and status 429.
    """

    def __init__(self, limit: int):
        self._limit, self._failures, self._last = limit, 0, ""

    def note(self, reply: ChatReply | ChatError) -> None:
        """Count what came of a request."""
        failed = isinstance(reply, ChatTimeout | ChatUnavailable)
        if failed or (isinstance(reply, ChatRefused) and reply.status == 429):
            self._failures, self._last = self._failures + 1, str(reply)
        else:
            self._failures = 0

    @property
    def tripped(self) -> ChatUnavailable | None:
        """The error of a request that is not tried, or None while requests go on."""
        if self._failures < self._limit:
            return None
        return ChatUnavailable(
            f"not tried, {self._failures} requests in a row failed, the last: "
            f"{self._last}"
        )


class ChatClient:
    """A client of one chat server; equal requests have one answer, new seeds new ones.

    Args:
      cache: a file of answers, which are not asked for again.
      usage_file: a JSON file with an entry for each client, which its usage is added
        to at once, so that `usage` includes earlier processes.
      name: of the entry.

    Raises:
      ValueError: no URL, or the environment variable of the API key holds no key.
      CacheError: the cache is not one, or of another version.
    """

    def __init__(
        self,
        config: ChatConfig,
        cache: Path | None = None,
        usage_file: Path | None = None,
        name: str = "chat",
    ):
        if not config.base_url:
            raise ValueError("base_url must be the URL of a chat server, got ''")
        self.config = config
        self._key = _api_key(config.api_key_env)
        self._url = f"{config.base_url.rstrip('/')}/chat/completions"
        self._cache = ChatCache(cache) if cache is not None else None
        self._tls = httpx.create_ssl_context()
        self._usage_file, self._name = usage_file, name
        self._usage = ChatUsage(**self._usage_entries().get(name, {}))
        # Options that the server refuses, by the hash of schema and logprobs.
        self._dropped: dict[str, frozenset[str]] = {}
        self._lock = threading.Lock()

    @property
    def usage(self) -> ChatUsage:
        """The usage of this client, and of earlier ones with the same file."""
        return self._usage

    def close(self) -> None:
        """Close the cache."""
        if self._cache is not None:
            self._cache.close()

    def ask(self, requests: Sequence[ChatRequest]) -> list[ChatReply | ChatError]:
        """Return one reply or error for each request, in order.

        Takes at most `deadline` seconds for every `concurrency` requests.

        Raises:
          CacheError: the cache cannot be read or written.
        """
        if not requests:
            return []
        with self._lock:
            return _run(lambda: self._ask(requests))

    async def _ask(
        self, requests: Sequence[ChatRequest]
    ) -> list[ChatReply | ChatError]:
        keys = [_digest(self.config, r) for r in requests]
        unique = dict(zip(keys, requests, strict=True))
        replies: dict[str, ChatReply | ChatError] = {}
        if self._cache is not None:
            cached = {k: self._cache.get(k) for k in unique}
            replies |= {k: reply for k, reply in cached.items() if reply is not None}
        todo = {k: r for k, r in unique.items() if k not in replies}
        self._count(requests=len(keys), cached=len(keys) - len(todo))
        if todo:
            replies |= await self._fetch(todo)
        return [replies[k] for k in keys]

    async def _fetch(
        self, todo: Mapping[str, ChatRequest]
    ) -> dict[str, ChatReply | ChatError]:
        c = self.config
        breaker, slots = CircuitBreaker(c.give_up), asyncio.Semaphore(c.concurrency)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(
            verify=self._tls,
            headers=headers | {"Content-Type": "application/json"},
            timeout=httpx.Timeout(c.read_timeout, connect=c.connect_timeout),
            limits=httpx.Limits(max_connections=c.concurrency),
        ) as http:

            async def one(key: str, request: ChatRequest) -> ChatReply | ChatError:
                async with slots:
                    if breaker.tripped is not None:
                        return breaker.tripped
                    reply = await self._ask_within_deadline(http, breaker, request)
                    breaker.note(reply)
                answered = isinstance(reply, ChatReply | ChatCut)
                if answered and self._cache is not None:
                    self._cache.put(key, reply)
                return reply

            answers = await asyncio.gather(*(one(k, r) for k, r in todo.items()))
        return dict(zip(todo, answers, strict=True))

    async def _ask_within_deadline(
        self, http: httpx.AsyncClient, breaker: CircuitBreaker, request: ChatRequest
    ) -> ChatReply | ChatError:
        end = time.monotonic() + self.config.deadline
        try:
            async with asyncio.timeout(self.config.deadline):
                for attempt in range(self.config.retries + 1):
                    result = await self._attempt(http, request)
                    pause = result.retry_after
                    if pause is None:
                        pause = min(self.config.backoff * 2**attempt, MAX_PAUSE)
                        pause *= random.uniform(0.5, 1.0)
                    past_deadline = time.monotonic() + pause >= end
                    last = attempt == self.config.retries
                    if not result.retry or last or past_deadline or breaker.tripped:
                        return result.reply
                    self._count(retries=1)
                    await asyncio.sleep(pause)
        except TimeoutError:
            pass
        return ChatTimeout(f"{self._url}: deadline of {self.config.deadline:g} s")

    async def _attempt(self, http: httpx.AsyncClient, request: ChatRequest) -> _Attempt:
        """Try a request once; if its options are refused, try with fewer of them."""
        body = body_of(self.config, request)
        options = [x for x in ("response_format", "logprobs") if x in body]
        # Which options a server takes is learned once for each kind of request.
        name = _hash([request.schema, request.logprobs])

        def post(drop: Iterable[str]) -> Coroutine[Any, Any, _Attempt]:
            sent = {k: v for k, v in body.items() if k not in drop}
            return self._post(http, sent, must_be_complete=request.schema is not None)

        result = await post(self._dropped.get(name, ()))
        if name in self._dropped or not options:
            return result
        if not _refuses_options(result.reply):
            if isinstance(result.reply, ChatReply | ChatMalformed):
                self._dropped[name] = frozenset()
            return result
        # One option alone first: a server without logprobs may well take a schema.
        for drop in [*([x] for x in options), *([options] if options[1:] else [])]:
            other = await post(drop)
            if not _refuses_options(other.reply):
                if isinstance(other.reply, ChatReply | ChatMalformed):
                    self._dropped[name] = frozenset(drop)
                return other
        return result

    async def _post(
        self,
        http: httpx.AsyncClient,
        body: Mapping[str, Any],
        *,
        must_be_complete: bool,
    ) -> _Attempt:
        c, raw = self.config, bytearray()
        try:
            async with http.stream(
                "POST", self._url, content=json.dumps(body).encode()
            ) as response:
                async for piece in response.aiter_bytes():
                    raw += piece
                    # A server that never ends its answer would fill the memory.
                    if len(raw) > MAX_BODY:
                        return _Attempt(ChatMalformed(f"more than {MAX_BODY} bytes"))
        except httpx.TimeoutException as error:
            message = (
                f"{self._url}: {type(error).__name__} after {c.connect_timeout:g} s "
            )
            message += f"to connect or {c.read_timeout:g} s to read"
            return _Attempt(ChatTimeout(message), True)
        except httpx.DecodingError:
            return _Attempt(ChatMalformed("the encoding of the answer is broken"))
        except httpx.HTTPError as error:
            message = f"{self._url}: {self._safe(f'{type(error).__name__}: {error}')}"
            return _Attempt(ChatUnavailable(message), True)
        status = response.status_code
        if status == 200:
            reply, (n, m) = read_answer(
                bytes(raw),
                must_be_complete=must_be_complete,
                server=self._url,
                quote=self._safe,
            )
            cost = (n * c.price_in + m * c.price_out) / 1e6
            self._count(prompt_tokens=n, completion_tokens=m, cost=cost)
        else:
            text = self._safe(raw.decode(errors="replace"))
            message = f"{self._url}: status {status}, {text}"
            unavailable = status >= 500
            reply = (
                ChatUnavailable(message)
                if unavailable
                else ChatRefused(message, status)
            )
        headers = response.headers
        retry_after = _seconds(headers.get("retry-after"), headers.get("date"))
        return _Attempt(reply, _is_transient(reply), retry_after)

    def _safe(self, foreign: str) -> str:
        """Return foreign text for an error: short, in one line, without the key."""
        # Some servers quote the request they refuse, and errors end up in logs.
        text = foreign.replace(self._key, "[key]") if self._key else foreign
        text = " ".join(text.split())
        return text if len(text) <= _QUOTED else f"{text[:_QUOTED]}..."

    def _count(self, **more: Any) -> None:
        self._usage = self._usage.plus(ChatUsage(**more))
        if self._usage_file is not None:
            entries = self._usage_entries() | {self._name: self._usage._asdict()}
            with atomic_write(self._usage_file) as file:
                json.dump(entries, file)

    def _usage_entries(self) -> dict[str, Any]:
        """Return the entries of the usage file, one for each client by name."""
        if self._usage_file is None or not self._usage_file.is_file():
            return {}
        return json.loads(self._usage_file.read_text())


def _run(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return the coroutine's result, also inside a running loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def _api_key(name: str) -> str | None:
    if not name:
        return None
    # Stripped: a key that was read from a file mostly ends with a newline.
    key = os.environ.get(name, "").strip()
    # Checked here, because the HTTP library would quote an invalid header.
    if not re.fullmatch(r"[\x21-\x7e]+", key):
        raise ValueError(f"the environment variable {name} holds no API key")
    return key


def _hash(what: Any) -> str:
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _digest(config: ChatConfig, request: ChatRequest) -> str:
    return _hash([config.base_url.rstrip("/"), body_of(config, request)])


def _is_transient(reply: ChatReply | ChatError) -> bool:
    """Return whether the same question may be answered a little later."""
    rate_limited = isinstance(reply, ChatRefused) and reply.status == 429
    return rate_limited or isinstance(reply, ChatUnavailable)


def _refuses_options(reply: ChatReply | ChatError) -> bool:
    return isinstance(reply, ChatRefused) and reply.status in (400, 422)


def _seconds(header: str | None, date: str | None = None) -> float | None:
    """Return the seconds of a Retry-After header (a number or a date), or None.

    Args:
      date: the header Date of the same answer. A date to wait for is one of the
        server's clock, which ours need not agree with.
    """
    if header is None:
        return None
    if re.fullmatch(r"[0-9]{1,9}", header.strip()):
        return float(header)
    try:
        end = email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return None
    try:
        start = email.utils.parsedate_to_datetime(date or "").timestamp()
    except (ValueError, OverflowError):
        start = time.time()
    return max(end - start, 0.0)
