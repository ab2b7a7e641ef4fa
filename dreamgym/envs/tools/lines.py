"""Lines of a state that is bounded: the newest of them, each at most so long.

rows, a limit in characters -> the last rows that fit it, and how many come before
"""

from collections.abc import Sequence


def first_newest(rows: Sequence[str], limit: int) -> int:
    """Return where the last rows begin that have at most `limit` characters."""
    first, size = len(rows), 0
    while first and size + len(rows[first - 1]) <= limit:
        first -= 1
        size += len(rows[first])
    return first


def newest_lines(rows: Sequence[str], limit: int, name: str = "calls") -> list[str]:
    """Return the last lines of at most `limit` characters, and how many come before.

    These are the line "earlier calls 3", where `name` is "calls".
    """
    first = first_newest(rows, limit)
    return [*([f"earlier {name} {first}"] if first else []), *rows[first:]]


def shorten(text: str, limit: int) -> str:
    """Return a text as one line, cut off where it has more than `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."
