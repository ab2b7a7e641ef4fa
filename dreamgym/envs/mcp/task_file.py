"""A file that makes an environment of an MCP server: its command, and tasks.

    [server]
    command = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "{workspace}"]

    [[tasks]]
    split = "train"
    instruction = "copy the text of a.txt to b.txt"
    files = {"a.txt" = "hello"}
    success = {files = {"b.txt" = "hello"}}

TOML, or JSON of the same form, which is easier to write by a program. A server has
tools and knows no tasks; the file says how each begins and what its success is.
"""

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dreamgym.envs.base import SPLITS
from dreamgym.envs.failures import MAX_DECLARED
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import Call, read_action, read_call

STEP_SECONDS = 30.0
"""Seconds that a call may take, where the file does not say."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How a server is started, and what an agent sees of it."""

    command: tuple[str, ...]
    """The program and its arguments; `{workspace}` is the directory of the episode."""
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables, in which `{workspace}` means the same."""
    tools: tuple[str, ...] = ()
    """The names of the tools that the agent has; empty: all."""
    observe: str = ""
    """A call whose result is always shown; empty: only results of the agent's calls."""
    restart: bool = False
    """Whether each episode has a new server; needed where it keeps state in memory."""
    deterministic: bool = True
    """Whether equal calls always have equal results; false where they hold times or
    random identifiers."""
    max_episode_steps: int = 16
    """Steps after which an episode is cut."""
    step_seconds: float = STEP_SECONDS
    """Seconds that a call may take."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskFile:
    """What a file holds: the server, and the tasks of each split."""

    path: Path
    server: ServerSettings
    tasks: Mapping[str, tuple[Task, ...]]


_TASK_KEYS = (
    "id",
    "split",
    "family",
    "instruction",
    "files",
    "setup",
    "success",
    "expert",
)
_SUCCESS_KEYS = ("files", "absent", "result", "answer")


def read_task_file(path: str | Path) -> TaskFile:
    """Read a file of a server and its tasks.

    Raises:
      ValueError: the file is missing or malformed; the message names what is wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    _check_keys(path, "", value, ("server", "tasks"))
    server = _server(path, value.get("server"))
    rows = value.get("tasks")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: tasks must be a list, [[tasks]], and not be empty")
    tasks = [_task(path, i, row) for i, row in enumerate(rows)]
    by_id: dict[str, int] = {}
    for i, task in enumerate(tasks):
        if (first := by_id.setdefault(task.id, i)) != i:
            raise ValueError(f"{path}: tasks[{i}] has the id of tasks[{first}]")
    return TaskFile(
        path=path.resolve(),
        server=server,
        tasks={s: tuple(t for t in tasks if t.split == s) for s in SPLITS},
    )


def _check_keys(path: Path, where: str, value: Any, keys: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {where or 'the file'} must be a table of {keys}")
    if unknown := value.keys() - set(keys):
        inside = f" in {where}" if where else ""
        raise ValueError(f"{path}: no key {min(unknown)!r}{inside}; have {keys}")


def _server(path: Path, value: Any) -> ServerSettings:
    fields = {f.name: f for f in dataclasses.fields(ServerSettings)}
    _check_keys(path, "server", value, tuple(fields))
    for name in ("command", "tools"):
        if not _is_texts(value.get(name, [])):
            raise ValueError(f"{path}: server.{name} must be a list of texts")
    if not value.get("command"):
        raise ValueError(f"{path}: server.command must name the program to start")
    if not _is_text_table(value.get("env", {})):
        raise ValueError(f"{path}: server.env must be a table of texts")
    for name in ("restart", "deterministic"):
        if not isinstance(value.get(name, False), bool):
            raise ValueError(f"{path}: server.{name} must be true or false")
    for name in ("max_episode_steps", "step_seconds"):
        number = value.get(name, 1)
        kinds = int if name == "max_episode_steps" else (int, float)
        is_number = isinstance(number, kinds) and not isinstance(number, bool)
        if not is_number or not 0 < number <= MAX_DECLARED:
            raise ValueError(
                f"{path}: server.{name} must be > 0 and at most {MAX_DECLARED:,}, got "
                f"{number!r:.60}"
            )
    _checked_call(path, "server.observe", value.get("observe", ""), empty=True)
    lists = {k: tuple(value[k]) for k in ("command", "tools") if k in value}
    seconds = {"step_seconds": float(value.get("step_seconds", STEP_SECONDS))}
    return ServerSettings(**value | lists | seconds)


def _task(path: Path, number: int, row: Any) -> Task:
    """Return a task; all that `McpEnv` needs to begin it stands in its options."""
    where = f"tasks[{number}]"
    _check_keys(path, where, row, _TASK_KEYS)
    for name in ("instruction", "split"):
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"{path}: {where}.{name} must be a text")
    if row["split"] not in SPLITS:
        raise ValueError(
            f"{path}: {where}.split must be one of {SPLITS}, got {row['split']!r}"
        )
    _check_files(path, f"{where}.files", row.get("files", {}))
    for name in ("setup", "expert"):
        calls = row.get(name, [])
        if not _is_texts(calls):
            raise ValueError(f"{path}: {where}.{name} must be a list of texts")
        for call in calls if name == "setup" else ():
            _checked_call(path, f"{where}.setup", call)
    _check_success(path, f"{where}.success", row.get("success"))
    options = {k: row[k] for k in ("files", "setup", "success", "expert") if k in row}
    content = json.dumps([row["instruction"], options], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return Task(
        id=str(row.get("id", f"{path.stem}-{digest}")),
        family=str(row.get("family", path.stem)),
        split=row["split"],
        instruction=row["instruction"],
        options=options,
    )


def _check_success(path: Path, where: str, value: Any) -> None:
    _check_keys(path, where, value, _SUCCESS_KEYS)
    if not value:
        raise ValueError(f"{path}: {where} must have one of {_SUCCESS_KEYS}")
    _check_files(path, f"{where}.files", value.get("files", {}))
    if not _is_texts(value.get("absent", [])):
        raise ValueError(f"{path}: {where}.absent must be a list of paths")
    for name in value.get("absent", []):
        _check_path(path, f"{where}.absent", name)
    if "answer" in value and not isinstance(value["answer"], str):
        raise ValueError(f"{path}: {where}.answer must be a text")
    if "result" in value:
        result = value["result"]
        _check_keys(path, f"{where}.result", result, ("call", "contains", "lacks"))
        _checked_call(path, f"{where}.result.call", result.get("call"))
        texts = {k: result.get(k, []) for k in ("contains", "lacks")}
        if not all(map(_is_texts, texts.values())) or not any(texts.values()):
            raise ValueError(
                f"{path}: {where}.result needs contains or lacks, lists of texts"
            )


def _checked_call(path: Path, where: str, text: Any, *, empty: bool = False) -> None:
    if empty and text == "":
        return
    calls = read_action(text).calls if isinstance(text, str) else ()
    if len(calls) != 1 or not calls[0].valid_json:
        raise ValueError(
            f'{path}: {where} must be a call such as read {{"path": "a"}}, got {text!r}'
        )


def call_of(text: str) -> Call:
    """Return the call that a text of a checked file holds."""
    call = read_call(text)
    if call is None:
        raise ValueError(f"expected a call, got {text!r}")
    return call


def _check_files(path: Path, where: str, value: Any) -> None:
    if not _is_text_table(value):
        raise ValueError(f"{path}: {where} must be a table of paths and texts")
    for name in value:
        _check_path(path, where, name)
        for folder in PurePosixPath(name).parents:
            if str(folder) in value:
                raise ValueError(
                    f"{path}: {where}: {str(folder)!r} is a folder of "
                    f"{name!r}, and cannot be a file"
                )


def _check_path(path: Path, where: str, name: str) -> None:
    """Refuse paths that lead out of the workspace."""
    parts = PurePosixPath(name)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"{path}: {where}: {name!r} must be a path in the workspace")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(x, str) for x in value)


def _is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(x, str) for x in value.values())
