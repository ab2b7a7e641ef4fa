"""Grids, read by their columns as well as by their rows.

state -> the same state with a line for each column of its grid -> an edit of a row or
of a column -> read back as the next state

In a state such as `# @ .` above `# . .`, a step to the left or right changes one line,
and a model sees what stands there from the words around it. A step up or down changes
two lines, in the same place of each, which a small model has to count off: it got the
horizontal moves of a box game right in 94 %, and the vertical ones in 40 %. With the
columns as further lines both are the same task. What changed is written in the rows or
in the columns, whichever are fewer lines, and the others follow from it.
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition

COLUMN = "column"
"""The first word of the line of a column."""
MIN_ROWS = MIN_WIDTH = 3
"""Rows and columns of a grid, at least."""
MIN_CHANGES, MIN_SHARE = 20, 0.05
"""Transitions that change one column in several rows, and their share of those that
change something, below which columns are not read. A lamp that is switched with its
neighbours changes several columns: there they did not help, nor where rows are numbered
(docs/LOG.md)."""
MAX_TRANSITIONS = 2000
"""Transitions of a family that are looked at."""
MAX_DIGITS = 10
"""Digits of a number of a row, less than which it may have."""


class Grid(NamedTuple):
    """Where the grid of a state stands.

    It has `rows` lines from `start` on, with `width` cells each. In a `compact` one a
    row is one word whose letters are the cells.
    """

    start: int
    rows: int
    width: int
    compact: bool

    def same_shape(self, other: "Grid | None") -> bool:
        """Return whether another grid has as many rows and cells, written alike."""
        return other is not None and self[1:] == other[1:]

    def cells(self, state: State) -> list[list[str]]:
        """Return the cells of the rows."""
        lines = state[self.start : self.start + self.rows]
        return [list(line) if self.compact else line.split() for line in lines]

    def with_cells(
        self, state: State, cells: Sequence[Sequence[str]], *, compact: bool = False
    ) -> State:
        """Return the state with these cells, as one word a row if `compact`."""
        rows = (("" if compact else " ").join(row) for row in cells)
        end = self.start + self.rows
        return (*state[: self.start], *rows, *state[end:])


@functools.lru_cache(maxsize=16384)
def find_grid(state: State, words: frozenset[str]) -> Grid | None:
    """Return the largest grid of a state, or None.

    Its lines have equally many words, or are one word each of equally many letters. At
    least half of the cells of each line are among `words` (`grid_words`).
    """
    grids = _blocks(state, words)
    return max(grids, key=lambda g: g.rows * g.width, default=None)


def _blocks(state: State, words: frozenset[str] | None = None) -> list[Grid]:
    """Return the runs of lines that have the shape of a grid, of any words if None."""
    spaced, compact = ([_parts(x, compact=c) for x in state] for c in (False, True))
    return [
        Grid(start, end - start, len(parts[start]), parts is compact)
        for parts in (spaced, compact)
        for start, end in _runs(parts, words)
        if end - start >= MIN_ROWS and len(parts[start]) >= MIN_WIDTH
    ]


def _parts(line: str, *, compact: bool) -> list[str]:
    """Return the words of a line, or the letters of a line that is one word."""
    words = line.split()
    if compact:
        return list(line) if len(words) == 1 and line == words[0] else []
    # Only single spaces can be written again.
    return words if line == " ".join(words) else []


def _runs(
    rows: Sequence[Sequence[str]], words: frozenset[str] | None
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of runs of rows of one length, at least half of `words`."""
    start = 0
    for i in range(1, len(rows) + 1):
        if (
            i == len(rows)
            or len(rows[i]) != len(rows[start])
            or not (_has_cells(rows[i - 1], words) and _has_cells(rows[i], words))
        ):
            yield start, i
            start = i


def _has_cells(row: Sequence[str], words: frozenset[str] | None) -> bool:
    """Return whether at least half of a row are `words`; None are all words."""
    return words is None or 2 * sum(cell in words for cell in row) >= len(row)


def _are_numbered(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether rows begin with numbers or letters in order, or a word and those.

    Other lines may stand among the rows.
    """
    first, second, *_ = zip(*rows, strict=True)
    named = [
        number
        for word, number in zip(first, second, strict=True)
        if word == first[0] and not word.isdecimal()
    ]
    return any(_are_in_order(labels) for labels in (first, named))


def _are_in_order(words: Sequence[str]) -> bool:
    """Return whether labels such as `7`, `7:` or `b` go up, or down, one by one.

    They are the numbers among the words, or, where there are none, the letters.
    """
    texts = [word.strip("|:.)(") for word in words]
    numbers = [int(x) for x in texts if x.isdecimal() and len(x) < MAX_DIGITS]
    letters = [ord(x) for x in texts if len(x) == 1 and x.isalpha()]
    labels = numbers or letters
    steps = {b - a for a, b in itertools.pairwise(labels)}
    return len(labels) >= MIN_ROWS and steps in ({1}, {-1})


def _has_columns(state: State) -> bool:
    return any(line.partition(" ")[0] == COLUMN for line in state)


def column_lines(cells: Sequence[Sequence[str]]) -> State:
    """Return a line for each column."""
    return tuple(" ".join([COLUMN, *x]) for x in zip(*cells, strict=True))


def with_columns(state: State, words: frozenset[str], max_lines: int) -> State:
    """Return the state as models read it: its columns, then its lines.

    It is returned as it is if it has no grid or has more than `max_lines` then.
    """
    return write_columns(state, state, words, max_lines)[0]


def write_columns(
    before: State, after: State, words: frozenset[str], max_lines: int
) -> tuple[State, State]:
    """Return two states as models read and write them.

    Of the next state, what changed is written in the columns where these are fewer
    lines, else in the rows; the others are those of the state before. A next state that
    could not be read back has no columns.
    """
    grid = find_grid(before, words)
    if grid is None or len(before) + grid.width > max_lines:
        return before, after
    lines, written = _written(before, after, grid, words)
    try:
        if read_columns(before, written, words, max_lines) == after:
            return lines, written
    except ValueError:
        pass
    return lines, after


def _written(
    before: State, after: State, grid: Grid, words: frozenset[str]
) -> tuple[State, State]:
    old, new_grid = grid.cells(before), find_grid(after, words)
    columns = column_lines(old)
    first = (*columns, *grid.with_cells(before, old))
    if new_grid is None or not grid.same_shape(new_grid):
        return first, (*columns, *after)
    new = new_grid.cells(after)
    rows, changed_columns = _changes(old, new)
    if changed_columns < rows:
        return first, (*column_lines(new), *new_grid.with_cells(after, old))
    return first, (*columns, *new_grid.with_cells(after, new))


def _changes(old: list[list[str]], new: list[list[str]]) -> tuple[int, int]:
    """Return how many rows and how many columns change."""
    rows = sum(a != b for a, b in zip(old, new, strict=True))
    pairs = zip(zip(*old, strict=True), zip(*new, strict=True), strict=True)
    return rows, sum(a != b for a, b in pairs)


def read_columns(
    before: State, written: State, words: frozenset[str], max_lines: int
) -> State:
    """Return the next state that was written for a state, without its columns.

    `before` is the state itself, as it was recorded. A next state without any column is
    returned as it is.

    Raises:
      ValueError: columns are missing, or do not fit the rows.
    """
    grid = find_grid(before, words)
    if grid is None or len(before) + grid.width > max_lines:
        return written
    if not _has_columns(written):
        return written
    old = grid.cells(before)
    lines, rest = written[: grid.width], written[grid.width :]
    columns = [line.split() for line in lines]
    if len(lines) < grid.width or any(
        len(column) != grid.rows + 1 or column[0] != COLUMN for column in columns
    ):
        raise ValueError(f"the grid has not {grid.width} columns of {grid.rows} cells")
    if _has_columns(rest):
        raise ValueError(f"the grid has more than {grid.width} columns")
    # Other words may have been dreamed, or stand in the grid after a change.
    cells_there = words.union(*old, *(column[1:] for column in columns))
    new_grid = find_grid(rest, words) or find_grid(rest, cells_there)
    if not grid._replace(compact=False).same_shape(new_grid):
        if lines == column_lines(old):
            return rest
        raise ValueError("a column changes of a grid that is not there any more")
    assert new_grid is not None
    cells = new_grid.cells(rest)
    for j, column in enumerate(columns):
        for i, cell in enumerate(column[1:]):
            if cell != old[i][j]:
                cells[i][j] = cell
    if grid.compact and any(len(cell) != 1 for row in cells for cell in row):
        raise ValueError("a cell of a row that is one word has several letters")
    return new_grid.with_cells(rest, cells, compact=grid.compact)


def grid_words(episodes: Iterable[Episode]) -> frozenset[str]:
    """Return the words of the cells of grids whose columns models should read.

    They are those of families whose recorded steps often change one column in several
    rows, and whose rows are not numbered; empty where there are none. A word of a grid
    stands now in one column and now in another, which those of a table do not. Words
    that would make grids of other families' states are left out.
    """
    families: dict[str, list[Transition]] = {}
    for e in episodes:
        families.setdefault(e.task.family, []).extend(e.transitions)
    sampled = [steps[:MAX_TRANSITIONS] for steps in families.values()]
    words_of = [_words_of_family(steps) for steps in sampled]
    words = frozenset[str]().union(*words_of)
    for steps, own_words in zip(sampled, words_of, strict=True):
        if words and not own_words:
            words -= _words_in_grids([t.state for t in steps], words)
    return words


def _words_of_family(steps: Sequence[Transition]) -> frozenset[str]:
    """Return the words of the grids of a family; none where columns would not help."""
    columns: dict[str, set[int]] = {}
    for t in steps:
        if _has_columns(t.state) or _has_columns(t.next_state):
            return frozenset()  # ours could not be told from those of the environment
        for grid in _blocks(t.state):
            for row in grid.cells(t.state):
                for j, cell in enumerate(row):
                    columns.setdefault(cell, set()).add(j)
    words = frozenset(word for word, places in columns.items() if len(places) > 1)
    changes = [t for t in steps if t.state != t.next_state]
    count = sum(_changes_one_column(t.state, t.next_state, words) for t in changes)
    if count < max(MIN_CHANGES, MIN_SHARE * len(changes)):
        return frozenset()
    grids = [(t.state, g) for t in steps if (g := find_grid(t.state, words))]
    numbered = sum(_are_numbered(g.cells(state)) for state, g in grids)
    return frozenset() if 2 * numbered > len(grids) else words


def _words_in_grids(states: Iterable[State], words: frozenset[str]) -> frozenset[str]:
    """Return which of the words stand in a grid of these states."""
    grids = ((state, find_grid(state, words)) for state in states)
    rows = (row for state, grid in grids if grid for row in grid.cells(state))
    return words & {cell for row in rows for cell in row}


def _changes_one_column(before: State, after: State, words: frozenset[str]) -> bool:
    """Return whether one column changes, in several rows, as by a step up or down."""
    grid, new_grid = find_grid(before, words), find_grid(after, words)
    if grid is None or new_grid is None or not grid.same_shape(new_grid):
        return False
    rows, columns = _changes(grid.cells(before), new_grid.cells(after))
    return columns == 1 < rows
