"""States as lines, and edit scripts that turn one state into the next.

before, after -> diff -> ((index, new lines), ...) -> apply(before) == after. Unchanged
lines cost no tokens and cannot be corrupted. An edit without lines deletes its line, an
edit with several lines inserts the others behind it, and index None appends at the end.
A number among the new lines stands for that line of the state before, so a moved line
is not written again, and a `Swap` for the edited line with other words at one place, so
the rest of a long line is not written again. Where a model writes the script, a line is
referred to by its first words (`line_name`): words are easier to copy than a line
number is to find.
"""

import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from worldmodel.data.records import State


class Swap(NamedTuple):
    """Replace the words `old` of a line, which stand there once, by `new`.

    Words are what stands between single spaces; `new` may be empty. Where `old` is
    empty, `new` is added at the end of the line: a list grows by what is added, and
    what stood there last need not be written again.
    """

    old: str
    new: str


Piece = str | int | Swap


NO_WORDS = "a line has not, or not once, the words"
"""How the error of a swap begins whose words are not there."""


class Edit(NamedTuple):
    """Replace line `index` by `lines`; index None appends them after the last line."""

    index: int | None
    lines: tuple[Piece, ...]


def diff(before: State, after: State) -> tuple[Edit, ...]:
    """Return a short edit script with apply(before, diff(before, after)) == after."""
    changed, tail = _changes(before, after)
    removed = [i for i, new in sorted(changed.items()) if not new]
    rewritten = [
        i for i, new in sorted(changed.items()) if new and before[i] not in new
    ]
    script = []
    for index, new in [*sorted(changed.items()), (None, tail)]:
        lines: list[Piece] = []
        for line in new:
            source = next((i for i in removed if _stands_for(before, i, line)), None)
            if source is not None:
                removed.remove(source)
            elif (
                index is not None
                and index not in lines
                and _stands_for(before, index, line)
            ):
                source = index
            else:  # two lines that change places
                source = next(
                    (i for i in rewritten if _stands_for(before, i, line)), None
                )
                if source is not None:
                    rewritten.remove(source)
            lines.append(line if source is None else source)
        if lines:
            script.append(Edit(index, tuple(lines)))
    script += [Edit(i, ()) for i in removed]
    return tuple(sorted(script, key=lambda e: len(before) if e[0] is None else e[0]))


def _stands_for(before: State, index: int, line: str) -> bool:
    """Return whether a line can be written as a reference to a line of `before`."""
    return before[index] == line and line_name(before, index) is not None


def with_swaps(before: State, script: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """Return the script with swaps for written lines much like the line they replace.

    Only the first line that an edit writes can be one.
    """
    return tuple(
        Edit(i, (_swap_of(before[i], new[0]) or new[0], *new[1:]))
        if i is not None and new and isinstance(new[0], str)
        else Edit(i, new)
        for i, new in script
    )


def _swap_of(before: str, after: str) -> Swap | None:
    """Return a swap of one line for another; None if it is longer than the line.

    A swap of as many words is preferred to the line: what it leaves out stays as it is.
    What changes stands behind the word before it, wherever there is one: where only
    ambiguous words had such a neighbour, a model would have to count them.
    """
    old, new = before.split(" "), after.split(" ")
    if "" in old or "" in new:
        return None
    if new[: len(old)] == old and len(new) > len(old):
        return Swap("", " ".join(new[len(old) :]))
    shortest = min(len(old), len(new))
    start = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    rest = shortest - start
    end = next((i for i in range(rest) if old[-1 - i] != new[-1 - i]), rest)
    start = max(start - 1, 0)
    # More words, first on the left, until what is replaced is something, and unique.
    while _count(old, old[start : len(old) - end]) != 1:
        if not (start or end):
            return None
        start, end = (start - 1, end) if start else (start, end - 1)
    words = old[start : len(old) - end], new[start : len(new) - end]
    if sum(map(len, words)) > len(new):
        return None
    return Swap(*map(" ".join, words))


def _swapped(line: str, swap: Swap) -> str:
    """Return the line after a swap; raise IndexError where its words are not there."""
    if line and swap.new and not swap.old:
        return f"{line} {swap.new}"
    words = line.split(" ")
    for old, new in _with_less_context(swap) if swap.old else ():
        if _count(words, old) == 1:
            at = next(i for i in range(len(words)) if words[i : i + len(old)] == old)
            return " ".join([*words[:at], *new, *words[at + len(old) :]])
    raise IndexError(f"{NO_WORDS} {swap.old!r}: {line!r:.200}")


def _with_less_context(swap: Swap) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the old and new words of a swap, then with fewer of those that both share.

    A model that has learnt `- - <` -> `- < -` writes it in `key - <` too. What changes,
    `- <`, is right there; only the word before it is another. Words that are only
    added, or only taken away, say nothing without their context.
    """
    old, new = swap.old.split(" "), swap.new.split(" ") if swap.new else []
    yield old, new
    first = _shared(old, new)
    last = _shared(old[first:][::-1], new[first:][::-1])
    if first + last < min(len(old), len(new)):
        for start in range(1, first + 1):
            yield old[start:], new[start:]
        for end in range(1, last + 1):
            yield old[first : len(old) - end], new[first : len(new) - end]


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many first words two runs of words share."""
    pairs = zip(old, new, strict=False)
    return next(
        (i for i, (x, y) in enumerate(pairs) if x != y), min(len(old), len(new))
    )


def _count(words: list[str], run: list[str]) -> int:
    """Return how often a run of words stands in a line; of no words, more than once."""
    starts = range(len(words) - len(run) + 1)
    return sum(words[i : i + len(run)] == run for i in starts)


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
                changed[0] = new + changed.get(0, (before[0],))
            else:
                changed[i1 - 1] = changed.get(i1 - 1, (before[i1 - 1],)) + new
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
        have, or a swap to words that its line does not have.
    """
    changed: dict[int, State] = {}
    tail: State = ()
    moved: set[int] = set()

    for index, new in _lines_by_edit(before, script, keyed_by_prefix):
        moved |= {_checked(before, x) for x in new if isinstance(x, int)}
        lines = tuple(before[x] if isinstance(x, int) else x for x in new)
        if index is None:
            tail += lines
        else:
            changed[_checked(before, index)] = lines
    new_keys = {_line_key(x) for lines in (*changed.values(), tail) for x in lines}
    replaced = moved | {
        i for i, old in enumerate(before) if distinct and _line_key(old) in new_keys
    }
    lines_left = [
        line
        for i, old in enumerate(before)
        for line in changed.get(i, () if i in replaced else (old,))
    ]
    return (*lines_left, *tail)


def repeated_line(
    before: State, script: tuple[Edit, ...], *, keyed_by_prefix: bool = False
) -> str | None:
    """Return a line that the script writes as it was, or None; arguments as of `apply`.

    `diff` writes no such edit: a line that is edited changes. Raises IndexError where
    `apply` does.
    """
    for index, new in _lines_by_edit(before, script, keyed_by_prefix):
        if index is not None and len(new) == 1:
            line = before[new[0]] if isinstance(new[0], int) else new[0]
            if line == before[_checked(before, index)]:
                return line
    return None


def _lines_by_edit(
    before: State, script: tuple[Edit, ...], keyed_by_prefix: bool
) -> list[tuple[int | None, tuple[str | int, ...]]]:
    """Return the script with each swap as the line that it makes, and at its place."""
    lines_by_edit = [
        (i, tuple(_with_swap(before, i, x) for x in new))
        for i, new in _swaps_at_their_words(before, script)
    ]
    return _at_prefixes(before, lines_by_edit) if keyed_by_prefix else lines_by_edit


def _checked(before: State, index: int) -> int:
    """Return the index; raise IndexError if the state has no such line."""
    if not 0 <= index < len(before):
        raise IndexError(f"edit of line {index} in a state of {len(before)} lines")
    return index


def _with_swap(before: State, index: int | None, piece: Piece) -> str | int:
    """Return a piece of an edit's line, a swap as the line that it makes."""
    if not isinstance(piece, Swap):
        return piece
    return _swapped("" if index is None else before[_checked(before, index)], piece)


def _swaps_at_their_words(before: State, script: tuple[Edit, ...]) -> list[Edit]:
    """Return the script with each swap at the one line that has its words.

    Where its own line has them once, or several others do, it stays where it is. Words
    are easier to copy than a line number is to find.
    """
    out = []
    for index, new in script:
        old = next((x.old.split(" ") for x in new if isinstance(x, Swap)), None)
        at = index
        if old not in (None, [""]) and index is not None:
            lines = [i for i, x in enumerate(before) if _count(x.split(" "), old) == 1]
            taken = {e.index for e in script} - {index}
            if index not in lines and len(lines) == 1 and lines[0] not in taken:
                at = lines[0]
        out.append(Edit(at, new))
    return out


def _at_prefixes(
    before: State, script: Sequence[tuple[int | None, tuple[str | int, ...]]]
) -> list[tuple[int | None, tuple[str | int, ...]]]:
    """Return the script with each written line at the one line of its prefix."""
    positions: dict[str, list[int]] = {}
    for i, line in enumerate(before):
        positions.setdefault(_line_prefix(line), []).append(i)
    out: dict[int | None, list[str | int]] = {}
    for index, new in script:
        if not new:
            out.setdefault(index, [])
        for line in new:
            at = [] if isinstance(line, int) else positions.get(_line_prefix(line), [])
            out.setdefault(at[0] if len(at) == 1 else index, []).append(line)
    return [(i, tuple(lines)) for i, lines in out.items()]


def _line_prefix(line: str) -> str:
    return " ".join(line.split()[:-1])


def _line_key(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.strip() else ""
