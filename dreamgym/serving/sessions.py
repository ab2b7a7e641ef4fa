"""Sessions: one client, one environment, one thread; and the table that limits them.

A session ends when its client goes, idles or asks for it, when a turn takes too long,
or when the server stops. Its place in the table is free again once its thread is: an
environment that hangs keeps its place, so that threads cannot pile up.
"""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from dreamgym.serving.messages import Action, Refused, ResetOptions, State
from dreamgym.serving.observability import Metrics, log_event
from dreamgym.serving.player import Player
from dreamgym.serving.worlds import World

Value = TypeVar("Value")


class Session:
    """The episodes of one client, played one after another."""

    def __init__(self, world: World, metrics: Metrics, *, turn_seconds: float):
        self.id = secrets.token_hex(8)
        self.start = time.monotonic()
        self.stop = asyncio.Event()
        """Set where the server wants the session to end after its present turn."""
        self.steps = 0
        self._metrics, self._turn_seconds = metrics, turn_seconds
        self._player = Player(world)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"session-{self.id}")
        self._hangs = False

    @property
    def state(self) -> State:
        """The episode that runs."""
        return self._player.state

    async def reset(self, options: ResetOptions) -> dict[str, Any]:
        """Begin an episode.

        Raises:
          Refused: it cannot be begun, or takes longer than a turn may.
        """
        payload = await self._turn(lambda: self._player.reset(options))
        self._metrics.episodes.inc()
        return payload

    async def step(self, action: Action) -> dict[str, Any]:
        """Take a step.

        Raises:
          Refused: no episode runs, the environment failed, or the turn took too long.
        """
        start = time.monotonic()
        payload = await self._turn(lambda: self._player.step(action.message))
        self._metrics.step_seconds.observe(time.monotonic() - start)
        self.steps += 1
        if payload["done"]:
            metadata = payload["metadata"]
            end = "error" if metadata["error"] else "truncated"
            if not metadata["truncated"]:
                end = "won" if metadata["success"] else "lost"
            self._metrics.ends.labels(end).inc()
        return payload

    async def _turn(self, call: Callable[[], Value]) -> Value:
        if self._hangs:
            raise Refused("SESSION_ERROR", "deadline", "this session has ended")
        loop = asyncio.get_running_loop()
        turn = loop.run_in_executor(self._thread, call)
        done, _ = await asyncio.wait([turn], timeout=self._turn_seconds)
        if not done:
            self._hangs = True
            turn.add_done_callback(lambda future: future.exception())
            raise Refused(
                "SESSION_ERROR",
                "deadline",
                f"no answer within {self._turn_seconds:g} s; the session ends",
            )
        return turn.result()

    async def close(self) -> None:
        """Close the environment, once its thread has returned from it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._player.close)
        self._thread.shutdown(wait=False)


class SessionTable:
    """All sessions of a server; refuses those beyond its limit."""

    def __init__(
        self,
        world: World,
        metrics: Metrics,
        *,
        max_sessions: int,
        turn_seconds: float,
    ):
        self.world, self.max_sessions = world, max_sessions
        self._metrics, self._turn_seconds = metrics, turn_seconds
        self._sessions: set[Session] = set()
        self._closings: set[asyncio.Task[None]] = set()
        self.stopping = False

    @property
    def active(self) -> int:
        """The number of places that are taken."""
        return len(self._sessions)

    def open(self) -> Session:
        """Return a new session.

        Raises:
          Refused: the server is full, or stops.
        """
        counts = {"active_sessions": self.active, "max_sessions": self.max_sessions}
        if self.stopping:
            self._metrics.refusals.labels("server_stopping").inc()
            message = "the server is stopping and takes no new sessions"
            raise Refused("CAPACITY_REACHED", "server_stopping", message, **counts)
        if self.active >= self.max_sessions:
            self._metrics.refusals.labels("capacity").inc()
            message = (
                f"Server at capacity: {self.active}/{self.max_sessions} sessions "
                "active. Cannot accept new connections; try again later."
            )
            raise Refused("CAPACITY_REACHED", "capacity", message, **counts)
        session = Session(self.world, self._metrics, turn_seconds=self._turn_seconds)
        self._sessions.add(session)
        self._metrics.sessions.set(self.active)
        log_event("session_opened", session=session.id, active=self.active)
        return session

    def release(self, session: Session, reason: str) -> asyncio.Task[None]:
        """Close a session; its place is free once its environment is closed."""
        closing = asyncio.create_task(self._release(session, reason))
        self._closings.add(closing)  # a task that nobody refers to may be lost
        closing.add_done_callback(self._closings.discard)
        return closing

    async def _release(self, session: Session, reason: str) -> None:
        try:
            await session.close()
        finally:
            self._sessions.discard(session)
            self._metrics.sessions.set(self.active)
            self._metrics.closes.labels(reason).inc()
            log_event(
                "session_closed",
                session=session.id,
                reason=reason,
                steps=session.steps,
                seconds=round(time.monotonic() - session.start, 3),
                active=self.active,
            )

    async def drain(self, seconds: float) -> None:
        """Take no new sessions, let running episodes end, then end all sessions.

        Episodes that have not ended within these seconds are told, and end.
        """
        self.stopping = True
        deadline = time.monotonic() + seconds
        while self._sessions and time.monotonic() < deadline:
            for session in self._sessions:
                if not session.state.running:
                    session.stop.set()
            await asyncio.sleep(0.02)
        for session in self._sessions:
            session.stop.set()
        deadline = time.monotonic() + 5
        while self._sessions and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
