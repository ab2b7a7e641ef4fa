"""Back-pressure of a WebSocket: what a client may make the server hold is bounded.

Messages wait in the client's own socket until the last one is answered: that much
uvicorn's protocol does. It goes on to read and answer pings of a client that reads no
answer, collects fragments without end, and waits for a reader for ever; not this one.
"""

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import (
    WebSocketsSansIOProtocol,
)

UNREAD_SECONDS = 40.0
"""Seconds that answers may wait for a client to read; then it is taken for gone."""

MAX_FRAGMENTS = 1_000
"""Fragments of a message, at most: they may be empty, so that no size bounds them."""

TOO_BIG = 1009
"""The code with which a WebSocket is closed."""


class BoundedProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that reads nothing more while its answers are not read."""

    _fragments = 0

    def pause_writing(self) -> None:
        """Stop to read: what has been written waits for the client."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again, unless a message waits for the application."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Any) -> None:
        """Take a fragment of a message; end the connection where there are too many."""
        self._fragments = 0 if event.fin else self._fragments + 1
        if self._fragments <= MAX_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self.frames = []
            self.conn.fail(TOO_BIG, "too many fragments")
            self.handle_parser_exception()

    async def receive(self) -> Any:
        """Return the next event for the application."""
        event = await super().receive()
        if not self.writable.is_set():  # it has begun to read again
            self.transport.pause_reading()
        return event

    async def send(self, message: Any) -> None:
        """Send what the application says.

        Raises:
          ClientDisconnected: the client has gone, or has read nothing for long.
        """
        try:
            async with asyncio.timeout(UNREAD_SECONDS):
                await self.writable.wait()
        except TimeoutError:
            self.transport.abort()  # to close it would wait for the client
            raise ClientDisconnected from None
        await super().send(message)

    async def run_asgi(self) -> None:
        """Run the application for this connection."""
        await super().run_asgi()
        if self.transport.get_write_buffer_size():  # closed once that has been read
            self.loop.call_later(UNREAD_SECONDS, self.transport.abort)
