"""Servers of npm's registry as environments, where their programs are on the PATH.

npm install @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory
"""

import contextlib
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker

PAGE = (Path(__file__).parents[4] / "docs/how-to/mcp.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.peer
PERSON = {"name": "Ada", "entityType": "person", "observations": ["lives in Oslo"]}
NOTE = f"create_entities {json.dumps({'entities': [PERSON]})}"


@pytest.fixture
def make(tmp_path):
    """Return a function that makes an environment of a file; all are closed."""
    with contextlib.ExitStack() as stack:

        def made(content):
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
            path.write_text(json.dumps(content))
            env = registry.make(f"mcp:{path}")
            stack.callback(env.close)
            return env

        yield made


def content_of(name, program):
    """A file of the page; its server is the program that npm installed."""
    (block,) = re.findall(rf"```toml\n# {name}\n(.*?)```", PAGE, re.DOTALL)
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} of npm is not installed")
    content = tomllib.loads(block)
    assert content["server"]["command"][:2] == ["npx", "-y"]
    content["server"]["command"][:3] = [path]
    content["tasks"] = [
        content["tasks"][0] | {"split": split, "id": f"{split} {number}"}
        for split, number in (("train", 1), ("train", 2), ("dev", 3), ("test", 4))
    ]
    return content


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("notes.toml", "mcp-server-filesystem"),
        ("facts.toml", "mcp-server-memory"),
    ],
)
def test_the_environments_of_the_page_keep_the_contract(name, program, make):
    content = content_of(name, program)
    env = make(content)
    report = checker.check(env, make=lambda: make(content))
    assert not report.faults, report.text(name)
    assert report.won["the expert"] == (2, 2)


def graph_of(env, number):
    """The memory as an episode of the train tasks finds it, before the first action."""
    env.reset(options={"task": base.as_tasks(env).tasks("train")[number]})
    state = env.step("read_graph {}")[0]
    return json.loads(state.removeprefix("result "))


def test_an_episode_does_not_see_the_memory_of_the_one_before(make, tmp_path):
    content = content_of("facts.toml", "mcp-server-memory")
    content["server"]["tools"] = ["create_entities", "read_graph"]
    for task in content["tasks"]:
        task.pop("setup")
    content["tasks"][0]["success"] = {"answer": "no memory decides"}
    graphs = {}
    for place in ("{workspace}", str(tmp_path)):
        path = f"{place}/memory.jsonl"
        content["server"]["env"] = {"MEMORY_FILE_PATH": path}
        env = make(content)
        first = graph_of(env, 0)
        assert first == {"entities": [], "relations": []}
        env.step(NOTE)
        seen = json.loads(env.step("read_graph {}")[0].removeprefix("result "))
        assert seen["entities"] == [PERSON]
        graphs[place] = graph_of(env, 1)
    # The control: outside the workspace, the server keeps it from episode to episode.
    assert graphs["{workspace}"]["entities"] == []
    assert graphs[str(tmp_path)]["entities"] == [PERSON]
