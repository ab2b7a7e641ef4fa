"""The form of states: what all real states of a family share, and a dreamed one must.

real states (state_format), or those of episodes by family (state_formats) -> Form ->
fault(state, form): what is wrong with it, or None. The first word of a line is its
head, all words but the last are its stem.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State
from worldmodel.text import edits

MAX_TRANSITIONS = 2000
"""Transitions of a family, at most, from which is told how its lines change."""


class StateFormat(NamedTuple):
    """Heads of the first and last lines, the least number of lines, heads apart.

    `distinct`: no two lines of one state have the same head. `stems`: what changes in
    place changes in the last word alone (edits.apply). `empty`: a state may hold no
    line at all, and then need not have the rest.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    lines: int
    distinct: bool
    keyed_by_prefix: bool = False
    empty: bool = False


def state_format(states: Iterable[State]) -> StateFormat:
    """What these states share. Raises ValueError where there are none."""
    distinct_states = dict.fromkeys(states)
    if not distinct_states:
        raise ValueError("a form needs at least one state")
    # One without a line would say that nothing is shared by the others.
    line_keys = [
        [line.split()[0] for line in state] for state in distinct_states if state
    ] or [[]]
    lines, first = min(map(len, line_keys)), _shared(line_keys)
    last = _shared([x[::-1] for x in line_keys])[: lines - len(first)]
    distinct = all(len(set(x)) == len(x) for x in line_keys)
    return StateFormat(first, last[::-1], lines, distinct, empty=() in distinct_states)


def keyed_by_prefix(pairs: Iterable[tuple[State, State]]) -> bool:
    """Whether lines that are written stand where their stem stood, in all (before,
    after) of these, and in some of them do."""
    any_moved = False
    for before, after in pairs:
        script = edits.diff(before, after)
        if edits.apply(before, script, keyed_by_prefix=True) != after:
            return False
        # Of a script that names no line, stems alone find some.
        unplaced = tuple(edits.Edit(None, e.lines) for e in script if e.lines)
        any_moved |= (
            script != unplaced
            and edits.apply(before, unplaced, keyed_by_prefix=True) == after
        )
    return any_moved


def _shared(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The words with which all rows begin."""
    columns = zip(*rows, strict=False)
    return tuple(c[0] for c in itertools.takewhile(lambda c: len(set(c)) == 1, columns))


def format_error(state: State, expected: StateFormat) -> str | None:
    """How a state breaks the form, or None."""
    if expected.empty and not state:
        return None
    line_keys = tuple(line.split()[0] for line in state if line.split())
    if len(line_keys) < expected.lines or len(line_keys) < len(state):
        return f"{len(line_keys)} lines of text, at least {expected.lines} expected"
    if line_keys[: len(expected.first)] != expected.first:
        return f"the first lines must begin with {' '.join(expected.first)!r}"
    if line_keys[len(line_keys) - len(expected.last) :] != expected.last:
        return f"the last lines must begin with {' '.join(expected.last)!r}"
    if expected.distinct and len(set(line_keys)) < len(line_keys):
        twice = next(h for h in line_keys if line_keys.count(h) > 1)
        return f"more than one line begins with {twice!r}"
    return None


def state_formats(episodes: Sequence[Episode]) -> dict[str, StateFormat]:
    """The form of each family's states, by its name."""
    pairs: dict[str, list[tuple[State, State]]] = {}
    for e in episodes:
        family_pairs = pairs.setdefault(e.task.family, [])
        family_pairs += [(t.state, t.next_state) for t in e.transitions]
    return {
        family: state_format(x for pair in family_pairs for x in pair)._replace(
            keyed_by_prefix=keyed_by_prefix(
                family_pairs[:: -(-len(family_pairs) // MAX_TRANSITIONS)]
            )
        )
        for family, family_pairs in pairs.items()
        if family_pairs
    }
