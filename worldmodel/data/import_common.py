"""Parts that all importers share: ids, numbers, tasks, and the construction of records.

object of another format -> a row in our own format -> parse_episode -> Episode.
"""

import json
from typing import Any

from worldmodel.data.hashing import content_digest
from worldmodel.data.json_reading import Where, check_type, field
from worldmodel.data.records import Episode, State, parse_episode


def name_of(row: Any, key: str, where: Where, default: str) -> str:
    """Return an id, text or a whole number, as text."""
    value = field(row, key, object, where, None)
    if value is None:
        return default
    if isinstance(value, str):
        return value
    return str(check_type(value, int, where.at(key)))


def number(value: Any, where: Where) -> float:
    """Return a finite number as float."""
    result = check_type(value, float, where)
    if not abs(result) < float("inf"):
        raise where.error("a finite number", result)
    return result


def task_row(
    row: Any, where: Where, *, id: str | None, instruction: str, state: State
) -> dict[str, Any]:
    """Return the task's row; without an id, instruction and state determine one."""
    return {
        "id": content_digest(instruction, state).hex() if id is None else id,
        "instruction": instruction,
        "env": field(row, "env", str, where, ""),
        "family": field(row, "family", str, where, ""),
        "split": field(row, "split", str, where, "train"),
        "initial_state": list(state),
    }


def build(row: Any, where: Where, *, name: str, source: str, **parts: Any) -> Episode:
    """Return the episode of these fields, checked by the reader of our own format.

    Raises:
      RecordError: something that JSON cannot hold: lone surrogates, NaN, endless
        nesting.
    """
    record = {
        "id": name_of(row, "id", where, name),
        "source": field(row, "source", str, where, source),
        **parts,
    }
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
        parsed = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error)[:80]
        raise where.error(
            f"Unicode text and finite numbers as JSON holds them ({reason})", type(row)
        ) from None
    return parse_episode(parsed, where)
