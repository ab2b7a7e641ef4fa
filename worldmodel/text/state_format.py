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
    known = dict.fromkeys(states)
    if not known:
        raise ValueError("a form needs at least one state")
    # One without a line would say that nothing is shared by the others.
    heads = [[line.split()[0] for line in state] for state in known if state] or [[]]
    lines, first = min(map(len, heads)), _shared(heads)
    last = _shared([x[::-1] for x in heads])[: lines - len(first)]
    distinct = all(len(set(x)) == len(x) for x in heads)
    return StateFormat(first, last[::-1], lines, distinct, empty=() in known)


def keyed_by_prefix(pairs: Iterable[tuple[State, State]]) -> bool:
    """Whether lines that are written stand where their stem stood, in all (before,
    after) of these, and in some of them do."""
    some = False
    for before, after in pairs:
        script = edits.diff(before, after)
        if edits.apply(before, script, keyed_by_prefix=True) != after:
            return False
        # Of a script that names no line, stems alone find some.
        lost = tuple(edits.Edit(None, e.lines) for e in script if e.lines)
        some |= (
            script != lost and edits.apply(before, lost, keyed_by_prefix=True) == after
        )
    return some


def _shared(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The words with which all rows begin."""
    columns = zip(*rows, strict=False)
    return tuple(c[0] for c in itertools.takewhile(lambda c: len(set(c)) == 1, columns))


def format_error(state: State, form: StateFormat) -> str | None:
    """How a state breaks the form, or None."""
    if form.empty and not state:
        return None
    heads = tuple(line.split()[0] for line in state if line.split())
    if len(heads) < form.lines or len(heads) < len(state):
        return f"{len(heads)} lines of text, at least {form.lines} expected"
    if heads[: len(form.first)] != form.first:
        return f"the first lines must begin with {' '.join(form.first)!r}"
    if heads[len(heads) - len(form.last) :] != form.last:
        return f"the last lines must begin with {' '.join(form.last)!r}"
    if form.distinct and len(set(heads)) < len(heads):
        twice = next(h for h in heads if heads.count(h) > 1)
        return f"more than one line begins with {twice!r}"
    return None


def state_formats(episodes: Sequence[Episode]) -> dict[str, StateFormat]:
    """The form of each family's states, by its name."""
    pairs: dict[str, list[tuple[State, State]]] = {}
    for e in episodes:
        found = pairs.setdefault(e.task.family, [])
        found += [(t.state, t.next_state) for t in e.transitions]
    return {
        family: state_format(x for pair in found for x in pair)._replace(
            keyed_by_prefix=keyed_by_prefix(found[:: -(-len(found) // MAX_TRANSITIONS)])
        )
        for family, found in pairs.items()
        if found
    }
