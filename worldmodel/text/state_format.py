"""The format of states: what all real states of a family share.

episodes -> state_formats -> a StateFormat for each family -> format_error(state): what
is wrong with a dreamed state, or None. The key of a line is its first word, its prefix
all words but the last.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State
from worldmodel.text import edits

MIN_STATES = 20
"""Different states of a single task from which the format of its family is read."""
MIN_PAIRS = 20
"""Transitions of a family from which keyed_by_prefix is read."""
MIN_LINES = 50
"""Lines of a family that hold a word twice, from which distinct_before is read."""
REPEATED_WORDS = "a line holds these words twice"
"""How the message of `repeated_words` begins."""
MAX_TRANSITIONS = 2000
"""Transitions of a family, at most, that keyed_by_prefix looks at."""


class StateFormat(NamedTuple):
    """What the states of a family share.

    `first` and `last` are the keys of the first and of the last lines, `lines` is the
    smallest number of lines. `distinct` says that no two lines of a state have the same
    key, `keyed_by_prefix` that lines change in their last word only (edits.apply),
    `empty` that a state may have no line at all; such a state needs nothing else.
    `distinct_before` are words that have another word before them wherever they stand
    in a line: of two exits to an unseen room, each leads to another one.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    lines: int
    distinct: bool
    keyed_by_prefix: bool = False
    empty: bool = False
    distinct_before: frozenset[str] = frozenset()


def state_format(states: Iterable[State]) -> StateFormat:
    """Return what these states share.

    Raises:
      ValueError: there are no states.
    """
    distinct_states = dict.fromkeys(states)
    if not distinct_states:
        raise ValueError("a state format needs at least one state")
    # A state without lines would make the common first and last lines empty.
    line_keys = [
        [line.split()[0] for line in state] for state in distinct_states if state
    ] or [[]]
    lines, first = min(map(len, line_keys)), _common_start(line_keys)
    last = _common_start([x[::-1] for x in line_keys])[: lines - len(first)]
    distinct = all(len(set(x)) == len(x) for x in line_keys)
    return StateFormat(first, last[::-1], lines, distinct, empty=() in distinct_states)


def keyed_by_prefix(pairs: Iterable[tuple[State, State]]) -> bool:
    """Return whether written lines always replace the line that has their prefix.

    True where that holds for all (before, after) pairs and at least one pair needs it.
    """
    any_moved = False
    for before, after in pairs:
        script = edits.diff(before, after)
        if edits.apply(before, script, keyed_by_prefix=True) != after:
            return False
        # Without any line index, only prefixes can put written lines in place.
        unplaced = tuple(edits.Edit(None, e.lines) for e in script if e.lines)
        any_moved |= (
            script != unplaced
            and edits.apply(before, unplaced, keyed_by_prefix=True) == after
        )
    return any_moved


def _common_start(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the words with which all rows begin."""
    columns = zip(*rows, strict=False)
    return tuple(c[0] for c in itertools.takewhile(lambda c: len(set(c)) == 1, columns))


def format_error(state: State, expected: StateFormat) -> str | None:
    """Return how a state breaks the format, or None."""
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


def repeated_words(before: State, state: State, expected: StateFormat) -> str | None:
    """Return which words a new line of a state holds twice, against the format.

    A model draws what nobody knows, and may draw the same thing for two places. None
    where no line does that `before` does not hold.
    """
    if not expected.distinct_before:
        return None
    for line in state:
        if line in before:
            continue
        pairs = [p for p in _pairs(line) if p[1] in expected.distinct_before]
        if len(set(pairs)) < len(pairs):
            twice = next(p for p in pairs if pairs.count(p) > 1)
            return f"{REPEATED_WORDS}: {' '.join(twice)!r}: {line!r:.200}"
    return None


def _pairs(line: str) -> list[tuple[str, str]]:
    return list(itertools.pairwise(line.split()))


def _distinct_before(states: Iterable[State]) -> frozenset[str]:
    """Return the words that never have the same word before them twice in a line."""
    counts, repeated = Counter[str](), set[str]()
    for line in {line for state in states for line in state}:
        pairs = Counter(_pairs(line))
        words = Counter(word for _, word in pairs)
        repeated.update(word for (_, word), n in pairs.items() if n > 1)
        counts.update(word for word, n in words.items() if n > 1)
    return frozenset(w for w, n in counts.items() if n >= MIN_LINES) - repeated


def state_formats(episodes: Sequence[Episode]) -> dict[str, StateFormat]:
    """Return the format of each family's states, by the family's name.

    A family of a single task has none as long as fewer than MIN_STATES of its states
    were seen: what these share are words of that task, which others need not have.
    """
    pairs: dict[str, list[tuple[State, State]]] = {}
    tasks: dict[str, set[str]] = {}
    for e in episodes:
        family_pairs = pairs.setdefault(e.task.family, [])
        family_pairs += [(t.state, t.next_state) for t in e.transitions]
        tasks.setdefault(e.task.family, set()).add(e.task.id)
    out = {}
    for family, family_pairs in pairs.items():
        states = dict.fromkeys(x for pair in family_pairs for x in pair)
        if not states or (len(tasks[family]) < 2 and len(states) < MIN_STATES):
            continue
        sample = family_pairs[:: -(-len(family_pairs) // MAX_TRANSITIONS)]
        enough = len(family_pairs) >= MIN_PAIRS
        out[family] = state_format(states)._replace(
            keyed_by_prefix=enough and keyed_by_prefix(sample),
            distinct_before=_distinct_before(states),
        )
    return out
