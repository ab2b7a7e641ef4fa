"""States as models read them, and next states as models write them.

state -> what a model reads; state, next state -> what it writes -> the next state
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition
from worldmodel.text.writing.columns import read_columns, with_columns, write_columns
from worldmodel.text.writing.number_changes import (
    ChangeRule,
    read_changes,
    unread_changes,
    write_changes,
)


class StateWriting(NamedTuple):
    """How states are written: with the columns of their grid, with changes of numbers.

    `columns`: the words of the cells of grids whose columns are read (`grid_words`); no
    grid has any where it is empty. `changes`: in which lines of next states numbers are
    written as changes; None: in no line. A state of more than `max_lines` lines with
    its columns has none.
    """

    columns: frozenset[str] = frozenset()
    changes: ChangeRule | None = None
    max_lines: int = 0

    def model_input(self, state: State) -> State:
        """Return a state as models read it."""
        return (
            with_columns(state, self.columns, self.max_lines) if self.columns else state
        )

    def written(
        self, before: State, after: State, *, whole: bool = False
    ) -> tuple[State, State]:
        """Return a state as models read it, and its next state as they write it.

        A next state that is written as a `whole`, not as edits, has no columns.
        """
        if self.columns and not whole:
            before, after = write_columns(before, after, self.columns, self.max_lines)
        if self.changes is not None:
            after = write_changes(before, after, self.changes)
        return before, after

    def read(self, before: State, written: State, *, whole: bool = False) -> State:
        """Return the next state that was written for a state, as `written` is.

        Raises:
          ValueError: it does not follow from the state.
        """
        after = written
        if self.changes is not None:
            lines_read = before if whole else self.model_input(before)
            after = read_changes(lines_read, after, self.changes)
        if self.columns and not whole:
            after = read_columns(before, after, self.columns, self.max_lines)
        if self.changes is not None and (unread := unread_changes(before, after)):
            raise ValueError(
                f"a change of a number that the state does not have: {unread[0]!r}"
            )
        return after


def with_written_states(
    episodes: Sequence[Episode], writing: StateWriting
) -> list[Episode]:
    """Return the episodes with states as models read and write them.

    Their states no longer chain.
    """
    return [
        dataclasses.replace(
            e, transitions=tuple(written_transition(t, writing) for t in e.transitions)
        )
        for e in episodes
    ]


def written_transition(transition: Transition, writing: StateWriting) -> Transition:
    """Return a transition with its states as models read and write them."""
    before, after = writing.written(transition.state, transition.next_state)
    return dataclasses.replace(transition, state=before, next_state=after)
