"""A server on loopback in a thread, and clients that speak to it."""

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

from dreamgym.commands.serve import open_dream
from dreamgym.envs.dream import UncertaintyGate
from dreamgym.serving.config import ServingConfig
from dreamgym.serving.dream import Dream
from dreamgym.serving.observability import Metrics
from dreamgym.serving.server import GracefulServer
from tests import doubles
from worldmodel.data.records import Transition


def dream(model=None, *, max_steps=doubles.STEPS, **gate) -> Dream:
    """A dream of the corridor that knows its rules."""
    remembered = Transition(state=("at 0",), action="go right", next_state=("at 1",))
    return Dream(
        name="corridor",
        model=doubles.RuleModel() if model is None else model,
        tasks=[*doubles.tasks("train"), *doubles.tasks("dev")],
        max_steps=max_steps,
        uncertainty=UncertaintyGate(**gate),
        version="0123456789ab",
        recall=lambda _: [(0.5, remembered)],
    )


class Running:
    """A server that runs in a thread of its own."""

    def __init__(self, server: GracefulServer, metrics: Metrics):
        self.server, self.metrics = server, metrics
        self.thread = threading.Thread(target=lambda: asyncio.run(server.serve()))

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    def metric(self, name: str, **labels: str) -> float:
        value = self.metrics._registry.get_sample_value(name, labels)
        return 0.0 if value is None else value

    def wait_for_sessions(self, count: int, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while self.server.table.active != count:
            assert time.monotonic() < deadline, self.server.table.active
            time.sleep(0.01)


@contextlib.contextmanager
def running(world, *, metrics=None, token="", host="127.0.0.1", **limits: Any):
    """Serve a world within the block."""
    metrics = Metrics() if metrics is None else metrics
    config = ServingConfig(**({"grace_seconds": 0.2} | limits))
    server = GracefulServer(world, metrics, config, host=host, port=0, token=token)
    run = Running(server, metrics)
    run.thread.start()
    while not server.address:
        time.sleep(0.01)
    try:
        yield run
    finally:
        server.stop()
        run.thread.join(20)
        assert not run.thread.is_alive()


@contextlib.contextmanager
def running_dream(of=None, **options: Any):
    """Serve a dream within the block, its queries answered in batches."""
    metrics = Metrics()
    with (
        open_dream(dream() if of is None else of, metrics) as world,
        running(world, metrics=metrics, **options) as server,
    ):
        yield server


class Client:
    """A WebSocket client that knows nothing of ours."""

    def __init__(self, url: str, **options: Any):
        from websockets.sync.client import connect

        address = f"{url.replace('http', 'ws')}/ws"
        self._opened = contextlib.ExitStack()
        self.socket = self._opened.enter_context(
            connect(address, proxy=None, **options)
        )

    def send(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.socket.send(text)

    def receive(self) -> dict[str, Any]:
        return json.loads(self.socket.recv(timeout=20))

    def ask(self, message: Any) -> dict[str, Any]:
        self.send(message)
        return self.receive()

    def reset(self, **data: Any) -> dict[str, Any]:
        return self.ask({"type": "reset", "data": data})["data"]

    def step(self, action: str) -> dict[str, Any]:
        return self.ask({"type": "step", "data": {"message": action}})["data"]

    def episode(self, actions, **data: Any) -> list[dict[str, Any]]:
        """Play the actions until the episode ends; return all answers."""
        out = [self.reset(**data)]
        for action in actions:
            out.append(self.step(action))
            if out[-1].get("done", True):
                break
        return out

    def close(self) -> None:
        self._opened.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def plan_of(answer: dict[str, Any]) -> list[str]:
    """How the episode of a first answer is won."""
    return doubles.plan(tuple(answer["observation"]["text"].splitlines()))


def code(answer: dict[str, Any]) -> tuple[str, str]:
    """The code and reason of an error."""
    assert answer["type"] == "error", answer
    return answer["data"]["code"], answer["data"]["reason"]
