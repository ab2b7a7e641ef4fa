"""A verifiers environment plays a served dream or environment: the code of its page.

verifiers cannot be installed beside the extra peers (its pin of mcp), so its Python is
another one: DREAMGYM_VERIFIERS_PYTHON=/path/to/python, with `pip install verifiers
websockets uv`.
"""

import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")

from dreamgym.serving.worlds import real_world
from tests import corridor
from tests.dreamgym.serving.common import running, running_dream

PYTHON = os.environ.get("DREAMGYM_VERIFIERS_PYTHON", "")
PAGE = Path(__file__).parents[3] / "docs/how-to/verifiers.md"
pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="DREAMGYM_VERIFIERS_PYTHON is not set"),
]


class Expert(BaseHTTPRequestHandler):
    """A chat server that plays the corridor from the last message, and streams."""

    protocol_version = "HTTP/1.1"
    action = ""

    def log_message(self, *_):
        pass

    def do_POST(self):
        size = int(self.headers["content-length"])
        messages = json.loads(self.rfile.read(size))["messages"]
        content = messages[-1]["content"]
        if not isinstance(content, str):
            content = "".join(part.get("text", "") for part in content)
        lines = content.splitlines()
        state = tuple(lines[-4:])  # before it the instruction
        self.reply(self.action or corridor.plan(state)[0])

    def reply(self, text):
        delta = {"role": "assistant", "content": text}
        events = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": dict.fromkeys(self.usage, 1)},
        ]
        common = {"id": "c", "object": "chat.completion.chunk", "created": 0}
        rows = [json.dumps({**common, "model": "expert", **e}) for e in events]
        body = "".join(f"data: {row}\n\n" for row in [*rows, "[DONE]"]).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    usage = ("prompt_tokens", "completion_tokens", "total_tokens")


@pytest.fixture
def policy_url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Expert)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


def evaluate(folder, world_url, policy_url, seeds):
    (block,) = re.findall(
        r"```python\n# dreamworld.py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    (folder / "dreamworld.py").write_text(block)
    url = world_url.replace("http", "ws", 1) + "/ws"
    command = Path(PYTHON).with_name("vf-eval")
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"  # verifiers calls uv
    run = subprocess.run(
        [
            *(command, "dreamworld", "-m", "expert", "-n", str(seeds)),
            *("--client.base-url", policy_url, "--client.api-key-var", "NO_KEY"),
            *("--env.taskset.url", url, "--env.taskset.seeds", str(seeds)),
            *("--env.player.harness.id", "null"),
            *("--env.player.runtime.type", "subprocess", "--no-push", "--no-rich"),
        ],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": ".", "NO_KEY": "x", "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    files = list(folder.glob("**/*.jsonl"))
    assert files, run.stdout[-2000:]
    rows = [json.loads(line) for file in files for line in file.open()]
    return rows, run.stdout


@pytest.mark.parametrize("kind", ["dream", "real"])
def test_an_expert_wins_every_episode_of_either_world(kind, tmp_path, policy_url):
    real = real_world("tests.corridor:Corridor")
    with running_dream() if kind == "dream" else running(real) as server:
        rows, out = evaluate(tmp_path, server.url, policy_url, 3)
        begun = server.metric("dreamgym_episodes_begun_total")
    assert begun == 3
    assert len(rows) == 3
    assert all(row["ok"] for row in rows), out[-2000:]
    assert [rewards(row) for row in rows] == [{"reward": 1.0}] * 3


def test_an_episode_that_breaks_has_no_reward(tmp_path, policy_url, monkeypatch):
    monkeypatch.setattr(Expert, "action", "divide")
    spec = "tests.dreamgym.envs.workers.faults:Faulty"
    with running(real_world(spec)) as server:
        (row,), _ = evaluate(tmp_path, server.url, policy_url, 1)
    assert not row["ok"]
    assert "ZeroDivisionError" in json.dumps(row["errors"])
    assert rewards(row) == {}


def rewards(row):
    (trace,) = row["traces"]
    return {name: reward["score"] for name, reward in trace["rewards"].items()}
