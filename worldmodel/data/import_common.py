"""Parts that every importer has: ids, numbers, tasks, and the way into the schema.

foreign object -> a row as our own files hold it -> the schema's reader -> Episode.
"""

import json
from typing import Any

from worldmodel.data.hashing import content_digest
from worldmodel.data.json_reading import Where, field, typed
from worldmodel.data.records import Episode, State, parse_episode


def name_of(row: Any, key: str, where: Where, default: str) -> str:
    """An id: text or a whole number, as text."""
    value = field(row, key, object, where, None)
    if value is None:
        return default
    if isinstance(value, str):
        return value
    return str(typed(value, int, where.at(key)))


def number(value: Any, where: Where) -> float:
    """A finite number."""
    result = typed(value, float, where)
    if not abs(result) < float("inf"):
        raise where.error("a finite number", result)
    return result


def task_row(
    row: Any, where: Where, *, id: str | None, instruction: str, state: State
) -> dict[str, Any]:
    """The task's row; attempts at one instruction from one state share an id."""
    return {
        "id": content_digest(instruction, state).hex() if id is None else id,
        "instruction": instruction,
        "env": field(row, "env", str, where, ""),
        "family": field(row, "family", str, where, ""),
        "split": field(row, "split", str, where, "train"),
        "initial_state": list(state),
    }


def build(row: Any, where: Where, *, name: str, source: str, **parts: Any) -> Episode:
    """An episode of these parts of the schema, through the schema's own reader.

    Raises:
      RecordError: what JSON cannot hold: lone surrogates, NaN, endless nesting.
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
