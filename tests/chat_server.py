"""A chat server on loopback that does what a script says, post by post."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms for the header's ACK
    server: "Server"

    def do_POST(self):
        size = int(self.headers["Content-Length"])
        body = json.loads(self.rfile.read(size))
        behaviour = self.server.noted(self, body)
        with contextlib.suppress(OSError):  # the client has gone
            behaviour(self, body)

    def log_message(self, format, *args):
        pass

    def say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviours: tuple[Behaviour, ...]):
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours, self.posts = behaviours, []
        self.headers: list[dict[str, str]] = []
        self.lock, self.over = threading.Lock(), threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def noted(self, handler: Handler, body: dict[str, Any]) -> Behaviour:
        with self.lock:
            number = len(self.posts)
            self.posts.append(body)
            self.headers.append(dict(handler.headers))
        return self.behaviours[min(number, len(self.behaviours) - 1)]

    def handle_error(self, request, client_address):
        pass  # clients leave in the middle on purpose


@contextlib.contextmanager
def serving(*behaviours: Behaviour) -> Iterator[Server]:
    """The n-th post gets the n-th behaviour, later ones the last."""
    server = Server(behaviours)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=5)


def completion(text: Any, *, why: str = "stop", **more: Any) -> dict[str, Any]:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": why}
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    return {"choices": [choice | more], "usage": usage}


def ok(text: Any, **more: Any) -> Behaviour:
    return raw(json.dumps(completion(text, **more)).encode())


def raw(body: bytes) -> Behaviour:
    return lambda handler, _: handler.say(200, body)


def status(code: int, body: bytes = b"", **headers: str) -> Behaviour:
    return lambda handler, _: handler.say(code, body, **headers)


def user_text(body: dict[str, Any]) -> str:
    return body["messages"][-1]["content"]


def answering(rule: Callable[[dict[str, Any]], Any]) -> Behaviour:
    """The text that a rule finds for the body; a number is a status."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        text = rule(body)
        if isinstance(text, int):
            handler.say(text, b"told so")
        else:
            ok(text)(handler, body)

    return behave


def hang(handler: Handler, body: dict[str, Any]) -> None:
    del body
    handler.server.over.wait(20)
    handler.close_connection = True


def torn(handler: Handler, body: dict[str, Any]) -> None:
    """Goes in the middle of an answer."""
    del body
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def drip(handler: Handler, body: dict[str, Any]) -> None:
    """A byte now and then, without end."""
    del body
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.server.over.wait(0.03):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def drip_header(handler: Handler, body: dict[str, Any]) -> None:
    """Never comes to the end of its headers."""
    del body
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.server.over.wait(0.03):
        handler.wfile.write(b"a")


def closed_port() -> str:
    """The address of a server that is no longer there."""
    with serving(hang) as server:
        return server.url


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """A bound on a wait, wide enough for a busy machine."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds
