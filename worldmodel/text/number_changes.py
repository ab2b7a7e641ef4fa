"""Numbers of a next state, written as what they change by: `ice +4`, `sand +-2`.

state, next state -> the same next state with changes -> read back by the state

In an inventory or a counter a number changes by what the action names, or by one. Then
the change can be copied where the number itself has to be computed, which a small model
learns digit by digit, if at all, from thousands of sums. Whether changes or numbers are
easier is a question to the recorded episodes (`are_easier`).
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State

MIN_CHANGES, MIN_SHARE = 20, 0.05
"""Changed numbers of recorded transitions, and their share of the transitions, below
which they stay as they are."""
MIN_ADVANTAGE = 0.2
"""By how much more of the changes than of the numbers must be at hand."""
BLANK = "\0"
_NUMBER = re.compile(r"0|-?[1-9]\d{0,8}")
_CHANGE = re.compile(r"\+-?[1-9]\d{0,8}")
_LIKE_A_CHANGE = re.compile(r"\+-?\d\S*|\+-\S*")
_ANY = re.compile(r"\+?-?\d{1,9}")


def write_changes(before: State, after: State) -> State:
    """Return the next state with its changed numbers as changes.

    A line has changes where exactly one line of the state before has the same words,
    numbers aside, and other numbers. Where none has, and it has one number, that is a
    change from 0, so that a model need not look whether the thing is there already. A
    next state that could not be read back stays as it is, as one does that holds words
    such as `+4` of its own.
    """
    old = _old_lines(before, after)
    out = tuple(
        line if line in before else _written(old.get(_frame(line)), line)
        for line in after
    )
    return out if read_changes(before, out) == after else after


def read_changes(before: State, after: State) -> State:
    """Return the next state with its changes as numbers.

    A change is of 0 where no line of the state before has its words. One that could be
    of several lines stays as it is (`unread_changes`), as does a line of the state
    before.
    """
    old = _old_lines(before, after)
    return tuple(
        line if line in before else _read(old.get(_frame(line)), line) for line in after
    )


def unread_changes(before: State, after: State) -> list[str]:
    """Return the new lines in which a word looks like a change, such as `+4`."""
    return [x for x in after if x not in before and _looks_like_a_change(x)]


def are_easier(episodes: Iterable[Episode]) -> bool:
    """Return whether a model should write changes, by its training episodes.

    Of the numbers that changed it counts how many stand in the action, the task or the
    state, and of how many the change stands there or is 1. No state may hold a word
    such as `+4` itself.
    """
    numbers, changes, steps = Rate(), Rate(), 0
    for e in episodes:
        steps += len(e.transitions)
        for t in e.transitions:
            if any(_looks_like_a_change(line) for line in (*t.state, *t.next_state)):
                return False
            after = write_changes(t.state, t.next_state)
            for line, new in zip(t.next_state, after, strict=True):
                if line == new or _frame(line) not in map(_frame, t.state):
                    continue
                others = (x for x in t.state if _frame(x) != _frame(line))
                at_hand = _numbers((t.action, e.task.instruction, *others))
                for number, change in zip(line.split(), new.split(), strict=True):
                    if number != change:
                        numbers.add(number.lstrip("-") in at_hand)
                        size = change.lstrip("+-")
                        changes.add(size == "1" or size in at_hand)
    if numbers.count < max(MIN_CHANGES, MIN_SHARE * steps):
        return False
    advantage = (changes.hits - numbers.hits) / numbers.count
    return advantage >= MIN_ADVANTAGE


def with_changes(episodes: Sequence[Episode]) -> list[Episode]:
    """Return the episodes with changes in their next states, for fits and counts.

    Their states no longer chain.
    """
    return [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(t, next_state=write_changes(t.state, t.next_state))
                for t in e.transitions
            ),
        )
        for e in episodes
    ]


def _frame(line: str) -> str:
    """Return the line with BLANK in the place of each number or change."""
    return " ".join(BLANK if _ANY.fullmatch(w) else w for w in line.split(" "))


def _old_lines(before: State, after: State) -> dict[str, str]:
    """Return what lines of the next state change, by their frame.

    Lines of the state before that are the only ones with their frame; of other frames
    with one number, a line in which it is 0.
    """
    counts = Counter(map(_frame, before))
    old = {frame: line for line in before if counts[frame := _frame(line)] == 1}
    new = {frame for line in after if (frame := _frame(line)) not in counts}
    zeros = {f: f.replace(BLANK, "0") for f in new if f.count(BLANK) == 1}
    return old | zeros


def _written(old: str | None, line: str) -> str:
    if old is None:
        return line
    pairs = zip(old.split(" "), line.split(" "), strict=True)
    return " ".join(
        f"+{int(new) - int(word)}"
        if word != new and _NUMBER.fullmatch(word) and _NUMBER.fullmatch(new)
        else new
        for word, new in pairs
    )


def _read(old: str | None, line: str) -> str:
    if old is None:
        return line
    pairs = zip(old.split(" "), line.split(" "), strict=True)
    return " ".join(
        str(int(word) + int(new[1:]))
        if _CHANGE.fullmatch(new) and _NUMBER.fullmatch(word)
        else new
        for word, new in pairs
    )


def _looks_like_a_change(line: str) -> bool:
    return any(_LIKE_A_CHANGE.fullmatch(w) for w in line.split(" "))


def _numbers(texts: Iterable[str]) -> set[str]:
    return {w for text in texts for w in re.findall(r"\d+", text)}
