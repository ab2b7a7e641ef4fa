"""Feed damaged input to everything that reads what others wrote.

    python scripts/fuzz.py                          half a minute for all readers
    python scripts/fuzz.py --seconds 600 --only episodes settings
    python scripts/fuzz.py --replay                 the kept inputs alone

Each reader has inputs that it accepts. They are damaged: bytes are flipped, cut out,
doubled or taken from another input, and values of JSON are replaced by odd ones. A
reader may accept what it gets, or raise an error of its own kind (a type that it
documents), and in a few seconds. Whatever else happens is a finding: the input is kept
in tests/fuzz_corpus/READER/, printed, and replayed at every later start, in the tests
as well. Exit status 1 with a finding.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dreamgym.commands.studies.study_file import read_study
from dreamgym.config.overrides import restored
from dreamgym.config.presets import preset
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.envs.mcp.task_file import read_task_file
from dreamgym.envs.remote.connection import ProtocolError, ServerRefusal, parse_answer
from dreamgym.envs.remote.texts import observation_text, result_of
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
CORPUS = ROOT / "tests" / "fuzz_corpus"
SECONDS = 20.0
"""What one input may take, at most; on a busy machine as well."""
ODD = (
    *("NaN", "1e999", "-1e999", "1" * 400, "null", "true", "[]", "{}", '""', "-0.0"),
    *('"\\ud800"', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 5000 + '"', "0.5", "-1"),
    *("[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600, '{"x": {"x": []}}'),
)


class Reader(NamedTuple):
    """Something that reads: inputs that it accepts, and the errors it may raise."""

    inputs: Sequence[bytes]
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (ValueError,)


class Finding(NamedTuple):
    """An input that a reader does not refuse as it should."""

    reader: str
    data: bytes
    what: str


# --- what reads ---


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
    }


def _read_all_replies(text: str) -> None:
    """Read a text as each kind of reply."""
    for read in (read_reply, lambda reply: read_scores(reply, 2), read_choice):
        try:
            read(text)
        except ValueError:
            continue


# --- damage ---


def damaged(inputs: Sequence[bytes], draw: random.Random) -> bytes:
    """Return one of the inputs with one to four damages."""
    data = draw.choice(inputs)
    for _ in range(draw.randint(1, 4)):
        data = draw.choice((_flip, _cut, _double, _splice, _odd_value, _odd_value))(
            data, inputs, draw
        )
    return data


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randint(0, len(data))
    return start, min(len(data), start + draw.choice((1, 2, 8, 64, 1024)))


def _flip(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]


def _cut(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:start] + data[end:]


def _double(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    start, end = _span(data, draw)
    return data[:end] + data[start:end] * draw.choice((1, 3, 100)) + data[end:]


def _splice(data: bytes, inputs: Sequence[bytes], draw: random.Random) -> bytes:
    other = draw.choice(inputs)
    start, end = _span(other, draw)
    at = draw.randint(0, len(data))
    return data[:at] + other[start:end] + data[at:]


def _odd_value(data: bytes, _: Sequence[bytes], draw: random.Random) -> bytes:
    """Put an odd value of JSON in the place of one that stands behind a colon."""
    places = [i + 1 for i, byte in enumerate(data) if byte in b":=["]
    if not places:
        return data
    start = draw.choice(places)
    ends = [i for i in range(start, min(len(data), start + 300)) if data[i] in b",]}\n"]
    end = draw.choice(ends) if ends else start
    return data[:start] + draw.choice(ODD).encode() + data[end:]


# --- the search ---


def problem_of(reader: Reader, data: bytes) -> str:
    """Return what is wrong with how a reader takes an input; empty where nothing is."""
    start_time = time.monotonic()
    try:
        reader.read(data)
    except reader.errors as error:
        if len(str(error)) > 20_000 + len(data):
            return f"a message of {len(str(error)):,} characters"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    except RecursionError:
        return "RecursionError"
    seconds = time.monotonic() - start_time
    return f"{seconds:.1f} s" if seconds > SECONDS else ""


def kept_inputs(name: str, corpus: Path = CORPUS) -> list[bytes]:
    """Return the inputs of a reader that were findings once."""
    folder = corpus / name.replace(" ", "_")
    return [path.read_bytes() for path in sorted(folder.glob("*"))]


def fuzz(
    name: str,
    reader: Reader,
    *,
    seconds: float,
    seed: int,
    corpus: Path = CORPUS,
    limit: float = math.inf,
) -> tuple[int, list[Finding]]:
    """Replay the kept inputs, then damage others for a time; return count, findings.

    At most `limit` inputs are damaged; they depend on the seed alone.
    """
    findings, count = [], 0
    draw = random.Random(f"{seed} {name}")
    for data in (*reader.inputs, *kept_inputs(name, corpus)):
        count += 1
        if what := problem_of(reader, data):
            findings.append(Finding(name, data, what))
    end = time.monotonic() + seconds
    kinds = set[str]()
    while time.monotonic() < end and limit > 0:
        limit -= 1
        count += 1
        data = damaged(reader.inputs, draw)
        what = problem_of(reader, data)
        if what and what[:60] not in kinds:
            kinds.add(what[:60])
            findings.append(Finding(name, data, what))
    return count, findings


def keep(finding: Finding, corpus: Path = CORPUS) -> Path:
    """Write a finding into the corpus; return its file."""
    folder = corpus / finding.reader.replace(" ", "_")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(finding.data).hexdigest()[:16]
    path.write_bytes(finding.data)
    return path


def main() -> None:
    """Parse the arguments, search, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="in all (30)")
    parser.add_argument("--seed", type=int, help="of the damage (default: the time)")
    parser.add_argument("--only", nargs="+", metavar="READER", help="readers (all)")
    parser.add_argument("--replay", action="store_true", help="kept inputs alone")
    args = parser.parse_args()
    all_readers = readers()
    chosen = args.only or list(all_readers)
    if unknown := sorted(set(chosen) - set(all_readers)):
        sys.exit(f"no reader {unknown[0]!r}; have {', '.join(all_readers)}")
    seed = int(time.time()) if args.seed is None else args.seed
    seconds = 0.0 if args.replay else args.seconds / len(chosen)
    failed = False
    for name in chosen:
        count, findings = fuzz(name, all_readers[name], seconds=seconds, seed=seed)
        print(f"{name}: {count:,} inputs, {len(findings)} findings", flush=True)
        for finding in findings:
            failed = True
            print(f"  {finding.what}\n    {keep(finding)}", flush=True)
    print(f"seed {seed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
