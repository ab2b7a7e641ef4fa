"""The real OpenEnv client and validator on our server, and our client on its server."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("openenv", reason="the package openenv is not installed")

from dreamgym.envs import base, registry, vector
from tests import doubles
from tests.dreamgym.serving.common import plan_of, running_dream

pytestmark = pytest.mark.peer


def client(url):
    from openenv import GenericEnvClient

    return GenericEnvClient(base_url=url)


def as_answer(result):
    """What our own tests read, from a result of the real client."""
    return {"observation": result.observation}


@pytest.mark.medium
def test_the_real_client_plays_whole_episodes():
    with running_dream() as server:
        with client(server.url).sync() as env:
            for seed in range(5):
                result = env.reset(seed=seed, split="dev")
                assert result.reward is None
                for action in plan_of(as_answer(result)):
                    assert not result.done
                    result = env.step({"message": action})
                assert (result.reward, result.done) == (1.0, True)
                assert result.observation["metadata"]["success"] is True
                assert result.observation["metadata"]["confidence"] == 1.0
                assert env.state()["step_count"] > 0
                with pytest.raises(RuntimeError, match="has ended"):
                    env.step({"message": "go right"})
        server.wait_for_sessions(0)


def test_real_clients_play_side_by_side_without_meeting():
    async def episode(url, seed):
        async with client(url) as env:
            result = await env.reset(seed=seed)
            texts = [result.observation["text"]]
            for action in ("go right", "fly", "go right", "take coin"):
                if not result.done:
                    result = await env.step({"message": action})
                    texts.append(result.observation["text"])
            return texts

    async def all_of(url):
        return await asyncio.gather(*(episode(url, n % 4) for n in range(16)))

    with running_dream() as server:
        texts = asyncio.run(all_of(server.url))
        server.wait_for_sessions(0)
    for n in range(16):
        assert texts[n] == texts[n % 4]
    assert len({json.dumps(t) for t in texts}) > 1


@pytest.mark.medium
def test_the_real_validator_passes_in_full():
    with running_dream() as server:
        code = "from openenv.cli.__main__ import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code, "validate", "--url", server.url, "--json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["passed"] is True
    assert all(row["passed"] for row in report["criteria"])
    assert len(report["criteria"]) >= 6


# --- our client on the real server -------------------------------------------


@contextlib.contextmanager
def real_server():
    """The corridor behind openenv's own server, in a thread."""
    import uvicorn
    from openenv.core.env_server import Environment, create_fastapi_app
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):
        message: str

    class Seen(Observation):
        text: str = ""

    class Served(Environment):
        """Rewards None until the end, which is how many servers do it."""

        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self):
            super().__init__()
            self.env, self.count = doubles.Corridor(), 0

        def reset(self, seed=None, episode_id=None, **kwargs):
            del episode_id, kwargs
            task = doubles.tasks("train")[(seed or 0) % 20]
            return Seen(text=self.env.reset(options={"task": task})[0], done=False)

        def step(self, action, timeout_s=None, **kwargs):
            del timeout_s, kwargs
            if action.message == "raise":
                raise KeyError("broken")
            text, reward, terminated, truncated, _ = self.env.step(action.message)
            done = terminated or truncated
            facts = {"truncated": truncated}
            scored = reward if done else None
            return Seen(text=text, reward=scored, done=done, metadata=facts)

        @property
        def state(self):
            return State(step_count=self.count)

    app = create_fastapi_app(
        Served, Say, Seen, max_concurrent_envs=2, env_name="corridor"
    )
    config = uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def test_our_client_plays_whole_episodes_on_the_real_server():
    with real_server() as url, contextlib.closing(registry.make(url)) as env:
        for task in base.tasks_of(env, url, "train", 5):
            _, state = base.begin(env, task)
            for action in doubles.plan(state):
                step = base.take(env, action)
            assert (step.terminated, step.success) == (True, True)
            assert step.rewards == {"reward": 1.0}
            with pytest.raises(RuntimeError, match="call reset"):
                env.step("go right")
        _, state = base.begin(env, task)
        for _ in range(doubles.STEPS):
            step = base.take(env, "fly")
        assert (step.terminated, step.truncated, step.success) == (False, True, False)


def test_what_the_real_server_refuses_breaks_one_episode_only():
    with real_server() as url:
        envs = vector.RealVectorEnv.growing(
            lambda: registry.make(f"{url}#reset_seconds=1"), limit=3, max_steps=6
        )
        tasks = base.tasks_of(envs.envs[0], url, "train", 3)
        envs.reset(options={"tasks": tasks})  # the server has room for two
        broken, sound, third = envs.step(["raise", "fly", "fly"])
        assert broken.error is not None
        assert "EXECUTION_ERROR" in broken.error
        assert sound.error is None
        assert third.error is not None
        assert third.error.startswith("ServerFull")
        envs.close()
