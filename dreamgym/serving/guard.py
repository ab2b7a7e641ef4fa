"""Who may ask a server: checks of token, host, origin and size before any work.

request -> Guard -> the application, or a refusal. A web page that a user happens to
visit can open connections to 127.0.0.1: its origin, or the name by which it reached the
server, gives it away.
"""

import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from dreamgym.serving.messages import MAX_MESSAGE_BYTES

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only programs of the same machine reach."""

PUBLIC = ("/health", "/")
"""Paths without a secret: the health check, and the page that asks for the token."""

PROTOCOL = "dreamgym"
"""The WebSocket subprotocol that a page names next to `bearer.TOKEN`: a browser cannot
set the header Authorization there."""

MIN_TOKEN = 16


def check_binding(host: str, token: str) -> None:
    """Refuse to serve others than this machine without a token, or with a poor one.

    Raises:
      ValueError: what is missing.
    """
    if host not in LOOPBACK and not token:
        raise ValueError(
            f"--host {host}: others could reach the server, so it needs a token: "
            "--token-env VARIABLE, the environment variable that holds it"
        )
    if token and (len(token) < MIN_TOKEN or not _is_token(token)):
        raise ValueError(
            f"the token must have at least {MIN_TOKEN} characters of A-Z, a-z, 0-9, "
            "- . _ ~"
        )


def _is_token(text: str) -> bool:
    return all(c.isascii() and (c.isalnum() or c in "-._~") for c in text)


class Guard:
    """An ASGI application that lets permitted requests through to another one."""

    def __init__(
        self,
        app: Application,
        *,
        token: str = "",
        local: bool = True,
        on_refusal: Callable[[str], None] = lambda _: None,
    ):
        """Guard an application.

        Args:
          token: what `Authorization: Bearer TOKEN` must hold; "" asks for none.
          local: whether only the names of this machine are accepted as host.
          on_refusal: called with the reason of each refusal.
        """
        self._app, self._token, self._local = app, token, local
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        refusal = self._refusal(scope, headers)
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, reason = refusal
        self._on_refusal(reason.partition(":")[0])
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        body = json.dumps({"detail": reason}).encode()
        fields = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if status == 401:
            fields.append((b"www-authenticate", b"Bearer"))
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        """Return the status and reason of a refusal, or None."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._local and _host_name(host) not in LOOPBACK:
            return 421, f"host: expected one of {LOOPBACK}, got {host!r:.80}"
        if origin is not None and _netloc(origin) != host:
            return 403, f"origin: pages of {origin!r:.80} may not ask this server"
        if self._token and scope["path"] not in PUBLIC and not self._permits(headers):
            return 401, "token: expected the header Authorization: Bearer TOKEN"
        if scope["type"] == "http":
            size = headers.get("content-length", "0")
            if "transfer-encoding" in headers or not size.isdigit():
                return 411, "size: a request needs its Content-Length"
            if int(size) > MAX_MESSAGE_BYTES:
                return 413, f"size: at most {MAX_MESSAGE_BYTES} bytes, got {size}"
        return None

    def _permits(self, headers: dict[str, str]) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        offers = [value.strip()] if scheme.lower() == "bearer" else []
        protocols = headers.get("sec-websocket-protocol", "").split(",")
        offers += [
            p.strip().removeprefix("bearer.")
            for p in protocols
            if p.strip().startswith("bearer.")
        ]
        token = self._token.encode()
        return any(hmac.compare_digest(offer.encode(), token) for offer in offers)


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin, None where it is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
