"""Import files of other formats as episodes.

file (JSON lines or one JSON array, gzip or not) -> object -> the format's function ->
Episode. An imported episode survives write_episodes and read_episodes unchanged.
docs/reference/episodes.md shows each format.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from worldmodel.data.hashing import content_digest
from worldmodel.data.import_chat import from_agentgym, from_openai
from worldmodel.data.import_common import build, number, task_row
from worldmodel.data.json_reading import (
    Progress,
    RecordError,
    Where,
    check_type,
    field,
    first_use,
    holds_array,
    json_array,
    json_lines,
)
from worldmodel.data.records import Episode, State, lines


def _list_of_length(row: Any, key: str, count: int, where: Where) -> list[Any]:
    """Return a list that has one item an action."""
    values = field(row, key, list, where)
    if len(values) != count:
        raise where.at(key).error(f"{count} items, one an action", len(values))
    return values


def _observation(value: Any, where: Where) -> State:
    if isinstance(value, str):
        return lines(value)
    if not isinstance(value, list) or any(not isinstance(x, str) for x in value):
        raise where.error("text, or a list of lines of text", value)
    return tuple(x for line in value for x in lines(line))


def _info_flag(
    infos: Any, key: str, step: int, count: int, where: Where
) -> bool | None:
    """Return a flag from a step's info: a list of infos, or Minari's object of lists.

    One info more than actions means that the first came from reset.
    """
    if infos is None:
        return None
    column = isinstance(infos, dict)
    values = (
        field(infos, key, list, where, []) if column else check_type(infos, list, where)
    )
    if not values and (column or not count):
        return None
    if len(values) not in (count, count + 1):
        raise where.error(f"{count} or {count + 1} items", len(values))
    at = step + len(values) - count
    flag_place = where.at(f"{key}[{at}]" if column else f"[{at}]")
    if not column:
        return field(values[at], key, bool, flag_place, None)
    return None if values[at] is None else check_type(values[at], bool, flag_place)


def from_gymnasium(row: Any, where: Where, name: str) -> Episode:
    """Import a recording of a Gymnasium environment, with the field names of Minari.

    It has observations (one more than actions), actions, rewards, terminations and
    truncations, made of text, numbers and flags. `task` (text) and `seed` name the
    task; without a seed the first state does too, because one text may begin anywhere.
    `success` comes from the row, else from the last info. Arguments and errors are
    those of from_openai.
    """
    actions = field(row, "actions", list, where)
    count = len(actions)
    if not count:
        raise where.at("actions").error("at least one action", actions)
    observations = field(row, "observations", list, where)
    if len(observations) != count + 1:
        raise where.at("observations").error(
            f"{count + 1} items, one more than actions", len(observations)
        )
    rewards = _list_of_length(row, "rewards", count, where)
    terminations = _list_of_length(row, "terminations", count, where)
    truncations = _list_of_length(row, "truncations", count, where)
    infos = field(row, "infos", object, where, None)
    states = [
        _observation(x, where.at(f"observations[{i}]"))
        for i, x in enumerate(observations)
    ]
    steps = []
    for i, action in enumerate(actions):
        reward = number(rewards[i], where.at(f"rewards[{i}]"))
        step = {
            "state": list(states[i]),
            "next_state": list(states[i + 1]),
            "action": check_type(action, str, where.at(f"actions[{i}]")),
            "rewards": {"reward": reward},
            "terminated": check_type(
                terminations[i], bool, where.at(f"terminations[{i}]")
            ),
            "truncated": check_type(
                truncations[i], bool, where.at(f"truncations[{i}]")
            ),
        }
        for flag in ("invalid", "reveals"):
            step[flag] = _info_flag(infos, flag, i, count, where.at("infos"))
        if (step["terminated"] or step["truncated"]) and i + 1 < count:
            raise where.at(f"actions[{i + 1}]").error(
                "no action after the episode ended", action
            )
        steps.append(step)
    success = field(row, "success", bool, where, None)
    if success is None:
        success = _info_flag(infos, "success", count - 1, count, where.at("infos"))
    steps[-1]["success"] = success
    task_text = field(row, "task", str, where, "")
    seed = field(row, "seed", int, where, None)
    instruction = field(row, "instruction", str, where, task_text)
    suffix = f"seed-{seed}"
    if seed is None:
        suffix = content_digest(instruction, states[0]).hex()
    id = "#".join(filter(None, [task_text, suffix]))
    task = task_row(row, where, id=id, instruction=instruction, state=states[0])
    task["options"] = {} if seed is None else {"seed": seed}
    return build(
        row,
        where,
        name=name,
        source="gymnasium",
        task=task,
        transitions=steps,
        success=success,
    )


# --- files -------------------------------------------------------------------

FORMATS: dict[str, Callable[[Any, Where, str], Episode]] = {
    "openai": from_openai,
    "agentgym": from_agentgym,
    "gymnasium": from_gymnasium,
}


def import_file(
    format: str,
    path: str | os.PathLike,
    *,
    progress: Progress | None = None,
    skip: Callable[[RecordError], Any] | None = None,
) -> Iterator[Episode]:
    """Yield the episodes of a file of another format, one in memory at a time.

    The file holds JSON lines or one JSON array, gzip or not. Objects without an id are
    named after the file and their number in it. With `skip`, an object that cannot be
    imported, or a line that is no JSON, is left out and its error is passed to `skip`.

    Raises:
      RecordError: an object cannot be imported; the message names file, line and field.
      ValueError: the format is unknown.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format!r}; have {', '.join(FORMATS)}")
    path, first_lines = Path(path), dict[str, int]()
    expected = f"JSON lines or a JSON array of {format} episodes"
    stem = path.name.partition(".")[0]
    rows = (
        json_array(path, expected, progress)
        if holds_array(path, expected)
        else json_lines(path, expected, progress, skip=skip)
    )
    for count, (row, where) in enumerate(rows, start=1):
        try:
            episode = FORMATS[format](row, where, f"{stem}-{count}")
            first_use(first_lines, episode.id, where)
        except RecordError as error:
            if skip is None:
                raise
            skip(error)
        else:
            yield episode
    if not first_lines:
        raise RecordError(
            f"{path}: expected at least one episode of {format}, got none"
        )
