import asyncio
import email.utils
import itertools
import json
import time
import types

import pytest

from tests import chat_server
from tests.chat_server import at_most, ok, serving, status
from worldmodel.chat import client as chat_client
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import (
    ChatError,
    ChatMalformed,
    ChatRefused,
    ChatReply,
    ChatRequest,
    ChatTimeout,
    ChatUnavailable,
)
from worldmodel.text.conversation import Message

SCHEMA = {"type": "object", "properties": {"a": {"type": "number"}}}


def client(url: str, cache=None, **changes) -> ChatClient:
    quick = {
        "connect_timeout": 2.0,
        "read_timeout": 5.0,
        "deadline": 8.0,
        "retries": 2,
        "backoff": 0.01,
    }
    config = ChatConfig(base_url=url, model="m", **(quick | changes))
    return ChatClient(config, cache)


def request(text: str = "hello", **rest) -> ChatRequest:
    return ChatRequest((Message("user", text),), **rest)


def one(asked: ChatClient, what: ChatRequest | None = None):
    (result,) = asked.ask([request() if what is None else what])
    return result


def texts(found) -> list[str]:
    assert all(isinstance(x, ChatReply) for x in found), found
    return [x.text for x in found]


# --- answers -------------------------------------------------------------------


def test_answers_come_in_order_and_several_at_once():
    together = []

    def rule(body):
        together.append(1)
        time.sleep(0.05 if chat_server.user_text(body) in ("0", "1") else 0.0)
        peak.append(len(together))
        together.pop()
        return chat_server.user_text(body).upper()

    peak: list[int] = []
    words = [*"01abcdef"]
    with serving(chat_server.answering(rule)) as server:
        result = client(server.url, concurrency=4).ask([request(w) for w in words])
    assert texts(result) == [w.upper() for w in words]
    assert 2 <= max(peak) <= 4


def test_what_is_posted():
    with serving(ok("yes")) as server:
        one(client(server.url, temperature=0.2, max_tokens=7), request(seed=5))
        one(client(server.url), request(schema=SCHEMA, logprobs=True))
    first, second = server.posts
    assert first == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.2,
        "max_tokens": 7,
        "seed": 5,
    }
    assert second["response_format"]["type"] == "json_schema"
    assert second["response_format"]["json_schema"]["schema"] == SCHEMA
    assert second["logprobs"] is True
    assert "Authorization" not in server.headers[0]


def test_usage_is_counted_by_hand():
    with serving(status(500), ok("a")) as server:
        chat_client = client(server.url, price_in=1000.0, price_out=10_000.0)
        chat_client.ask([request("x"), request("x")])
        before = chat_client.usage
        one(chat_client, request("y"))
    # Two posts that answered: 10 tokens read and 4 written each, 0.001 and 0.01 apiece.
    assert before == (2, 1, 1, 10, 4, pytest.approx(0.05))
    assert chat_client.usage == (3, 1, 1, 20, 8, pytest.approx(0.1))
    assert chat_client.usage.since(before) == (1, 0, 0, 10, 4, pytest.approx(0.05))
    assert len(server.posts) == 3


def test_a_server_without_counts_costs_nothing_known():
    body = {"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "x"}}
    with serving(chat_server.raw(json.dumps(body).encode())) as server:
        chat_client = client(server.url)
        assert one(chat_client) == ChatReply("a")
    assert chat_client.usage == (1, 0, 0, 0, 0, 0.0)


def test_numbers_beyond_all_floats_are_no_numbers():
    huge = 10**400
    body = {
        "usage": {"prompt_tokens": huge},
        "choices": [
            {
                "message": {"content": "a"},
                **logprobs(("a", -huge, None)),
            }
        ],
    }
    with serving(chat_server.raw(json.dumps(body).encode())) as server:
        chat_client = client(server.url)
        assert one(chat_client, request(logprobs=True)) == ChatReply("a")
    assert chat_client.usage == (1, 0, 0, 0, 0, 0.0)


def logprobs(*rows):
    content = [{"token": t, "logprob": x, "bytes": b} for t, x, b in rows]
    return {"logprobs": {"content": content}}


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ([("a", -1.0, None), ("é", -0.5, [195, 169])], ((1, -1.0), (2, -0.5))),
        # A character in two tokens, then one after the end of the text.
        (
            [
                ("a", 0.0, None),
                ("?", -1.0, [195]),
                ("?", -2.0, [169]),
                ("</s>", -3.0, []),
            ],
            ((1, 0.0), (1, -1.0), (1, -2.0), (0, -3.0)),
        ),
        # A fence that the server stripped, a token half of it.
        (
            [
                ("```", -9.0, None),
                ("\na", -1.0, None),
                ("é", -0.5, None),
                ("\n```", -2.0, None),
                ("</s>", -3.0, []),
            ],
            ((1, -1.0), (2, -0.5), (4, -2.0), (0, -3.0)),
        ),
        ([("b", -1.0, None)], None),
        ([("aé", None, None)], None),
        ([("aé", -1.0, 10**12)], ((3, -1.0),)),
    ],
)
def test_tokens_are_those_of_the_text_or_none(rows, want):
    with serving(ok("aé", **logprobs(*rows))) as server:
        assert one(client(server.url), request(logprobs=True)).tokens == want


def test_a_client_works_where_a_loop_runs_already():
    async def notebook(queries):
        return one(queries)

    with serving(ok("a")) as server:
        assert asyncio.run(notebook(client(server.url))).text == "a"


# --- tries ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", [status(500), status(503), chat_server.torn])
def test_a_fault_of_the_server_is_tried_again(bad):
    with serving(bad, bad, ok("a")) as server:
        chat_client = client(server.url)
        assert one(chat_client).text == "a"
        assert chat_client.usage.retries == 2
    assert len(server.posts) == 3


@pytest.mark.parametrize("bad", [status(500, b"oops"), chat_server.torn])
def test_tries_end(bad):
    with serving(bad) as server:
        result = one(client(server.url))
    assert isinstance(result, ChatUnavailable)
    assert str(result).startswith("unavailable: ")
    assert len(server.posts) == 3


def test_retry_after_is_kept():
    # With the pauses of its own the client would have no time for a second try.
    with serving(status(429, Retry_After="0"), ok("a")) as server, at_most(6):
        assert one(client(server.url, backoff=100.0)).text == "a"
    with serving(status(429, Retry_After="900"), ok("a")) as server, at_most(6):
        result = one(client(server.url))
    assert isinstance(result, ChatRefused)
    assert (result.status, len(server.posts)) == (429, 1)
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    with serving(status(429, Retry_After=date), ok("a")) as server, at_most(6):
        assert one(client(server.url, backoff=100.0)).text == "a"
    with serving(status(429, Retry_After="soon"), ok("a")) as server:
        assert one(client(server.url)).text == "a"


@pytest.mark.parametrize("days", [-1, 1])
def test_a_date_to_wait_for_is_of_the_servers_clock(monkeypatch, days):
    """A clock of ours that was set back would wait for a day, and so give up."""
    clock = types.SimpleNamespace(
        monotonic=time.monotonic, time=lambda: time.time() + 86400 * days
    )
    monkeypatch.setattr(chat_client, "time", clock)
    soon, late = (email.utils.formatdate(time.time() + s) for s in (0, 3600))
    with serving(status(429, Retry_After=soon), ok("a")) as server, at_most(6):
        assert one(client(server.url, backoff=100.0)).text == "a"
    with serving(status(429, Retry_After=late), ok("a")) as server, at_most(6):
        assert isinstance(one(client(server.url)), ChatRefused)


@pytest.mark.parametrize("code", [301, 400, 401, 404, 422])
def test_a_refusal_is_final_and_quoted_short(code):
    body = b"no  such\nthing " * 100
    with serving(status(code, body, Location="http://127.0.0.1:9/")) as server:
        result = one(client(server.url))
    assert isinstance(result, ChatRefused)
    assert result.status == code
    assert "no such thing" in str(result)
    assert len(str(result)) < 350
    assert len(server.posts) == 1


def test_a_server_that_hangs_is_a_timeout():
    with serving(chat_server.hang) as server, at_most(5):
        result = one(client(server.url, read_timeout=0.2, retries=1))
        assert isinstance(result, ChatTimeout)
        assert len(server.posts) == 2


@pytest.mark.parametrize("slow", [chat_server.drip, chat_server.drip_header])
def test_a_server_that_drips_meets_the_deadline(slow):
    with serving(slow) as server, at_most(5):
        result = one(client(server.url, read_timeout=2.0, deadline=0.3))
    assert isinstance(result, ChatTimeout)
    assert "deadline" in str(result)


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": []}',
        b'{"choices": ["a"]}',
        b'{"choices": [{"message": 1}]}',
        *(json.dumps(chat_server.completion(x)).encode() for x in (None, 3, ["a"])),
    ],
)
def test_an_answer_of_no_use_is_malformed_and_not_tried_again(body, tmp_path):
    with serving(chat_server.raw(body), ok("a")) as server:
        chat_client = client(server.url, tmp_path / "cache.db")
        result = one(chat_client)
        assert isinstance(result, ChatMalformed)
        assert len(str(result)) < 350
        assert len(server.posts) == 1
        assert one(chat_client).text == "a"  # nor is it kept


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>",
        b"",
        b"{}",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"error": "quota exceeded"}',
        b'{"choices": null}',
        b'{"choices": {}}',
        b'{"error": {"message": "overloaded", "code": 503}, "choices": []}',
        b'{"error": {"message": "busy", "code": "rate_limit"}}',
    ],
)
def test_what_is_no_completion_is_a_fault_of_the_server(body, tmp_path):
    with serving(chat_server.raw(body)) as server:
        chat_client = client(server.url, tmp_path / "cache.db")
        result = one(chat_client)
        assert isinstance(result, ChatUnavailable)
        assert str(result).startswith(f"unavailable: {server.url}")
        assert len(str(result)) < 350
        assert len(server.posts) == 3  # tried again like one
        server.behaviours = (ok("a"),)
        assert one(chat_client).text == "a"  # nor is it kept


def test_an_error_without_its_status_is_told_and_read_by_its_code():
    def record(code):
        error = {"message": "quota exceeded", "code": code}
        return chat_server.raw(json.dumps({"error": error}).encode())

    for code, posts in ((400, 1), (402, 1), (429, 3)):
        with serving(record(code)) as server:
            result = one(client(server.url))
            assert isinstance(result, ChatRefused)
            assert result.status == code
            assert "quota exceeded" in str(result)
            assert len(server.posts) == posts
    with serving(chat_server.raw(b'{"error": "quota exceeded"}')) as server:
        assert "quota exceeded" in str(one(client(server.url)))


def test_what_is_cut_short_is_malformed_where_json_was_asked():
    with serving(ok('{"a":', why="length")) as server:
        chat_client = client(server.url)
        assert isinstance(one(chat_client, request(schema=SCHEMA)), ChatMalformed)
        assert one(chat_client).text == '{"a":'


# --- nobody there --------------------------------------------------------------


def test_a_dead_server_fails_the_rest_fast():
    chat_client = client(
        chat_server.closed_port(), concurrency=2, give_up=3, retries=1, backoff=0.05
    )
    with at_most(5):
        results = chat_client.ask([request(str(i)) for i in range(200)])
    assert all(isinstance(x, ChatUnavailable) for x in results)
    assert sum("not tried" in str(x) for x in results) >= 196
    assert chat_client.usage.retries <= 4


def test_a_server_that_dies_in_the_middle_fails_the_rest_fast():
    with serving(ok("a"), ok("a"), ok("a"), chat_server.hang) as server, at_most(8):
        chat_client = client(
            server.url, concurrency=1, give_up=2, retries=0, read_timeout=0.2
        )
        results = chat_client.ask([request(str(i)) for i in range(100)])
        assert len(server.posts) == 5
    assert texts(results[:3]) == ["a"] * 3
    assert all(isinstance(x, ChatTimeout) for x in results[3:5])
    assert all("not tried" in str(x) for x in results[5:])


def test_a_server_that_answers_now_and_then_is_not_dead():
    behaviours = itertools.chain.from_iterable([status(500), ok("a")] for _ in range(6))
    with serving(*behaviours) as server:
        chat_client = client(server.url, concurrency=1, give_up=2, retries=0)
        results = chat_client.ask([request(str(i)) for i in range(12)])
    assert [isinstance(x, ChatReply) for x in results] == [False, True] * 6
    # Refusals are answers: every request is sent.
    with serving(status(400)) as server:
        client(server.url, give_up=1).ask([request(str(i)) for i in range(12)])
    assert len(server.posts) == 12


# --- options that a server may not have ------------------------------------------


@pytest.mark.parametrize(
    ("lacks", "posts"),
    [
        ({"response_format"}, [{"response_format", "logprobs"}, {"logprobs"}]),
        (
            {"logprobs"},
            [{"response_format", "logprobs"}, {"logprobs"}, {"response_format"}],
        ),
        (
            {"response_format", "logprobs"},
            [{"response_format", "logprobs"}, {"logprobs"}, {"response_format"}, set()],
        ),
    ],
)
def test_what_a_server_does_not_take_is_left_out_and_remembered(lacks, posts):
    rule = chat_server.answering(lambda body: 400 if lacks & set(body) else "a")
    with serving(rule) as server:
        chat_client = client(server.url)
        for seed in range(3):
            result = one(chat_client, request(seed=seed, schema=SCHEMA, logprobs=True))
            assert result.text == "a"
    options = [{"response_format", "logprobs"} & set(b) for b in server.posts]
    assert options == [*posts, posts[-1], posts[-1]]


def test_a_refusal_of_something_else_leaves_the_options():
    def rule(body):
        return 400 if chat_server.user_text(body) == "too long" else "a"

    with serving(chat_server.answering(rule)) as server:
        chat_client = client(server.url)
        result = one(chat_client, request("too long", schema=SCHEMA))
        assert isinstance(result, ChatRefused)
        assert one(chat_client, request("short", schema=SCHEMA)).text == "a"
        assert "response_format" in server.posts[-1]
        count = len(server.posts)
        # Known to be taken: now a refusal costs one post.
        assert isinstance(
            one(chat_client, request("too long", schema=SCHEMA)), ChatRefused
        )
        assert len(server.posts) == count + 1


# --- the key -------------------------------------------------------------------

KEY = "sk-very-secret-0123456789"


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("TEST_CHAT_KEY", f" {KEY}\n")
    spoken = f"{'x ' * 60}bad key {KEY} {KEY}".encode()
    faults = (status(401, spoken), status(500, spoken), chat_server.raw(spoken))
    with serving(*faults, ok("a")) as server:
        chat_client = client(server.url, api_key_env="TEST_CHAT_KEY", retries=0)
        results = [one(chat_client, request(str(i))) for i in range(4)]
        assert all(isinstance(x, ChatError) for x in results[:3])
        assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
        for shown in (*results, chat_client, chat_client.config, chat_client.usage):
            assert "secret" not in repr(shown) + str(shown)
    assert "[key]" in str(results[0])


@pytest.mark.parametrize("value", [None, "", "  ", "line\nbreak", "ключ"])
def test_a_variable_without_a_key_is_told_by_its_name(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("TEST_CHAT_KEY", raising=False)
    else:
        monkeypatch.setenv("TEST_CHAT_KEY", value)
    with pytest.raises(ValueError, match="TEST_CHAT_KEY holds no API key"):
        client("http://127.0.0.1:9", api_key_env="TEST_CHAT_KEY")


@pytest.mark.parametrize(
    "changes",
    [
        {"api_key_env": KEY},
        {"base_url": f"http://me:{KEY}@host/v1"},
        {"base_url": f"http://host/v1?key={KEY}"},
        {"base_url": "ftp://host"},
        {"base_url": "host:80"},
        {"base_url": "http://host:port"},
        {"deadline": 0.0},
        {"read_timeout": float("inf")},
        {"connect_timeout": -1.0},
        {"retries": -1},
        {"backoff": -1.0},
        {"concurrency": 0},
        {"max_tokens": 0},
        {"give_up": 0},
        {"temperature": -0.1},
        {"price_in": -1.0},
        {"price_out": -1.0},
    ],
)
def test_a_config_of_no_sense_is_refused_without_its_secrets(changes):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        ChatConfig(**({"base_url": "http://host/v1", "model": "m"} | changes))
    assert "secret" not in str(caught.value)
