"""Preferences: pairs of attempts at one task, of which one is better.

episodes of a task, won and lost -> pairs; or a JSONL file of pairs -> pairs. A file of
schema dreamgym.preferences/1 has one object in each line:
  {"schema": "dreamgym.preferences/1", "task": {...}, "better": [...], "worse": [...]}
docs/reference/episodes.md describes tasks and transitions. An attempt may be a part of
an episode, down to a single transition.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from worldmodel.data.json_reading import RecordError, Where, field, json_lines
from worldmodel.data.records import (
    Episode,
    Task,
    Transition,
    atomic_write,
    parse_episode,
)

SCHEMA = "dreamgym.preferences/1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preference:
    """Two attempts at one task, of which `better` is preferred."""

    task: Task
    better: tuple[Transition, ...]
    worse: tuple[Transition, ...]


def won_over_lost(
    episodes: Sequence[Episode], *, max_pairs: int, seed: int
) -> list[Preference]:
    """Return pairs of a won and a lost attempt, at most `max_pairs` for each task.

    The pairs of a task are drawn by `seed` and the task's id. Episodes without a score
    are in no pair.
    """
    return _pairs(_by_task(episodes), max_pairs, seed)


def rollout_pairs(
    rollouts: Sequence[Episode],
    earlier: Sequence[Preference],
    *,
    max_pairs: int,
    seed: int,
) -> list[Preference]:
    """Return pairs of won and lost rollouts, at most `max_pairs` for each task.

    Where all rollouts of a task were lost, they are paired with the won attempts at it
    in `earlier` pairs, and the other way round: a policy that exploits a reward model
    may win nothing any more. An attempt without a score is in no pair.
    """
    tasks, earlier_tasks = _by_task(rollouts), _by_task(attempts_of(earlier))
    for name, (won, lost) in tasks.items():
        earlier_won, earlier_lost = earlier_tasks.get(name, ([], []))
        tasks[name] = won or earlier_won, lost or earlier_lost
    return _pairs(tasks, max_pairs, seed)


def _by_task(
    episodes: Iterable[Episode],
) -> dict[str, tuple[list[Episode], list[Episode]]]:
    """Return (won, lost) episodes of each task."""
    tasks: dict[str, tuple[list[Episode], list[Episode]]] = {}
    for e in episodes:
        if e.success is not None:
            tasks.setdefault(e.task.id, ([], []))[0 if e.success else 1].append(e)
    return tasks


def attempts_of(pairs: Sequence[Preference]) -> list[Episode]:
    """Return the attempts of the pairs as episodes, scored where their ends say so."""
    return [
        Episode(id="", task=p.task, transitions=x, source="", success=x[-1].success)
        for p in pairs
        for x in (p.better, p.worse)
    ]


def _pairs(
    tasks: Mapping[str, tuple[Sequence[Episode], Sequence[Episode]]],
    max_pairs: int,
    seed: int,
) -> list[Preference]:
    """Return pairs of (won, lost) episodes, drawn by the seed and the task's id."""
    out = []
    for name in sorted(tasks):
        won, lost = tasks[name]
        pairs = [(i, j) for i in range(len(won)) for j in range(len(lost))]
        rng = np.random.default_rng([seed, *name.encode()])
        for index in rng.permutation(len(pairs))[:max_pairs]:
            i, j = pairs[index]
            out.append(
                Preference(
                    task=won[i].task,
                    better=won[i].transitions,
                    worse=lost[j].transitions,
                )
            )
    return out


def split(
    pairs: Sequence[Preference], *, held_out_share: float, seed: int
) -> tuple[list[Preference], list[Preference]]:
    """Return (pairs to fit, pairs held out); no task is on both sides.

    About `held_out_share` of the tasks are held out, with all their pairs.
    """
    names = sorted({p.task.id for p in pairs})
    order = np.random.default_rng(seed).permutation(len(names))
    held_out = {names[i] for i in order[: round(held_out_share * len(names))]}
    fit = [p for p in pairs if p.task.id not in held_out]
    return fit, [p for p in pairs if p.task.id in held_out]


def read_preferences(path: str | os.PathLike) -> list[Preference]:
    """Return the pairs of a JSONL file, gzipped or not, in order.

    Raises:
      RecordError: missing file, bad JSON, wrong schema, missing or mistyped field,
        states that do not chain, an empty file; the message names file and line.
    """
    path, out = Path(path), []
    for row, where in json_lines(path, f"JSONL of schema {SCHEMA!r}"):
        schema = field(row, "schema", str, where)
        if schema != SCHEMA:
            raise where.at("schema").error(repr(SCHEMA), schema)
        sides = [_attempt(row, side, where) for side in ("better", "worse")]
        out.append(
            Preference(
                task=sides[0].task,
                better=sides[0].transitions,
                worse=sides[1].transitions,
            )
        )
    if not out:
        raise RecordError(f"{path}: expected at least one pair, got an empty file")
    return out


def _attempt(row: Any, side: str, where: Where) -> Episode:
    """Return one side of a pair, checked as an episode is."""
    steps = field(row, side, list, where)
    if not steps:
        raise where.at(side).error("at least one transition", steps)
    whole = {"id": side, "task": field(row, "task", dict, where), "transitions": steps}
    try:
        return parse_episode(whole, where)
    except RecordError as error:
        # The record calls them transitions; the file has two lists of them.
        raise RecordError(str(error).replace("transitions", side)) from None


def write_preferences(path: str | os.PathLike, pairs: Iterable[Preference]) -> None:
    """Write pairs as JSONL; an existing file is replaced at once or not at all."""
    with atomic_write(path) as file:
        for pair in pairs:
            row = {"schema": SCHEMA} | dataclasses.asdict(pair)
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
