"""An MCP server as a real environment, with tasks from a file."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dreamgym import cli
from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.mcp import task_file
from dreamgym.envs.mcp.connection import McpSession
from dreamgym.envs.mcp.messages import ToolError
from dreamgym.envs.mcp.task_file import read_task_file

SERVER = Path(__file__).with_name("notes_server.py")
COMMAND = [sys.executable, str(SERVER), "{workspace}"]


def row(split, number, **changes):
    text = f"T{number}"
    return {
        "split": split,
        "instruction": "copy note a to note b",
        "files": {"a": text},
        "success": {"files": {"b": text}},
        "expert": ['get {"name": "a"}', f'put {{"name": "b", "text": "{text}"}}'],
    } | changes


def content(rows=None, **server):
    server = {"command": COMMAND, "tools": ["get", "put"]} | server
    numbers = [("train", 100), ("dev", 200), ("test", 300)]
    rows = rows or [row(s, n + i) for s, n in numbers for i in range(5)]
    return {"server": server, "tasks": rows}


@pytest.fixture
def make(tmp_path):
    """Return a function that makes an environment of a file; all are closed."""
    with contextlib.ExitStack() as stack:

        def made(rows=None, **server):
            path = tmp_path / f"notes{len(list(tmp_path.iterdir()))}.json"
            path.write_text(json.dumps(content(rows, **server)))
            env = registry.make(f"mcp:{path}")
            stack.callback(env.close)
            return env

        yield made


def begun(env, number=0):
    task = base.as_tasks(env).tasks("train")[number]
    return env.reset(options={"task": task})


def test_an_episode_is_won_by_what_stands_in_the_workspace(make):
    env = make()
    state, info = begun(env)
    assert state == "result files a"
    assert info["tools"] == (
        "tools: get(name: str) Read a note; put(name: str, text: str) Write a note"
    )
    assert env.step('get {"name": "a"}')[:4] == ("result T100", 0.0, False, False)
    state, reward, terminated, _, info = env.step('put {"name": "b", "text": "T100"}')
    assert (state, reward, terminated) == ("result wrote /workspace/b", 1.0, True)
    assert info["success"]


def test_the_next_episode_finds_the_workspace_as_its_task_says(make):
    env = make()
    begun(env)
    env.step('put {"name": "c", "text": "x"}')
    begun(env, 1)
    assert env.step('get {"name": "a"}')[0] == "result T101"
    state, _, _, _, info = env.step('get {"name": "c"}')
    assert state == "result error: FileNotFoundError: /workspace/c"
    assert info["invalid"]


def test_the_agent_may_write_the_name_of_the_workspace(make):
    env = make(tools=[])
    begun(env)
    assert env.step("where {}")[0] == "result /workspace"
    assert env.step('get {"name": "/workspace/a"}')[0] == "result T100"


def test_types_of_a_schema_are_those_of_calls(make):
    env = make(tools=["typed"])
    begun(env)
    assert str(env.tools["typed"]) == (
        'typed(kind: "a" | "b", number: int, list: list[float], maybe: str | null, '
        "anything: any, limit: int = 3, from?: str) Take all types"
    )
    call = '"kind": "a", "number": 1, "list": [1, 2.5], "maybe": null, "anything": {}'
    assert env.step(f"typed {{{call}}}")[0] == f"result {{{call}}}"
    other = call.replace('"a"', '"c"')
    state, *_ = env.step(f"typed {{{other}}}")
    assert state == 'result error: kind must be "a" | "b", got "c"'


def test_it_keeps_the_contract(make, tmp_path):
    env = make()
    (path,) = tmp_path.iterdir()  # tasks are named by the file
    report = checker.check(env, make=lambda: registry.make(f"mcp:{path}"))
    assert (report.faults, report.warnings) == ((), ()), report.text("notes")
    assert report.won["the expert"] == (5, 5)


def test_check_takes_the_name_of_the_file(tmp_path, capsys):
    path = tmp_path / "notes.json"
    path.write_text(json.dumps(content()))
    assert cli.main(["check", "--env", f"mcp:{path}"]) == 0
    assert "no faults, no warnings" in capsys.readouterr().out


# --- success ---


def test_an_answer_ends_the_episode(make):
    env = make([row("train", 1, success={"answer": "T1"})])
    for text, won in (("T1", True), ("T2", False)):
        begun(env)
        _, reward, terminated, _, info = env.step(text)
        assert (reward, terminated, info["success"]) == (float(won), True, won)


def test_no_answer_is_asked_where_none_decides(make):
    env = make()
    begun(env)
    _, _, terminated, _, info = env.step("T100")
    assert (terminated, info["invalid"]) == (False, True)


def test_success_by_the_result_of_a_call(make):
    result = {"call": 'get {"name": "b"}', "contains": ["T1"], "lacks": ["T12"]}
    env = make([row("train", 1, success={"result": result})])
    for text, won in (("T1", True), ("T12", False), ("x", False)):
        begun(env)
        answer = env.step(f'put {{"name": "b", "text": "{text}"}}')
        assert answer[4]["success"] == won
        assert not answer[4]["invalid"]


def test_success_by_what_is_gone(make):
    env = make([row("train", 1, success={"absent": ["a"], "files": {"b": "T1"}})])
    begun(env)
    assert not env.step('put {"name": "b", "text": "T1"}')[4]["success"]


# --- the server ---


def test_a_call_of_the_file_may_always_be_shown(make):
    env = make(observe='get {"name": "a"}')
    assert begun(env)[0] == "T100\nresult files a"
    state = env.step('put {"name": "a", "text": "new"}')[0]
    assert state == "new\nresult wrote /workspace/a"
    env = make([row("train", 1, files={})], observe='get {"name": "a"}')
    assert begun(env)[0].startswith("error: FileNotFoundError: /workspace/a\n")


def test_the_calls_of_a_setup_are_made_before_the_first_state(make):
    env = make([row("train", 1, files={}, setup=['put {"name": "a", "text": "T9"}'])])
    begun(env)
    assert env.step('get {"name": "a"}')[0] == "result T9"


def test_a_server_with_state_in_memory_is_started_anew(make):
    for restart, second in ((False, "call 2"), (True, "call 1")):
        env = make(tools=["count"], restart=restart)
        begun(env)
        assert env.step("count {}")[0] == "result call 1"
        begun(env)
        assert env.step("count {}")[0] == f"result {second}"


def test_a_dead_server_breaks_one_episode(make):
    env = make(tools=[])
    begun(env)
    with pytest.raises(ConnectionError, match="ended with status 3"):
        env.step("crash {}")
    begun(env)
    assert env.step('get {"name": "a"}')[0] == "result T100"


def test_a_server_that_hangs_breaks_one_episode(make):
    env = make(tools=[], step_seconds=0.5)
    begun(env)
    with pytest.raises(EnvironmentTimeout, match=r"tools/call within 0\.5 s"):
        env.step("hang {}")
    begun(env)
    assert env.step('get {"name": "a"}')[0] == "result T100"


def test_a_server_that_stops_to_read_breaks_one_episode():
    """What it does not read fills the pipe, and a write would wait for ever."""
    deaf = [sys.executable, "-c", DEAF]
    session = McpSession(deaf, {}, step_seconds=0.5, start_seconds=30.0)
    start = time.monotonic()
    with pytest.raises(EnvironmentTimeout, match="did not read tools/call within"):
        session.call("put", {"text": "a" * 300_000})
    session.close()
    assert time.monotonic() - start < 10


DEAF = """
import json, sys, time
request = json.loads(sys.stdin.readline())
result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {},
          "serverInfo": {"name": "deaf", "version": "1"}}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
time.sleep(60)
"""


def test_a_long_result_is_cut(make):
    env = make(tools=[])
    begun(env)
    lines = env.step("shout {}")[0].splitlines()
    assert lines[0] == f"result {'a' * 20_000}"
    assert lines[1] == "(30000 more characters)"


def test_a_link_in_the_workspace_is_removed_and_not_followed(make, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("x")
    env = make()
    begun(env)
    (env._folder / "link").symlink_to(other)
    begun(env)
    assert [p.name for p in env._folder.iterdir()] == ["a"]
    assert (other / "kept").exists()
    shutil.rmtree(env._folder)
    begun(env)
    assert env.step('get {"name": "/workspace/a"}')[0] == "result T100"


def test_what_a_server_writes_at_its_end_is_not_in_the_next_episode(make):
    env = make(restart=True, command=[*COMMAND, "saves"])
    begun(env)
    begun(env)
    assert [p.name for p in env._folder.iterdir()] == ["a"]


def test_texts_with_the_name_of_the_workspace_are_compared_as_written(make):
    text = "see /workspace/a, not my/workspace or /workspaces"
    env = make([row("train", 1, success={"files": {"b": text}})])
    begun(env)
    call = json.dumps({"name": "b", "text": text})
    assert env.step(f"put {call}")[4]["success"]
    assert "my/workspace or /workspaces" in (env._folder / "b").read_text()


def _is_gone(group):
    """Whether all processes of a group end within some seconds."""
    for _ in range(50):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.medium
def test_a_server_behind_a_shell_ends_as_well(make):
    shell = ["sh", "-c", f"{sys.executable} {SERVER} $0; true", "{workspace}"]
    env = make(command=shell, tools=[], step_seconds=0.5)
    begun(env)
    group = env._session._process.pid
    with pytest.raises(EnvironmentTimeout):
        env.step("hang {}")
    assert _is_gone(group)


def test_a_server_does_not_inherit_secrets(make, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "x")
    program = "import os, sys; sys.exit(3 + ('SECRET_KEY' in os.environ))"
    with pytest.raises(ConnectionError, match="status 3"):
        make(command=[sys.executable, "-c", program])
    with pytest.raises(ConnectionError, match="status 4"):
        make(command=[sys.executable, "-c", program], env={"SECRET_KEY": "y"})


def test_the_file_says_whether_calls_are_deterministic(make):
    assert base.is_deterministic(make())
    assert not base.is_deterministic(make(deterministic=False))


def test_closing_ends_the_process_and_removes_the_workspace(make):
    env = make()
    begun(env)
    folder, process = env._folder, env._session._process
    assert folder.is_dir()
    env.close()
    assert process.poll() == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["no-such-program-x"], "cannot be started: .*No such file"),
        ([sys.executable, "-c", "import sys; sys.exit(7)"], "ended with status 7"),
        ([sys.executable, "-c", "print('hello')"], "ended with status 0"),
    ],
)
def test_a_server_that_does_not_start(make, command, message):
    with pytest.raises(ConnectionError, match=message):
        make(command=command)


def test_a_tool_that_the_server_lacks(make):
    with pytest.raises(ValueError, match="no tool 'fly'; have put, get"):
        make(tools=["fly"])


def test_a_server_without_tools_is_no_environment(make, monkeypatch):
    monkeypatch.setattr(McpSession, "tools", lambda _: [])
    with pytest.raises(ValueError, match="the server has no tools"):
        make(tools=[], observe="")


# --- the file ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(x=1), "no key 'x'; have"),
        (lambda c: c["server"].update(x=1), "no key 'x' in server"),
        (lambda c: c["server"].update(command="a b"), "command must be a list"),
        (lambda c: c["server"].update(command=[]), "must name the program"),
        (lambda c: c["server"].update(env={"A": 1}), "env must be a table of texts"),
        (lambda c: c["server"].update(restart=1), "restart must be true or false"),
        (lambda c: c["server"].update(max_episode_steps=0), "steps must be .*, got 0"),
        (lambda c: c["server"].update(step_seconds="1"), "seconds must be > 0"),
        (lambda c: c["server"].update(step_seconds=1e300), "most 1,000,000,000, got 1"),
        (lambda c: c["server"].update(observe="look"), "observe must be a call"),
        (lambda c: c.update(tasks=[]), "tasks must be a list"),
        (lambda c: c["tasks"][0].update(x=1), r"no key 'x' in tasks\[0\]"),
        (lambda c: c["tasks"][2].pop("split"), r"tasks\[2\].split must be a text"),
        (lambda c: c["tasks"][0].update(split="all"), "split must be one of"),
        (lambda c: c["tasks"][0].update(instruction=" "), "instruction must be a text"),
        (lambda c: c["tasks"][0].update(files={"../a": ""}), "'../a' must be a path"),
        (lambda c: c["tasks"][0].update(files={"/a": ""}), "'/a' must be a path in"),
        (lambda c: c["tasks"][0].update(files={".": ""}), r"'\.' must be a path in"),
        (
            lambda c: c["tasks"][0].update(files={"a": "", "a/b/c": ""}),
            "'a' is a folder of 'a/b/c'",
        ),
        (
            lambda c: c["tasks"][0].update(setup=["get {}\nget {}"]),
            "setup must be a call",
        ),
        (lambda c: c["tasks"][0].update(files={"a": 1}), "table of paths and texts"),
        (lambda c: c["tasks"][0].update(setup=["look"]), "setup must be a call"),
        (lambda c: c["tasks"][0].update(expert="x"), "expert must be a list of texts"),
        (lambda c: c["tasks"][0].pop("success"), "success must be a table"),
        (lambda c: c["tasks"][0].update(success={}), "success must have one of"),
        (lambda c: c["tasks"][0].update(success={"answer": 1}), "answer must be a"),
        (
            lambda c: c["tasks"][0].update(success={"result": {"call": "get {}"}}),
            "needs contains or lacks",
        ),
        (
            lambda c: c["tasks"][0].update(success={"absent": ["/etc"]}),
            "'/etc' must be a path",
        ),
        (lambda c: c["tasks"].append(c["tasks"][1]), r"tasks\[15\] has the id of"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, change, message):
    value = content()
    change(value)
    path = tmp_path / "notes.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match=message) as error:
        read_task_file(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(ValueError, match="No such file"):
        read_task_file(tmp_path / "none.toml")
    path = tmp_path / "broken.toml"
    path.write_text("[server\n")
    with pytest.raises(ValueError, match=r"broken\.toml: "):
        read_task_file(path)


def test_toml_and_json_are_the_same(tmp_path):
    (tmp_path / "notes.toml").write_text("""
[server]
command = ["x", "{workspace}"]

[[tasks]]
split = "train"
instruction = "copy"
files = {"a.txt" = "hello"}
success = {files = {"b.txt" = "hello"}}
""")
    value = {
        "server": {"command": ["x", "{workspace}"]},
        "tasks": [
            {
                "split": "train",
                "instruction": "copy",
                "files": {"a.txt": "hello"},
                "success": {"files": {"b.txt": "hello"}},
            }
        ],
    }
    (tmp_path / "notes.json").write_text(json.dumps(value))
    one, two = (read_task_file(tmp_path / f"notes.{kind}") for kind in ("toml", "json"))
    assert (one.server, one.tasks) == (two.server, two.tasks)
    assert len(one.tasks["train"]) == 1
    assert one.tasks["dev"] == ()


PAGE = (Path(__file__).parents[4] / "docs/how-to/mcp.md").read_text()


def test_the_files_of_the_page_are_valid(tmp_path):
    blocks = re.findall(r"```toml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
    assert [name for name, _ in blocks] == ["notes.toml", "facts.toml"]
    for name, block in blocks:
        (tmp_path / name).write_text(block)
        file = read_task_file(tmp_path / name)
        assert file.server.max_episode_steps == 8
        assert [len(file.tasks[s]) for s in base.SPLITS] == [1, 0, 0]


def test_the_program_of_the_page_writes_a_file(tmp_path, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "page", "exec"), {})
    file = read_task_file("notes.json")
    assert [len(file.tasks[s]) for s in base.SPLITS] == [200, 60, 100]


def test_every_key_of_the_file_is_on_the_page():
    keys = [f.name for f in dataclasses.fields(task_file.ServerSettings)]
    keys += [*task_file._TASK_KEYS, *task_file._SUCCESS_KEYS]
    assert [k for k in keys if f"`{k}`" not in PAGE] == []


# --- servers of other people ---


def test_a_server_of_the_official_library(tmp_path):
    pytest.importorskip("mcp.server.fastmcp", reason="the package mcp is not installed")
    path = tmp_path / "server.py"
    path.write_text("""
from mcp.server.fastmcp import FastMCP

server = FastMCP("sums")


@server.tool()
def add(a: int, b: int = 1) -> str:
    \"\"\"Add two numbers.\"\"\"
    if a < 0:
        raise ValueError("a is negative")
    return f"sum {a + b}"


server.run()
""")
    session = McpSession([sys.executable, str(path)], {}, step_seconds=30.0)
    with contextlib.closing(session):
        (tool,) = session.tools()
        assert (tool.name, tool.description) == ("add", "Add two numbers.")
        assert set(tool.schema["properties"]) == {"a", "b"}
        assert session.call("add", {"a": 2, "b": 3}) == "sum 5"
        assert session.call("add", {"a": 2}) == "sum 3"
        with pytest.raises(ToolError, match="a is negative"):
            session.call("add", {"a": -1})
        with pytest.raises(ToolError):
            session.call("fly", {})


@pytest.mark.slow
def test_a_whole_run_dreams_of_a_server(tmp_path):
    path = tmp_path / "notes.json"
    splits = {"train": (100, 24), "dev": (200, 8), "test": (300, 8)}
    rows = [row(s, n + i) for s, (n, count) in splits.items() for i in range(count)]
    path.write_text(json.dumps(content(rows)))
    command = [sys.executable, "-m", "dreamgym", "quickstart", "--preset", "tiny"]
    command += ["--env", f"mcp:{path}", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["policies"]["expert"]["success"]["mean"] == 1.0


def test_arguments_that_are_no_json_are_an_error_at_once(tmp_path):
    session = McpSession(
        [sys.executable, str(SERVER), str(tmp_path)],
        {},
        step_seconds=30.0,
        start_seconds=30.0,
    )
    deep = {"a": 1}
    for _ in range(100_000):
        deep = {"a": deep}
    start = time.monotonic()
    with pytest.raises(RecursionError):
        session.call("put", deep)
    assert time.monotonic() - start < 10
    session.close()
