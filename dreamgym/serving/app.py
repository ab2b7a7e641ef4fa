"""The ASGI application: OpenEnv's pages, its WebSocket, metrics, and a page to play.

/ws            one connection is one session: reset, step, state, close, mcp
/reset /step   over HTTP, where no episode can go on: a step is refused by name
/tasks ...     OpenEnv's Task API: splits, and the tasks of one
/health /metadata /schema /state /mcp /openapi.json /metrics /
"""

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import starlette.websockets as ws
from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from dreamgym.run.versions import VERSION
from dreamgym.serving.config import ServingConfig
from dreamgym.serving.guard import PROTOCOL
from dreamgym.serving.messages import (
    Action,
    CloseMessage,
    McpMessage,
    Message,
    Observation,
    Refused,
    ResetMessage,
    ResetOptions,
    State,
    StateMessage,
    StepRequest,
    answer_json_rpc,
    check_action,
    json_rpc,
    parse_message,
)
from dreamgym.serving.observability import Metrics, log_event
from dreamgym.serving.sessions import Session, SessionTable
from dreamgym.serving.tasks import add_task_api
from dreamgym.serving.worlds import World

TRY_AGAIN_LATER, GOING_AWAY, NORMAL = 1013, 1001, 1000
"""Codes with which a WebSocket is closed."""

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def make_app(
    world: World, metrics: Metrics, config: ServingConfig
) -> tuple[FastAPI, SessionTable]:
    """Return the application that serves a world, and its sessions."""
    table = SessionTable(
        world,
        metrics,
        max_sessions=config.max_sessions,
        turn_seconds=config.turn_seconds,
    )
    app = FastAPI(
        title=world.name,
        description=world.description,
        version=VERSION or "0",
        docs_url=None,  # pages that load scripts from another host
        redoc_url=None,
    )
    _add_pages(app, world, table, metrics)
    _add_http_episodes(app, table)
    add_task_api(app, world)

    @app.websocket("/ws")
    async def play(socket: ws.WebSocket) -> None:
        await _serve_socket(socket, table, metrics, config)

    return app, table


def _add_pages(
    app: FastAPI, world: World, table: SessionTable, metrics: Metrics
) -> None:
    page, policy = read_page()

    @app.get("/", include_in_schema=False)
    def index() -> HTMLResponse:
        headers = {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return HTMLResponse(page, headers=headers)

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"status": "stopping" if table.stopping else "healthy"}

    @app.get("/metadata")
    def metadata() -> dict[str, Any]:
        return {
            "name": world.name,
            "description": world.description,
            "readme_content": None,
            "version": world.version,
            "author": None,
            "documentation_url": None,
            "splits": world.splits(),
            "max_episode_steps": world.max_steps,
            "max_sessions": table.max_sessions,
        }

    @app.get("/schema")
    def schema() -> dict[str, Any]:
        return {
            "action": Action.model_json_schema(),
            "observation": Observation.model_json_schema(),
            "state": State.model_json_schema(),
        }

    @app.get("/metrics", include_in_schema=False)
    def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.post("/mcp")
    async def mcp(request: Request) -> JSONResponse:
        return JSONResponse(answer_json_rpc(await request.body()))


def _add_http_episodes(app: FastAPI, table: SessionTable) -> None:
    @app.get("/state")
    def state() -> State:
        return State()

    @app.post("/reset")
    async def reset(
        options: ResetOptions = Body(default_factory=ResetOptions),  # noqa: B008
    ) -> dict[str, Any]:
        try:
            session = table.open()
        except Refused as refusal:
            headers = {"Retry-After": "1"}
            raise HTTPException(503, refusal.payload()["data"], headers) from None
        try:
            return await session.reset(options)
        except Refused as refusal:
            raise HTTPException(422, refusal.payload()["data"]) from None
        finally:
            table.release(session, "http")

    @app.post("/step")
    def step(request: StepRequest) -> None:
        try:
            check_action(request.action)
        except Refused as refusal:
            raise HTTPException(422, refusal.payload()["data"]) from None
        message = "no episode is running: over HTTP none goes on, play on /ws"
        refusal = Refused("EXECUTION_ERROR", "step_before_reset", message)
        raise HTTPException(409, refusal.payload()["data"])


def read_page() -> tuple[str, str]:
    """Return the page to play on, and the policy that permits its one script alone."""
    page = (Path(__file__).parent / "play.html").read_text(encoding="utf-8")
    (script,) = _SCRIPT.findall(page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; "
        "style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


# --- sessions on WebSockets --------------------------------------------------


async def _serve_socket(
    socket: ws.WebSocket, table: SessionTable, metrics: Metrics, config: ServingConfig
) -> None:
    """Serve one connection from its beginning to its end, whatever ends it."""
    protocols = socket.scope.get("subprotocols", [])
    await socket.accept(PROTOCOL if PROTOCOL in protocols else None)
    try:
        session = table.open()
    except Refused as refusal:
        await _send(socket, refusal.payload())
        await _close(socket, TRY_AGAIN_LATER)
        return
    reason = "error"
    try:
        reason = await _converse(socket, session, table, metrics, config)
    except (ws.WebSocketDisconnect, RuntimeError, OSError) as error:
        # Starlette raises a RuntimeError for messages to a socket that is closed.
        # Those that say goodbye do it by a close of WebSocket itself, too.
        said_so = getattr(error, "code", 0) in (NORMAL, GOING_AWAY)
        reason = "close" if said_so else "client_gone"
        if not isinstance(error, ws.WebSocketDisconnect):
            log_event("socket_error", session=session.id, error=str(error)[:200])
    finally:
        table.release(session, reason)


async def _converse(
    socket: ws.WebSocket,
    session: Session,
    table: SessionTable,
    metrics: Metrics,
    config: ServingConfig,
) -> str:
    """Answer messages until the session ends; return what ended it.

    The next message is read once the last one is answered: a client that sends faster
    than it is answered waits in its own socket.
    """
    stop = asyncio.create_task(session.stop.wait())
    try:
        while True:
            text = await _next_message(socket, stop, config.idle_seconds)
            if isinstance(text, Refused):
                await _send(socket, text.payload())
                await _close(socket, GOING_AWAY)
                return text.reason
            try:
                message = parse_message(text)
                if isinstance(message, CloseMessage):
                    await _close(socket, NORMAL)
                    return "close"
                await _send(socket, await _answer(message, session))
            except Refused as refusal:
                metrics.refusals.labels(refusal.reason).inc()
                await _send(socket, refusal.payload())
                if refusal.code in ("SESSION_ERROR", "FACTORY_ERROR"):
                    await _close(socket, GOING_AWAY)
                    return refusal.reason
            if table.stopping and not session.state.running:
                session.stop.set()
    finally:
        stop.cancel()


async def _next_message(
    socket: ws.WebSocket, stop: asyncio.Task[Any], seconds: float
) -> str | Refused:
    """Return the next text, or why the session ends without one.

    Raises:
      WebSocketDisconnect: the client has gone.
    """
    receive = asyncio.create_task(socket.receive())
    try:
        await asyncio.wait(
            [receive, stop], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if receive.done():
            event = receive.result()
            if event["type"] == "websocket.disconnect":
                raise ws.WebSocketDisconnect(event.get("code", NORMAL))
            text = event.get("text")
            return event["bytes"].decode(errors="replace") if text is None else text
        if stop.done():
            message = "the server is stopping; this session ends here, unscored"
            return Refused("SESSION_ERROR", "server_stopping", message)
        message = f"no message for {seconds:g} s; the session ends"
        return Refused("SESSION_ERROR", "idle", message)
    finally:
        if not receive.done():
            receive.cancel()


async def _answer(message: Message, session: Session) -> dict[str, Any]:
    """Return the answer to a message.

    Raises:
      Refused: it cannot be carried out.
    """
    if isinstance(message, ResetMessage):
        return {"type": "observation", "data": await session.reset(message.data)}
    if isinstance(message, StateMessage):
        return {"type": "state", "data": session.state.model_dump()}
    if isinstance(message, McpMessage):
        return {"type": "mcp", "data": json_rpc(message.data)}
    assert not isinstance(message, CloseMessage), "it ends the conversation"
    return {"type": "observation", "data": await session.step(message.data)}


async def _send(socket: ws.WebSocket, value: dict[str, Any]) -> None:
    await socket.send_text(json.dumps(value, allow_nan=False))


async def _close(socket: ws.WebSocket, code: int) -> None:
    with contextlib.suppress(RuntimeError):  # the client may have been faster
        await socket.close(code)
