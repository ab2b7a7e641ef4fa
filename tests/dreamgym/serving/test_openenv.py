"""The real OpenEnv client and validator on our server, and our client on its server."""

import asyncio
import json
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("openenv", reason="the package openenv is not installed")

from tests.dreamgym.serving.common import plan_of, running_dream

pytestmark = pytest.mark.peer


def client(url):
    from openenv import GenericEnvClient

    return GenericEnvClient(base_url=url)


def as_answer(result):
    """What our own tests read, from a result of the real client."""
    return {"observation": result.observation}


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
