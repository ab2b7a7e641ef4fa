"""A state as lines, and the edit script that turns one state into the next.

before, after -> diff -> ((index, new lines), ...) -> apply(before) == after.
Unchanged lines cost nothing and cannot be corrupted. An edit with no lines deletes
its line; an edit with several grows there; index None appends at the end.
"""

import difflib
from typing import NamedTuple

from worldmodel.text.records import State


class Edit(NamedTuple):
    """Put `lines` in the place of line `index` (None: after the last line)."""

    index: int | None
    lines: State


def diff(before: State, after: State) -> tuple[Edit, ...]:
    """A short edit script with apply(before, diff(before, after)) == after."""
    changed: dict[int, State] = {}
    tail: State = ()

    def current(i: int) -> State:
        return changed.get(i, (before[i],))

    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        new = after[j1:j2]
        if tag in ("replace", "delete"):
            for i in range(i1, i2 - 1):
                changed[i] = new[i - i1 : i - i1 + 1]
            changed[i2 - 1] = new[i2 - 1 - i1 :]
        elif tag == "insert":
            if i1 == len(before):
                tail = new
            elif i1 == 0:
                changed[0] = new + current(0)
            else:
                changed[i1 - 1] = current(i1 - 1) + new
    script = tuple(Edit(i, changed[i]) for i in sorted(changed))
    return script + ((Edit(None, tail),) if tail else ())


def apply(before: State, script: tuple[Edit, ...]) -> State:
    """The state after the script.

    Raises:
      IndexError: an edit names a line that `before` does not have.
    """
    changed: dict[int, State] = {}
    tail: State = ()
    for index, new in script:
        if index is None:
            tail += new
        elif not 0 <= index < len(before):
            raise IndexError(f"edit of line {index} in a state of {len(before)} lines")
        else:
            changed[index] = new
    kept = [line for i, old in enumerate(before) for line in changed.get(i, (old,))]
    return (*kept, *tail)
