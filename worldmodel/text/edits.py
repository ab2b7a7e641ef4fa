"""States as lines, and edit scripts that turn one state into the next.

before, after -> diff -> ((index, new lines), ...) -> apply(before) == after. Unchanged
lines cost no tokens and cannot be corrupted. An edit without lines deletes its line, an
edit with several lines inserts the others behind it, and index None appends at the end.
A number among the new lines stands for that line of the state before, so a moved line
is not written again. Where a model writes the script, a line is referred to by its
first words (`line_name`): words are easier to copy than a line number is to find.
"""

import difflib
from typing import NamedTuple

from worldmodel.data.records import State

Piece = str | int


class Edit(NamedTuple):
    """Replace line `index` by `lines`; index None appends them after the last line."""

    index: int | None
    lines: tuple[Piece, ...]


def diff(before: State, after: State) -> tuple[Edit, ...]:
    """Return a short edit script with apply(before, diff(before, after)) == after."""
    changed, tail = _changes(before, after)
    removed = [i for i, new in sorted(changed.items()) if not new]
    script = []

    def stands_for(index: int, line: str) -> bool:
        return before[index] == line and line_name(before, index) is not None

    for index, new in [*sorted(changed.items()), (None, tail)]:
        lines: list[Piece] = []
        for line in new:
            source = next((i for i in removed if stands_for(i, line)), None)
            if source is not None:
                removed.remove(source)
            elif index is not None and index not in lines and stands_for(index, line):
                source = index
            lines.append(line if source is None else source)
        if lines:
            script.append(Edit(index, tuple(lines)))
    script += [Edit(i, ()) for i in removed]
    return tuple(sorted(script, key=lambda e: len(before) if e[0] is None else e[0]))


def line_name(state: State, index: int) -> str | None:
    """Return the fewest first words by which `find_line` finds a line, or None."""
    words = state[index].split()
    names = (" ".join(words[:n]) for n in range(1, len(words) + 1))
    return next((name for name in names if find_line(state, name) == index), None)


def find_line(state: State, name: str) -> int | None:
    """Return the index of the last line that begins with these words, or None."""
    words = name.split()
    matches = (i for i, x in enumerate(state) if x.split()[: len(words)] == words)
    return max(matches, default=None)


def _changes(before: State, after: State) -> tuple[dict[int, State], State]:
    """Return the new lines by the index they replace, and the appended lines."""
    changed: dict[int, State] = {}
    tail: State = ()

    def current(i: int) -> State:
        return changed.get(i, (before[i],))

    # Matched from the end, so that of two swapped lines the upper one moves down.
    matcher = difflib.SequenceMatcher(a=before[::-1], b=after[::-1], autojunk=False)
    for tag, *ends in reversed(matcher.get_opcodes()):
        i2, i1, j2, j1 = (
            len(x) - end
            for x, end in zip((before, before, after, after), ends, strict=True)
        )
        new = after[j1:j2]
        if tag in ("replace", "delete"):
            for i in range(i1, i2 - 1):
                changed[i] = new[i - i1 : i - i1 + 1]
            rest = new[i2 - 1 - i1 :]
            if (
                i2 == len(before)
                and rest
                and _line_key(rest[0]) == _line_key(before[-1])
            ):
                tail, rest = rest[1:], rest[:1]  # the lines behind it are new
            changed[i2 - 1] = rest
        elif tag == "insert":
            if i1 == len(before):
                tail = new
            elif i1 == 0:
                changed[0] = new + current(0)
            else:
                changed[i1 - 1] = current(i1 - 1) + new
    return changed, tail


def apply(
    before: State,
    script: tuple[Edit, ...],
    *,
    distinct: bool = False,
    keyed_by_prefix: bool = False,
) -> State:
    """Return the state after the script.

    `distinct` says that no two lines of such states begin with the same word, so that
    the first word is a key: a written line replaces the old line with its key.
    `keyed_by_prefix` says that lines such as `bamboo 4` change in their last word only:
    a written line replaces the one line with the same prefix (all words but the last),
    whatever line the script names.

    Raises:
      IndexError: an edit, or one of its lines, refers to a line that `before` does not
        have.
    """
    changed: dict[int, State] = {}
    tail: State = ()
    moved: set[int] = set()
    if keyed_by_prefix:
        script = _at_prefixes(before, script)

    def checked(index: int) -> int:
        if not 0 <= index < len(before):
            raise IndexError(f"edit of line {index} in a state of {len(before)} lines")
        return index

    for index, new in script:
        moved |= {checked(x) for x in new if isinstance(x, int)}
        lines = tuple(before[x] if isinstance(x, int) else x for x in new)
        if index is None:
            tail += lines
        else:
            changed[checked(index)] = lines
    new_keys = {_line_key(x) for lines in (*changed.values(), tail) for x in lines}

    def stays(index: int) -> bool:
        return index not in moved and not (
            distinct and _line_key(before[index]) in new_keys
        )

    lines_left = [
        line
        for i, old in enumerate(before)
        for line in changed.get(i, (old,) if stays(i) else ())
    ]
    return (*lines_left, *tail)


def _at_prefixes(before: State, script: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return the script with each written line at the one line of its prefix."""
    positions: dict[str, list[int]] = {}
    for i, line in enumerate(before):
        positions.setdefault(_line_prefix(line), []).append(i)
    out: dict[int | None, list[Piece]] = {}
    for index, new in script:
        if not new:
            out.setdefault(index, [])
        for line in new:
            at = [] if isinstance(line, int) else positions.get(_line_prefix(line), [])
            out.setdefault(at[0] if len(at) == 1 else index, []).append(line)
    return tuple(Edit(i, tuple(lines)) for i, lines in out.items())


def _line_prefix(line: str) -> str:
    return " ".join(line.split()[:-1])


def _line_key(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.strip() else ""
