"""An OpenEnv server that does everything wrong, on command.

It plays the corridor. An action that names a fault is answered with it, and so is a
reset whose seed is the key of one. It knows nothing of our server.
"""

import asyncio
import contextlib
import json
import threading
from http import HTTPStatus

from websockets.asyncio.server import serve
from websockets.datastructures import Headers
from websockets.http11 import Response

from tests import doubles

SCHEMA = {
    "action": {
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
        "type": "object",
    }
}
META = {"name": "faulty", "description": "d", "max_episode_steps": 9}


class Faulty:
    """Its pages may be replaced; `full` connections are refused before one is taken."""

    def __init__(self, **pages):
        self.pages = {"/schema": SCHEMA, "/metadata": META} | pages
        self.full, self.opened, self.resets, self.steps = 0, 0, [], []
        self.headers = []
        self.ready, self.loop = threading.Event(), None

    def page(self, connection, request):
        self.headers.append(request.headers.get("Authorization"))
        if request.path == "/ws":
            return None
        del connection
        page = self.pages.get(request.path)
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        status = HTTPStatus.OK if page is not None else HTTPStatus.NOT_FOUND
        headers = Headers({"Content-Length": str(len(body)), "Connection": "close"})
        return Response(status, status.phrase, headers, body)

    async def play(self, socket):
        self.opened += 1
        if self.full:
            self.full -= 1
            data = {"code": "CAPACITY_REACHED", "message": "full"}
            with contextlib.suppress(Exception):
                await socket.send(json.dumps({"type": "error", "data": data}))
            return
        env = doubles.Corridor()
        async for text in socket:
            message = json.loads(text)
            if message["type"] == "reset":
                self.resets.append(message["data"])
                seed = message["data"].get("seed", 0)
                fault = FAULTS.get(seed)
                task = doubles.tasks("train")[seed % 20]
                seen, reward, done, info = (
                    env.reset(options={"task": task})[0],
                    None,
                    False,
                    {},
                )
            else:
                action = message["data"]["message"]
                self.steps.append(action)
                fault = action if action in FAULTS.values() else None
                seen, reward, done = (
                    (env.state, 0.0, False) if fault else env.step(action)[:3]
                )
                info = {}
                seen = "\n".join(seen) if fault else seen
            answer = {
                "type": "observation",
                "data": {"observation": {"text": seen}, "reward": reward, "done": done},
            }
            del info
            if not await self.fail(socket, fault, answer):
                return

    async def fail(self, socket, fault, answer):
        """Answer, right or wrong; return whether the connection goes on."""
        data = answer["data"]
        if fault == "late":
            await asyncio.sleep(1.5)
        if fault == "dropped":
            socket.transport.abort()
            return False
        if fault == "closed":
            return False
        if fault == "error":
            error = {"code": "EXECUTION_ERROR", "message": "broken \x1b[31m inside"}
            answer = {"type": "error", "data": error}
        if fault == "over-long":
            data["observation"]["text"] = "x" * 150_000
        if fault == "huge":
            data["observation"]["text"] = "x" * 5_000_000
        if fault == "surrogate":
            await socket.send(json.dumps(answer).replace("said ok", "said \\ud800"))
            return True
        if fault == "schema":
            data["observation"] = ["no", "object"]
        if fault == "reward":
            data["reward"] = "a lot"
        if fault == "unscored":
            data.update(reward=None, done=True)
        if fault == "no-reward":
            data["reward"] = None
        if fault == "truncated":
            data.update(done=True, reward=0.25, metadata={"truncated": True})
        await socket.send("{garbled" if fault == "garbled" else json.dumps(answer))
        return True

    async def run(self):
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        async with serve(
            self.play, "127.0.0.1", 0, process_request=self.page, close_timeout=0.1
        ) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.ready.set()
            await self.stop.wait()

    def __enter__(self):
        self.thread = threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()
        assert self.ready.wait(10)
        return self

    def __exit__(self, *_):
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(10)
        assert not self.thread.is_alive()


FAULTS = {
    901: "late",
    902: "dropped",
    903: "closed",
    904: "error",
    905: "over-long",
    906: "huge",
    907: "surrogate",
    908: "schema",
    909: "reward",
    910: "garbled",
    911: "unscored",
    912: "no-reward",
    913: "truncated",
}
"""The seeds of resets that go wrong, and the actions that do."""
