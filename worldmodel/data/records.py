"""Records of experience (tasks, transitions, episodes, branches) and their JSONL files.

file.jsonl(.gz) -> one JSON object a line -> every field checked -> frozen records. An
error names file, line and what was expected. A writer replaces its target only when the
new content is completely on disk, so that bad input and full disks lose nothing.
docs/reference/episodes.md describes the fields.
"""

import contextlib
import dataclasses
import gzip
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from worldmodel.data import processes
from worldmodel.data.files import replacement
from worldmodel.data.json_reading import (
    Progress,
    RecordError,
    Where,
    field,
    first_use,
    json_lines,
    strings,
)

MAX_NESTING = 64
"""The most lists and objects inside each other in the options of a task."""

SCHEMA = "dreamgym.episodes/1"
BRANCH_SCHEMA = "dreamgym.branches/1"
SPLITS = ("train", "dev", "test")
"""The splits that training uses; episodes of others are ignored."""
MIN_DEV_GAMES = 4
"""Dev tasks of an evaluation below which no policy is chosen by their games."""

State = tuple[str, ...]
"""What the agent observes at one step: non-empty lines of text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A resettable problem: its instruction, and how to start an environment on it."""

    id: str
    instruction: str
    env: str = ""
    family: str = ""
    split: str = "train"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    initial_state: State = ()
    lineage: tuple[str, ...] = ()

    def __post_init__(self):
        check_lines("initial_state", self.initial_state)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transition:
    """One step: state, action, next state, named rewards and how it ended.

    `invalid` says that the environment could not take the action, `reveals` that the
    next state shows what could not be observed before (what lies behind a door that was
    never opened), `success` that the episode was won with it. None means that it is
    unknown. `costs` are what the step used up or put at risk, by name; they are no part
    of the reward. `valid_actions` are those that the environment listed in `state`;
    empty where it lists none, or was not asked.
    """

    state: State
    action: str
    next_state: State
    rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    invalid: bool | None = None
    reveals: bool | None = None
    thought: str | None = None
    reasoning: str | None = None
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    valid_actions: tuple[str, ...] = ()

    def __post_init__(self):
        check_lines("state", self.state)
        check_lines("next_state", self.next_state)

    @property
    def reward(self) -> float:
        """The sum of the reward components."""
        return float(sum(self.rewards.values()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
    """A task and the transitions of one attempt at it.

    `success` is None where the episode was not scored; `error` then holds the reason,
    if it is known. `scored_by` says who found the outcome, where the environment did
    not.
    """

    id: str
    task: Task
    transitions: tuple[Transition, ...]
    source: str
    success: bool | None
    error: str | None = None
    scored_by: str = ""

    @property
    def episode_return(self) -> float:
        """The undiscounted sum of rewards."""
        return float(sum(t.reward for t in self.transitions))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branch:
    """A real alternative at one step of an episode: what another action led to."""

    episode: str
    step: int
    transition: Transition


def check_lines(name: str, state: Any) -> None:
    """Raise a TypeError where a state is a text, which is a sequence of letters."""
    if isinstance(state, str):
        raise TypeError(
            f"{name} must be a tuple of lines, got the text {state!r:.60}: "
            "worldmodel.data.records.lines(text) makes one of it"
        )


def lines(text: str) -> State:
    """Return text as state lines, without trailing blanks and empty lines."""
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())


# --- reading -----------------------------------------------------------------


def _state(row: Any, key: str, where: Where, **default: Any) -> State:
    value = field(row, key, object, where, **default)
    if isinstance(value, str):
        return lines(value)
    if not isinstance(value, list | tuple) or any(
        not isinstance(x, str) for x in value
    ):
        raise where.at(key).error("a string or a list of strings", value)
    return tuple(x for line in value for x in lines(line))


def _task(row: Any, where: Where) -> Task:
    return Task(
        id=field(row, "id", str, where),
        instruction=field(row, "instruction", str, where),
        env=field(row, "env", str, where, ""),
        family=field(row, "family", str, where, ""),
        split=field(row, "split", str, where, "train"),
        options=_options(row, where),
        initial_state=_state(row, "initial_state", where, default=[]),
        lineage=strings(row, "lineage", where),
    )


def _options(row: Any, where: Where) -> dict[str, Any]:
    """Return the options of a task, which can be written as JSON again."""
    value, place = field(row, "options", dict, where, {}), where.at("options")
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for x in level
            if isinstance(x, dict | list)
            for inner in (x.values() if isinstance(x, dict) else x)
        ]
        if any(isinstance(x, float) and not math.isfinite(x) for x in level):
            raise place.error("finite numbers", value)
        if not level:
            return value
    raise place.error(f"at most {MAX_NESTING} nested lists and objects", value)


def _transition(row: Any, where: Where) -> Transition:
    rewards = field(row, "rewards", dict, where, None)
    if rewards is None:
        rewards = {"reward": field(row, "reward", float, where)}
    named = {k: field(rewards, k, float, where.at("rewards")) for k in rewards}
    if not math.isfinite(sum(named.values())):
        raise where.at("rewards").error("finite numbers with a finite sum", named)
    raw_costs = field(row, "costs", dict, where, {})
    costs = {k: field(raw_costs, k, float, where.at("costs")) for k in raw_costs}
    if not all(math.isfinite(x) for x in costs.values()):
        raise where.at("costs").error("finite numbers", costs)
    return Transition(
        state=_state(row, "state", where),
        action=field(row, "action", str, where),
        next_state=_state(row, "next_state", where),
        rewards=named,
        terminated=field(row, "terminated", bool, where, False),
        truncated=field(row, "truncated", bool, where, False),
        success=field(row, "success", bool, where, None),
        invalid=field(row, "invalid", bool, where, None),
        reveals=field(row, "reveals", bool, where, None),
        thought=field(row, "thought", str, where, None),
        reasoning=field(row, "reasoning", str, where, None),
        costs=costs,
        valid_actions=strings(row, "valid_actions", where),
    )


def parse_episode(row: Any, where: Where) -> Episode:
    """Return the episode of a parsed line; all fields but the schema are checked."""
    steps = field(row, "transitions", list, where)
    if not steps:
        raise where.at("transitions").error("at least one transition", steps)
    transitions = tuple(
        _transition(x, where.at(f"transitions[{i}]")) for i, x in enumerate(steps)
    )
    for i, (step, next_step) in enumerate(itertools.pairwise(transitions)):
        state_place = where.at(f"transitions[{i + 1}].state")
        if step.next_state != next_step.state:
            raise state_place.error(
                f"the next_state of transitions[{i}], {list(step.next_state)!r}",
                list(next_step.state),
            )
        if step.terminated or step.truncated:
            raise state_place.error(
                "no step after the episode ended", list(next_step.state)
            )
    if not math.isfinite(sum(t.reward for t in transitions)):
        raise where.at("transitions").error(
            "rewards with a finite sum", [t.reward for t in transitions]
        )
    success = field(row, "success", bool, where, None)
    transitions = _with_success(transitions, success, where)
    task = _task(field(row, "task", dict, where), where.at("task"))
    if not task.initial_state:
        task = dataclasses.replace(task, initial_state=transitions[0].state)
    return Episode(
        id=field(row, "id", str, where),
        task=task,
        transitions=transitions,
        source=field(row, "source", str, where, "unknown"),
        success=success,
        error=field(row, "error", str, where, None),
        scored_by=field(row, "scored_by", str, where, ""),
    )


def _with_success(
    transitions: tuple[Transition, ...], success: bool | None, where: Where
) -> tuple[Transition, ...]:
    """Return the steps, the last with the episode's success where it has none."""
    *before, end = transitions
    if success is None or end.success is success:
        return transitions
    if end.success is not None:
        if not end.terminated:
            return transitions
        success_place = where.at(f"transitions[{len(before)}].success")
        raise success_place.error(
            f"the episode's success, {success}, at its end", end.success
        )
    return *before, dataclasses.replace(end, success=success)


_FOREIGN = {
    "messages": "openai",
    "conversations": "agentgym",
    "observations": "gymnasium",
}
"""Fields by which objects of other formats are known, and their importers."""


def _format_of(row: Any) -> str | None:
    """Return the importer of an object without a schema, if one fits."""
    if not isinstance(row, dict) or "schema" in row:
        return None
    return next((name for key, name in _FOREIGN.items() if key in row), None)


def _rows(
    path: Path, schema: str, progress: Progress | None = None
) -> Iterator[tuple[Any, Where]]:
    for row, where in json_lines(path, f"JSONL of schema {schema!r}", progress):
        if importer := _format_of(row):
            expected = f"schema {schema!r} (dreamgym import {importer} makes it)"
            raise where.error(expected, sorted(row))
        row_schema = field(row, "schema", str, where)
        if row_schema != schema:
            raise where.at("schema").error(repr(schema), row_schema)
        yield row, where


def iter_episodes(
    path: str | os.PathLike, *, progress: Progress | None = None
) -> Iterator[Episode]:
    """Yield the episodes of a JSONL file (gzip or not), one in memory at a time.

    Raises:
      RecordError: the file is missing, or has bad gzip, JSON or UTF-8, a wrong schema,
        a missing or mistyped field, a repeated id, or states that do not chain. The
        message names file and line.
    """
    path, first_lines = Path(path), dict[str, int]()
    for row, where in _rows(path, SCHEMA, progress):
        episode = parse_episode(row, where)
        first_use(first_lines, episode.id, where)
        yield episode
    if not first_lines:
        raise RecordError(f"{path}: expected at least one episode, got an empty file")


def read_episodes(path: str | os.PathLike) -> list[Episode]:
    """Return all episodes of a JSONL file; raises RecordError as iter_episodes does."""
    return list(iter_episodes(path))


def read_branches(path: str | os.PathLike) -> list[Branch]:
    """Return the branches of a JSONL file; raises RecordError as iter_episodes does."""
    return [
        Branch(
            episode=field(row, "episode", str, where),
            step=field(row, "step", int, where),
            transition=_transition(
                field(row, "transition", dict, where), where.at("transition")
            ),
        )
        for row, where in _rows(Path(path), BRANCH_SCHEMA)
    ]


# --- writing -----------------------------------------------------------------


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike):
    """Open a text file that replaces `path` only when it is completely on disk.

    Of several processes the first one writes it, and all wait for that.
    """
    path = Path(path)
    with processes.first_process_writes(path.name) as writes:
        if not writes:
            yield processes.discarded_text()
            return
        with replacement(path) as file:
            yield file


@contextlib.contextmanager
def _compressed(path: Path, file: Any) -> Iterator[Any]:
    """Yield the stream to write bytes to: gzip where the path ends in `.gz`."""
    if path.suffix != ".gz":
        yield file
        return
    # Without name and time, so that the same records give the same bytes.
    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as out:
        yield out


def _write(
    path: str | os.PathLike,
    schema: str,
    records: Iterable[Any],
    check: Callable[[dict[str, Any], Where], None] | None = None,
) -> None:
    """Write records as JSONL; `check` raises where a row could not be read."""
    with atomic_write(path) as file, _compressed(Path(path), file.buffer) as out:
        for number, record in enumerate(records, start=1):
            row = {"schema": schema} | _without_empty_fields(dataclasses.asdict(record))
            # A check names the field that is not finite, where json does not.
            line = json.dumps(
                row, ensure_ascii=False, allow_nan=check is not None, default=_plain
            )
            if check is not None:
                check(json.loads(line), Where(Path(path), number))
            out.write(f"{line}\n".encode())


def episode_json(episode: Episode) -> str:
    """Return an episode as one line of JSON, unchecked and without a schema.

    Raises:
      TypeError, ValueError, RecursionError: it holds what JSON cannot.
    """
    row = _without_empty_fields(dataclasses.asdict(episode))
    return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    # Without an import of NumPy, which `dreamgym --help` would wait for.
    if type(value).__module__ == "numpy" and not getattr(value, "shape", True):
        return value.item()
    raise TypeError(f"expected a value of JSON, got {type(value).__name__}")


def _without_empty_fields(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row; what is empty in nearly all rows is not mentioned."""
    if not row.get("scored_by", True):
        del row["scored_by"]
    for step in row.get("transitions", [row.get("transition", {})]):
        for name in ("costs", "valid_actions"):
            if not step.get(name):
                step.pop(name, None)
    return row


def write_episodes(
    path: str | os.PathLike, episodes: Iterable[Episode], *, check: bool = True
) -> None:
    """Write episodes as JSONL, with gzip where the path ends in `.gz`.

    An existing file is replaced at once or not at all. No episodes give an empty file,
    which `read_episodes` refuses.

    Args:
      check: whether to refuse what `read_episodes` would refuse. Records of a run are
        not checked: a rollout that broke may have no step.

    Raises:
      RecordError: an episode is one that `read_episodes` would refuse.
    """

    def checked(row: dict[str, Any], where: Where) -> None:
        parse_episode(row, where)
        first_use(seen, row["id"], where)

    seen: dict[str, int] = {}
    _write(path, SCHEMA, episodes, checked if check else None)


def write_branches(path: str | os.PathLike, branches: Iterable[Branch]) -> None:
    """Write branches as JSONL; what they hold is checked when they are read."""
    _write(path, BRANCH_SCHEMA, branches)
