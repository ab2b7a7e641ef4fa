"""The readers that the fuzz tests (fuzz.py), with their inputs and their errors.

files of users, models, answers of servers, messages of workers, frames of clients
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dreamgym.commands.studies.study_file import read_study
from dreamgym.config.overrides import restored
from dreamgym.config.presets import preset
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.envs.mcp.messages import (
    ToolError,
    parse_line,
    parse_result,
    parse_tools,
    result_text,
)
from dreamgym.envs.mcp.task_file import read_task_file
from dreamgym.envs.remote.connection import ProtocolError, ServerRefusal, parse_answer
from dreamgym.envs.remote.texts import observation_text, result_of
from dreamgym.envs.tools.signatures import Signature
from dreamgym.envs.workers.messages import decode
from dreamgym.rewards.comparison import read_choice
from dreamgym.rewards.judge import read_scores
from dreamgym.rewards.preferences import Preference, read_preferences, write_preferences
from dreamgym.run.directory import RunError
from worldmodel.backbone.model import create
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.data.records import (
    Episode,
    Task,
    Transition,
    read_episodes,
    write_episodes,
)
from worldmodel.experience.prompting import read_reply
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.tools.tool_calls import read_action

ROOT = Path(__file__).resolve().parents[1]


class Reader(NamedTuple):
    """Something that reads: inputs that it accepts, and the errors it may raise."""

    inputs: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (ValueError,)


def _episode() -> Episode:
    state = ("the lamp is off", "the door is shut", "carry key 7")
    after = ("the lamp is on", *state[1:])
    steps = (
        Transition(
            state=state,
            action='press {"what": "lamp"}',
            next_state=after,
            rewards={"task": 0.5},
            thought="it is dark",
            reasoning="the lamp changes",
            costs={"call": 1.0},
            valid_actions=("wait", "press lamp"),
        ),
        Transition(
            state=after,
            action="open door",
            next_state=(*after, "said open"),
            rewards={"task": 1.0},
            terminated=True,
            success=True,
        ),
    )
    task = Task(id="t-1", instruction="leave", family="room", options={"seed": 1})
    return Episode(
        id="e-1", task=task, transitions=steps, source="expert", success=True
    )


def _episodes(count: int) -> list[Episode]:
    return [dataclasses.replace(_episode(), id=f"e-{i}") for i in range(count)]


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return a function that reads bytes as a file of this name."""

    def run(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            return read(path)

    return run


def _written(name: str, write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", errors="surrogateescape"))


def _model_reader(name: str) -> Reader:
    """Return the reader of a model directory in which one file is damaged."""
    tokenizer = _tokenizer()
    config = MODELS["nano"].model(tokenizer.vocab_size)
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        save_model(root, create(config, seed=0), tokenizer)
        files = {p.name: p.read_bytes() for p in root.iterdir() if p.is_file()}
    del files["checksums.json"]  # they would refuse every damage at once

    def read(data: bytes) -> object:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for other, content in files.items():
                (root / other).write_bytes(data if other == name else content)
            return load_model(root)

    return Reader([files[name]], read)


def _tokenizer() -> TextTokenizer:
    e = _episode()
    lines = [line for t in e.transitions for line in (*t.state, *t.next_state)]
    return TextTokenizer.train([*lines, "press lamp", "open door"], vocab_size=400)


def _reply_reader() -> Reader:
    """Return the reader of what an experience model sampled, as ids of two bytes."""
    tokenizer, t = _tokenizer(), _episode().transitions[0]
    ids = np.array(prompts.reply_ids(tokenizer, t), ">u2")

    def read(data: bytes) -> object:
        ids_read = (
            np.frombuffer(data[: len(data) // 2 * 2], ">u2") % tokenizer.vocab_size
        )
        return prompts.parse_reply(tokenizer, ids_read.tolist(), t.state)

    return Reader([ids.tobytes()], read, ())


def _preferences() -> Reader:
    e = _episode()
    pair = Preference(task=e.task, better=e.transitions, worse=e.transitions[:1])
    file = _written("pairs.jsonl", lambda path: write_preferences(path, [pair] * 2))
    return Reader([file], _in_file("pairs.jsonl", read_preferences))


def _study_inputs() -> list[bytes]:
    files = sorted((ROOT / "scripts" / "studies").glob("*.toml"))
    return [path.read_bytes() for path in files[:8]]


MCP_TASKS = b"""\
[server]
command = ["node", "server.js"]
max_episode_steps = 8
[[tasks]]
split = "train"
id = "one"
instruction = "write it"
files = {"a.txt" = "1"}
expert = ['write {"path": "a.txt"}']
success = {files = {"a.txt" = "2"}}
"""

ANSWER = json.dumps(
    {
        "type": "observation",
        "data": {
            "observation": {"text": "a room", "metadata": {"success": True}},
            "reward": 0.5,
            "done": False,
        },
    }
).encode()


def _read_answer(text: str) -> object:
    data = parse_answer(text)
    return observation_text(data.get("observation")), result_of(data)


TOOLS = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 3,
        "result": {
            "tools": [
                {
                    "name": "find",
                    "description": "Find a note. It may be missing.",
                    "inputSchema": {
                        "properties": {
                            "name": {"type": ["string", "null"], "default": "a"},
                            "kind": {"enum": ["x", 1]},
                            "tags": {"type": "array", "items": {"type": "string"}},
                            "limit": {"anyOf": [{"type": "integer"}, {"const": 3}]},
                        },
                        "required": ["name"],
                    },
                }
            ],
            "content": [{"type": "text", "text": "a note"}, {"type": "image"}],
        },
    }
).encode()


def _read_line_of_mcp(line: bytes) -> None:
    """Read a line of an MCP server as the answer to each of our requests."""
    if (message := parse_line(line)) is None:
        return
    for tool in parse_tools(result := parse_result(message)):
        try:
            signature = Signature.of_schema(*tool)
        except ValueError:
            continue
        text = json.dumps([str(signature), signature.schema()], ensure_ascii=False)
        text.encode()  # as an episode is written
    result_text(result).encode()


FRAMES = (
    b'{"type": "reset", "data": {"seed": 3, "split": "train", "details": true}}',
    b'{"type": "step", "data": {"message": "go right", "metadata": {"a": [1]}}}',
    b'{"type": "state", "data": {}}',
    b'{"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}',
)


FRAME_READERS = ("frames of clients", "requests by JSON-RPC")
"""Readers that need the extra `serve`."""


def _frame_readers() -> dict[str, Reader]:
    """Return the readers of what clients send to `dreamgym serve`, if it is installed.

    A refusal and an answer by JSON-RPC are written as the server would send them.
    """
    try:
        from dreamgym.serving.messages import (
            McpMessage,
            Refused,
            answer_json_rpc,
            json_rpc,
            parse_message,
        )
    except ImportError:  # without the extra `serve`
        return {}

    def send(value: object) -> None:
        json.dumps(value, allow_nan=False).encode()

    def read_frame(data: bytes) -> None:
        try:
            message = parse_message(data.decode(errors="replace"))
        except Refused as refusal:
            send(refusal.payload())
            raise
        if isinstance(message, McpMessage):
            send(json_rpc(message.data))

    request = json.dumps(json.loads(FRAMES[-1])["data"]).encode()
    frames, requests = FRAME_READERS
    return {
        frames: Reader(FRAMES, read_frame, (Refused,)),
        requests: Reader([request], lambda data: send(answer_json_rpc(data)), ()),
    }


def readers() -> dict[str, Reader]:
    """Return all readers by name."""
    episodes = _written("e.jsonl", lambda path: write_episodes(path, _episodes(3)))
    settings = json.dumps(dataclasses.asdict(preset("tiny"))).encode()
    return {
        "episodes": Reader([episodes], _in_file("e.jsonl", read_episodes)),
        "packed episodes": Reader(
            [_written("e.jsonl.gz", lambda path: write_episodes(path, [_episode()]))],
            _in_file("e.jsonl.gz", read_episodes),
        ),
        "preferences": _preferences(),
        "settings": Reader(
            [settings],
            _text(lambda text: restored(RunConfig, json.loads(text))),
            (ValueError, RecursionError),
        ),
        "studies": Reader(
            _study_inputs(), _in_file("study.toml", read_study), (RunError,)
        ),
        "tool tasks": Reader([MCP_TASKS], _in_file("tasks.toml", read_task_file)),
        "model config": _model_reader("config.json"),
        "model tokenizer": _model_reader("tokenizer.json"),
        "model weights": _model_reader("model.safetensors"),
        "replies of a model": _reply_reader(),
        "replies of a server": Reader(
            [
                b'{"reasoning": "r", "next_state": ["a", "b"], "reward": 1, "done": 0}',
                b'{"why": "w", "scores": [1, 2.5]}',
                b'{"why": "w", "better": "A"}',
            ],
            _text(_read_all_replies),
        ),
        "actions": Reader(
            [
                b'weather(city="Paris", days=2)',
                b'<tool_call>{"name": "a", "arguments": {"b": [1]}}</tool_call>',
                b'find {"name": "x"}\nanswer {"content": "y"}',
                b'[find(name="x"), look()]',
                b'{"tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}',
            ],
            _text(read_action),
            (),
        ),
        "answers of a server": Reader(
            [ANSWER], _text(_read_answer), (ProtocolError, ServerRefusal)
        ),
        "messages of workers": Reader(
            [b'{"kind": "step", "value": [1, "a"]}', b'{"task": {"id": "t"}}'], decode
        ),
        "lines of MCP servers": Reader(
            [TOOLS], _read_line_of_mcp, (ToolError, ConnectionError)
        ),
        **_frame_readers(),
    }


def _read_all_replies(text: str) -> None:
    """Read a text as each kind of reply."""
    for read in (read_reply, lambda reply: read_scores(reply, 2), read_choice):
        try:
            read(text)
        except ValueError:
            continue
