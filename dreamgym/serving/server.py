"""Runs the application until it is asked to stop, and stops gracefully.

SIGTERM or Ctrl-C -> no new sessions -> running episodes end, or are told -> the sockets
are closed -> the environments are closed
"""

import asyncio
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn

from dreamgym.serving.app import make_app
from dreamgym.serving.config import ServingConfig
from dreamgym.serving.guard import LOOPBACK, Guard, check_binding
from dreamgym.serving.messages import MAX_MESSAGE_BYTES
from dreamgym.serving.observability import Metrics, log_event
from dreamgym.serving.protocol import BoundedProtocol
from dreamgym.serving.worlds import World

PING_SECONDS = 20.0
"""How often a quiet client is asked whether it is there, and how long it may take to
say so: one that vanished without a word is noticed after twice this."""


class GracefulServer(uvicorn.Server):
    """A server that lets sessions end before it closes their sockets."""

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        config: ServingConfig,
        *,
        host: str,
        port: int,
        token: str = "",
    ):
        """Prepare a server; `run` or `serve` starts it.

        Raises:
          ValueError: another host than this machine, without a token.
        """
        check_binding(host, token)
        app, self.table = make_app(world, metrics, config)
        guard = Guard(
            app,
            token=token,
            local=host in LOOPBACK,
            on_refusal=lambda reason: metrics.refusals.labels(reason).inc(),
        )
        self.address = ""  # host:port, once the server listens
        self._grace_seconds = config.grace_seconds
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(
            uvicorn.Config(
                guard,
                host=host,
                port=port,
                ws=BoundedProtocol,
                ws_max_size=MAX_MESSAGE_BYTES,
                # A few bytes would become a message of the largest size, and a packet
                # of them hundreds of megabytes.
                ws_per_message_deflate=False,
                ws_ping_interval=PING_SECONDS,
                ws_ping_timeout=PING_SECONDS,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=5,
                backlog=max(2 * config.max_sessions, 128),
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal stops at once."""
        del frame
        if self._stop.is_set():
            self.force_exit = self.should_exit = True
        log_event("server_stopping", signal=signal.Signals(sig).name)
        self.stop()

    def stop(self) -> None:
        """Begin to stop; may be called in another thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the server has been asked to stop and its sessions have ended."""
        self._loop = asyncio.get_running_loop()
        draining = asyncio.create_task(self._drain())
        try:
            await super().serve(sockets)
        finally:
            self._loop = None
            draining.cancel()
        log_event("server_stopped", sessions=self.table.active)

    async def _drain(self) -> None:
        await self._stop.wait()
        await self.table.drain(self._grace_seconds)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> Any:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            address = self.servers[0].sockets[0].getsockname()
            self.address = f"{address[0]}:{address[1]}"
            log_event(
                "server_started",
                url=f"http://{self.address}",
                max_sessions=self.table.max_sessions,
                model_version=self.table.world.version,
            )
