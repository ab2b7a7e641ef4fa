"""Clients that flood the server and read nothing: it holds little, and others play."""

import base64
import contextlib
import json
import os
import socket
import struct
import time

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from dreamgym.serving import protocol
from tests import doubles
from tests.dreamgym.serving.common import Client, dream, plan_of, running_dream

TEXT, CONTINUATION, PING, FINAL, MASK = 1, 0, 9, 0x80, 0x80
STATE = b'{"type": "state", "data": {}}'
MEGABYTE = 1_000_000


def frame(kind, data, final=FINAL):
    """Return a frame of a client; a mask of zeros changes nothing."""
    size = len(data)
    length = struct.pack("B", MASK | size) if size < 126 else b"\xfe"
    if size >= 126:
        length += struct.pack(">H", size)
    return bytes([final | kind]) + length + bytes(4) + data


@contextlib.contextmanager
def raw_client(server, *headers):
    """Open a WebSocket whose bytes the test writes; yield it and the server's reply."""
    host, port = server.server.address.split(":")
    with socket.socket() as client:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            client.setsockopt(socket.SOL_SOCKET, option, 8_192)
        client.connect((host, int(port)))
        lines = [
            "GET /ws HTTP/1.1",
            f"Host: {host}:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            *headers,
        ]
        client.sendall("\r\n".join([*lines, "", ""]).encode())
        client.settimeout(5)
        yield client, client.recv(4_096).decode()


def flood(client, data, limit=40 * MEGABYTE):
    """Write until nobody reads; return the bytes that were taken, `limit` at most."""
    client.settimeout(0.5)
    sent = 0
    with contextlib.suppress(OSError):  # a time-out, or the server has hung up
        while sent < limit:
            sent += client.send(data)
    return sent


def held_bytes(server):
    """Return what the server holds for its sockets: received, and not yet written."""
    total = 0
    for connection in list(server.server.server_state.connections):
        if hasattr(connection, "queue"):
            events = list(connection.queue._queue)
            total += sum(len(e.get("text") or e.get("bytes") or "") for e in events)
            total += connection.transport.get_write_buffer_size()
            total += 8 * len(connection.frames)
    return total


def play(server):
    """Play an episode in a session of its own; return its seconds."""
    start = time.monotonic()
    with Client(server.url) as other:
        first = other.reset(seed=4)
        for action in plan_of(first):
            last = other.step(action)
    assert (last["reward"], last["done"]) == (1.0, True)
    return time.monotonic() - start


@pytest.mark.medium
@pytest.mark.parametrize(
    "flooded",
    [
        frame(TEXT, STATE),
        frame(TEXT, b'{"type": "step", "data": {"message": "fly"}}'),
        frame(TEXT, b"x" * 60_000),
        frame(PING, b"x" * 125),
        frame(PING, b"x" * 125) * 20 + frame(TEXT, STATE),
    ],
    ids=["states", "steps", "garbage", "pings", "pings and states"],
)
def test_a_flood_waits_in_the_clients_socket(flooded):
    data = flooded * max(20_000 // len(flooded), 1)
    with running_dream(max_sessions=2) as server:
        with raw_client(server) as (client, _):
            client.sendall(frame(TEXT, b'{"type": "reset", "data": {"seed": 1}}'))
            # The socket buffers of the kernel take some megabytes.
            assert flood(client, data) < 30 * MEGABYTE
            assert held_bytes(server) < MEGABYTE
            assert play(server) < 10
            assert held_bytes(server) < MEGABYTE
        server.wait_for_sessions(0)


def test_a_client_that_reads_late_is_answered():
    """A flood within the bounds is no offence: every message has its answer."""
    count = 3_000
    with running_dream() as server, raw_client(server) as (client, _):
        client.settimeout(20)
        client.sendall(frame(TEXT, STATE) * 200)  # less than the sockets hold
        time.sleep(0.2)
        received = b""
        for _ in range(count // 200 - 1):
            client.sendall(frame(TEXT, STATE) * 200)
            received += client.recv(65_536)
        while received.count(b'"state"') < count:
            received += client.recv(65_536)
        assert server.server.table.active == 1


def test_queries_of_a_flood_do_not_queue_for_the_model():
    class Slow(doubles.RuleModel):
        largest = 0

        def predict(self, queries):
            self.largest = max(self.largest, len(queries))
            time.sleep(0.02)
            return super().predict(queries)

    model, steps = Slow(), frame(TEXT, b'{"type": "step", "data": {"message": "fly"}}')
    reset = frame(TEXT, b'{"type": "reset", "data": {"seed": 1}}')
    with running_dream(dream(model)) as server, raw_client(server) as (client, _):
        model.largest = 0  # the server has warmed up
        flood(client, (reset + steps * 4) * 100, MEGABYTE)
        assert play(server) < 10
        assert server.metric("dreamgym_model_queue") <= 1
    assert model.largest <= 2  # one of each session


def test_a_client_that_never_reads_loses_its_place(monkeypatch):
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.5)
    with running_dream(max_sessions=1) as server, raw_client(server) as (client, _):
        server.wait_for_sessions(1)
        # Its refusal names the long key, so that answers soon fill all buffers.
        flood(client, frame(TEXT, b'{"type": "state", "' + b"x" * 60_000 + b'": 1}'))
        server.wait_for_sessions(0)  # though it has not closed its socket
        assert play(server) < 10
        assert server.metric("dreamgym_sessions_closed_total", reason="client_gone")


def test_fragments_without_end_close_the_connection():
    with running_dream() as server, raw_client(server) as (client, _):
        client.sendall(frame(TEXT, b"{", final=0))
        sent = flood(client, frame(CONTINUATION, b"", final=0) * 3_000)
        assert sent < 10 * MEGABYTE
        server.wait_for_sessions(0)
        assert held_bytes(server) == 0
        assert play(server) < 10


def test_a_message_in_fragments_is_answered():
    with running_dream() as server, raw_client(server) as (client, _):
        pieces = [bytes([byte]) for byte in STATE]
        client.sendall(frame(TEXT, pieces[0], final=0))
        for piece in (*pieces[1:-1], b"", b""):
            client.sendall(frame(CONTINUATION, piece, final=0))
        client.sendall(frame(CONTINUATION, pieces[-1]))
        answer = client.recv(4_096)
        assert json.loads(answer[2:])["type"] == "state"


def test_compression_is_not_agreed_on():
    """A packet of compressed messages would be hundreds of megabytes of text."""
    offer = "Sec-WebSocket-Extensions: permessage-deflate"
    with running_dream() as server, raw_client(server, offer) as (_, reply):
        assert reply.startswith("HTTP/1.1 101")
        assert "extensions" not in reply.lower()
