"""What happened: tasks, transitions, episodes and branches, and their JSONL form.

file.jsonl -> one JSON object a line -> checked field by field -> frozen records.
Every error names file, line and expectation; a writer replaces its target only
when the whole new content is on disk, so bad input and full disks lose nothing.
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

SCHEMA = "dreamgym.episodes/1"
BRANCH_SCHEMA = "dreamgym.branches/1"

State = tuple[str, ...]
"""What the agent sees at one step: non-empty lines of text."""


class RecordError(ValueError):
    """A record that cannot be taken: says file, line, what was expected and got."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """What the agent is asked to do, and how to bring an environment to its start."""

    id: str
    instruction: str
    env: str = ""
    family: str = ""
    split: str = "train"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initial_state: State = ()
    lineage: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transition:
    """One step: state, action, next state, named rewards and how it ended.

    `invalid` says that the environment could not take the action; None: it did not say.
    """

    state: State
    action: str
    next_state: State
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    invalid: bool | None = None
    thought: str | None = None
    reasoning: str | None = None

    @property
    def reward(self) -> float:
        """The sum of the reward components."""
        return float(sum(self.rewards.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """A task and what happened on it. `success` is None where it was not scored."""

    id: str
    task: Task
    transitions: tuple[Transition, ...]
    source: str
    success: bool | None

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return sum(t.reward for t in self.transitions)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """A real alternative at one step of an episode: what another action led to."""

    episode: str
    step: int
    transition: Transition


def lines(text: str) -> State:
    """Text as state lines: trailing blanks and empty lines dropped."""
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


# --- reading -----------------------------------------------------------------


class _Where:
    """The place a value came from, for error messages."""

    def __init__(self, path: Path, line: int, field: str = ""):
        self.path, self.line, self.field = path, line, field

    def at(self, field: str) -> "_Where":
        return _Where(self.path, self.line, f"{self.field}.{field}".lstrip("."))

    def error(self, expected: str, got: object) -> RecordError:
        shown = repr(got)
        shown = shown if len(shown) < 80 else shown[:77] + "..."
        name = f" field {self.field!r}:" if self.field else ""
        return RecordError(
            f"{self.path}:{self.line}:{name} expected {expected}, got {shown}"
        )


_MISSING: Any = object()


def _get(row: Any, key: str, kind: type, where: _Where, default: Any = _MISSING) -> Any:
    if not isinstance(row, dict):
        raise where.error("a JSON object", row)
    value = row.get(key, default)
    if value is _MISSING:
        raise where.error(f"a field {key!r}", sorted(row))
    if value is default:
        return value
    bad_bool = kind is not bool and isinstance(value, bool)
    if kind is float and isinstance(value, int) and not bad_bool:
        try:
            value = float(value)
        except OverflowError:
            raise where.at(key).error("a number that fits a float", value) from None
    if not isinstance(value, kind) or bad_bool:
        raise where.at(key).error(kind.__name__, value)
    return value


def _state(row: Any, key: str, where: _Where, default: Any = _MISSING) -> State:
    value = _get(row, key, object, where, default)
    if isinstance(value, str):
        return lines(value)
    if not isinstance(value, list | tuple) or any(
        not isinstance(x, str) for x in value
    ):
        raise where.at(key).error("a string or a list of strings", value)
    return tuple(x for line in value for x in lines(line))


def _strings(row: Any, key: str, where: _Where) -> tuple[str, ...]:
    value = _get(row, key, list, where, [])
    if any(not isinstance(x, str) for x in value):
        raise where.at(key).error("a list of strings", value)
    return tuple(value)


def _task(row: Any, where: _Where) -> Task:
    return Task(
        id=_get(row, "id", str, where),
        instruction=_get(row, "instruction", str, where),
        env=_get(row, "env", str, where, ""),
        family=_get(row, "family", str, where, ""),
        split=_get(row, "split", str, where, "train"),
        options=_get(row, "options", dict, where, {}),
        initial_state=_state(row, "initial_state", where, []),
        lineage=_strings(row, "lineage", where),
    )


def _transition(row: Any, where: _Where) -> Transition:
    rewards = _get(row, "rewards", dict, where, None)
    if rewards is None:
        rewards = {"reward": _get(row, "reward", float, where)}
    named = {k: _get(rewards, k, float, where.at("rewards")) for k in rewards}
    if not all(abs(x) < float("inf") for x in named.values()):
        raise where.at("rewards").error("finite numbers", named)
    return Transition(
        state=_state(row, "state", where),
        action=_get(row, "action", str, where),
        next_state=_state(row, "next_state", where),
        rewards=named,
        terminated=_get(row, "terminated", bool, where, False),
        truncated=_get(row, "truncated", bool, where, False),
        success=_get(row, "success", bool, where, False),
        invalid=_get(row, "invalid", bool, where, None),
        thought=_get(row, "thought", str, where, None),
        reasoning=_get(row, "reasoning", str, where, None),
    )


def _episode(row: Any, where: _Where) -> Episode:
    steps = _get(row, "transitions", list, where)
    if not steps:
        raise where.at("transitions").error("at least one transition", steps)
    transitions = tuple(
        _transition(x, where.at(f"transitions[{i}]")) for i, x in enumerate(steps)
    )
    for i, (now, then) in enumerate(itertools.pairwise(transitions)):
        here = where.at(f"transitions[{i + 1}].state")
        if now.next_state != then.state:
            raise here.error(
                f"the next_state of transitions[{i}], {list(now.next_state)!r}",
                list(then.state),
            )
        if now.terminated or now.truncated:
            raise here.error("no step after the episode ended", list(then.state))
    task = _task(_get(row, "task", dict, where), where.at("task"))
    if not task.initial_state:
        task = dataclasses.replace(task, initial_state=transitions[0].state)
    return Episode(
        id=_get(row, "id", str, where),
        task=task,
        transitions=transitions,
        source=_get(row, "source", str, where, "unknown"),
        success=_get(row, "success", bool, where, None),
    )


def _rows(path: Path, schema: str) -> Iterator[tuple[Any, _Where]]:
    if not path.is_file():
        raise RecordError(f"{path}: no such file; expected JSONL of schema {schema!r}")
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            where = _Where(path, number)
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise where.error(f"UTF-8 ({error.reason})", raw[:40]) from None
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (json.JSONDecodeError, RecursionError) as error:
                cut = "" if text.endswith("\n") else " (the file ends inside it)"
                told = getattr(error, "msg", "nested too deep")
                raise where.error(
                    f"one JSON object a line{cut}; {told} at column "
                    f"{getattr(error, 'colno', 1)}",
                    text[:40],
                ) from None
            found = _get(row, "schema", str, where)
            if found != schema:
                raise where.at("schema").error(repr(schema), found)
            yield row, where


def read_episodes(path: str | os.PathLike) -> list[Episode]:
    """Episodes of a JSONL file, in order.

    Raises:
      RecordError: missing file, bad JSON or UTF-8, wrong schema, missing or mistyped
        field, repeated id, states that do not chain; the message names file and line.
    """
    path, out, seen = Path(path), [], {}
    for row, where in _rows(path, SCHEMA):
        episode = _episode(row, where)
        if episode.id in seen:
            raise where.at("id").error(
                f"an id not used before (line {seen[episode.id]})", episode.id
            )
        seen[episode.id] = where.line
        out.append(episode)
    if not out:
        raise RecordError(f"{path}: expected at least one episode, got an empty file")
    return out


def read_branches(path: str | os.PathLike) -> list[Branch]:
    """Branches of a JSONL file, in order; raises RecordError as read_episodes."""
    out = []
    for row, where in _rows(Path(path), BRANCH_SCHEMA):
        out.append(
            Branch(
                episode=_get(row, "episode", str, where),
                step=_get(row, "step", int, where),
                transition=_transition(
                    _get(row, "transition", dict, where), where.at("transition")
                ),
            )
        )
    return out


# --- writing -----------------------------------------------------------------


@contextlib.contextmanager
def replacing(path: str | os.PathLike):
    """A text file that takes the place of `path` only when wholly on disk."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: str | os.PathLike, schema: str, records: Iterable[Any]) -> None:
    with replacing(path) as file:
        for record in records:
            row = {"schema": schema} | dataclasses.asdict(record)
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def write_episodes(path: str | os.PathLike, episodes: Iterable[Episode]) -> None:
    """Episodes as JSONL; an existing file is replaced at once or not at all."""
    _write(path, SCHEMA, episodes)


def write_branches(path: str | os.PathLike, branches: Iterable[Branch]) -> None:
    """Branches as JSONL; an existing file is replaced at once or not at all."""
    _write(path, BRANCH_SCHEMA, branches)
