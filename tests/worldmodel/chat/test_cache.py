import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest

from tests import chat_server
from tests.chat_server import ok, serving, status
from tests.worldmodel.chat.test_client import (
    SCHEMA,
    client,
    logprobs,
    one,
    request,
    texts,
)
from worldmodel.chat.cache import CacheError
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import (
    ChatMalformed,
    ChatRefused,
    ChatReply,
    ChatRequest,
    ChatUnavailable,
)
from worldmodel.text.conversation import Message


def test_a_cached_answer_is_not_asked_again(tmp_path):
    path = tmp_path / "new" / "cache.db"
    text = 'a "b" \n é \ud800 \x00'
    rows = [(text.encode(errors="replace").decode(), -0.5, None)]
    with serving(ok(text, **logprobs(*rows))) as server:
        chat_client = client(server.url, path)
        result = one(chat_client, request(logprobs=True))
        chat_client.close()
        again = client(server.url, path, retries=0, price_in=1.0)
        kept = one(again, request(logprobs=True))
        assert kept == result._replace(cached=True)
        assert again.usage == (1, 1, 0, 0, 0, 0.0)
        assert len(server.posts) == 1


def test_what_was_cut_is_paid_for_once(tmp_path):
    with serving(ok('{"a":', why="length"), ok("{}")) as server:
        chat_client = client(server.url, tmp_path / "cache.db")
        results = [one(chat_client, request(schema=SCHEMA)) for _ in range(2)]
        assert len(server.posts) == 1
        assert all(isinstance(x, ChatMalformed) for x in results)
        assert {str(x) for x in results} == {"malformed: cut at max_tokens"}
        assert chat_client.usage.cached == 1


def test_whatever_changes_the_answer_is_in_the_key(tmp_path):
    path = tmp_path / "cache.db"
    with serving(ok("a")) as server:
        rest = {"seed": 1, "schema": SCHEMA, "logprobs": True}
        one(client(server.url, path), request())
        for changes in ({"temperature": 0.1}, {"max_tokens": 3}):
            one(client(server.url, path, **changes), request())
        for name, value in rest.items():
            one(client(server.url, path), request(**{name: value}))
        one(client(server.url, path), request("other"))
        one(client(server.url, path), ChatRequest((Message("system", "hello"),)))
        one(client(server.url + "/", path), request())  # the same server
        config = ChatConfig(base_url=server.url, model="other")
        one(ChatClient(config, path), request())
        assert len(server.posts) == 9


def test_errors_are_not_kept(tmp_path):
    with serving(status(400), status(500), ok("a")) as server:
        chat_client = client(server.url, tmp_path / "cache.db", retries=0)
        results = [one(chat_client) for _ in range(3)]
    assert [type(x) for x in results] == [ChatRefused, ChatUnavailable, ChatReply]


def other_database(path):
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE accounts (name TEXT)")
    db.close()


def later_version(path):
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b"no database at all" * 100),
        lambda path: path.mkdir(),
        other_database,
        later_version,
    ],
)
def test_what_is_no_cache_is_told_and_left_alone(spoil, tmp_path):
    path = tmp_path / "cache.db"
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(CacheError, match=r"cache\.db.*move the file away"):
        client("http://127.0.0.1:9", path)
    if before is not None:
        assert path.read_bytes() == before


def test_a_spoilt_row_is_told(tmp_path):
    path = tmp_path / "cache.db"
    with serving(ok("a")) as server:
        one(client(server.url, path))
        db = sqlite3.connect(path)
        for text in ("[", "7", "[1]", '["a", [3]]'):
            db.execute("UPDATE replies SET reply = ?", (text,))
            db.commit()
            with pytest.raises(CacheError, match="move the file away"):
                one(client(server.url, path))
        db.close()


CHILD = """
    import sys
    from pathlib import Path
    from worldmodel.chat.client import ChatClient
    from worldmodel.chat.protocol import ChatRequest
    from worldmodel.chat.config import ChatConfig
    from worldmodel.text.conversation import Message
    config = ChatConfig(base_url=sys.argv[1], model="m", concurrency=1)
    requests = [ChatRequest((Message("user", str(i)),)) for i in range(6)]
    ChatClient(config, Path(sys.argv[2]), Path(sys.argv[3])).ask(requests)
"""


@pytest.mark.medium
def test_a_killed_process_keeps_what_was_answered_and_what_it_cost(tmp_path):
    path, spent, good = tmp_path / "cache.db", tmp_path / "spent.json", ok("a")
    with serving(good, good, good, chat_server.hang, good) as server:
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CHILD), server.url, path, spent]
        )
        try:
            for _ in range(600):
                if len(server.posts) == 4 or child.poll() is not None:
                    break
                time.sleep(0.1)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(timeout=10)
        assert len(server.posts) == 4
        config = ChatConfig(base_url=server.url, model="m")
        queries = ChatClient(config, path, spent)
        assert queries.usage == (6, 0, 0, 30, 12, 0.0)
        result = queries.ask([request(str(i)) for i in range(6)])
        assert texts(result) == ["a"] * 6
        assert queries.usage == (12, 3, 0, 60, 24, 0.0)
        assert ChatClient(config, path).usage.requests == 0
        assert len(server.posts) == 7
