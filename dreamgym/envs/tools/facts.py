"""Facts in the lines of a state: what results say, one fact a line.

`result {"price": 42}` -> `result price: 42`; lines of results -> their messages
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
"""Where one sentence ends and the next one begins."""


def is_result(line: str) -> bool:
    """Return whether a line begins the message of a call."""
    return line.startswith("result ")


def messages_of(lines: Iterable[str]) -> list[str]:
    """Return what lines say, without errors and the words that mark their kind."""
    out, is_error = [], False
    for text in lines:
        line = text.removeprefix("last seen ")
        if is_result(line):
            is_error = line.startswith("result error: ")
        if not is_error and line != "result ok":
            out.append(line.removeprefix("result "))
    return out


def split_facts(line: str) -> list[str]:
    """Return the facts of a line: those of objects in JSON at its end, or sentences.

    Keys of objects within it are joined by a space, and objects of a list have their
    number; lists of plain values stay on one line:
    `{"kettle": {"colour": "green"}, "seen": [1, 2]}` becomes `kettle colour: green` and
    `seen: 1, 2`. What stands before the objects begins each of their lines.
    """
    for start in sorted(line.find(sign) for sign in "[{"):
        value = _json_at(line, start)
        of_objects = isinstance(value, list) and any(isinstance(x, dict) for x in value)
        if of_objects or (isinstance(value, dict) and value):
            return list(_json_facts(line[:start].split(), value))
    first, *others = _SENTENCE_END.split(line)
    head = "result " if is_result(line) else ""
    return [first, *(f"{head}{sentence}" for sentence in others)]


def _json_at(line: str, start: int) -> Any:
    """Return the value of JSON that fills a line from here on; None where none does."""
    try:
        return json.loads(line[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None


def _json_facts(path: list[str], value: Any) -> Iterator[str]:
    """Yield a line for each value that holds no objects."""
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _json_facts([*path, str(key)], part)
    elif isinstance(value, list) and any(isinstance(x, dict | list) for x in value):
        for number, part in enumerate(value, 1):
            yield from _json_facts([*path, str(number)], part)
    else:
        parts = value if isinstance(value, list) else [value]
        texts = [x if isinstance(x, str) else json.dumps(x) for x in parts]
        yield " ".join(f"{' '.join(path)}: {', '.join(texts)}".split())
