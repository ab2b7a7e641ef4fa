"""Numbers of a next state, written as what they change by: `ice +4`, `cash $+-2.50`.

state, next state -> the same next state with changes -> read back by the state

In an inventory or a counter a number changes by what the action names, or by one. Then
the change can be copied where the number itself has to be computed, which a small model
learns digit by digit, if at all, from thousands of sums. Whether changes or numbers are
easier is a question to the recorded episodes, for each kind of lines (`change_rule`):
`tries left 7` changes by one, and in `flipped 4` the action says the number. Another
word of the line may change along with its number: after `core temperature 310 rising`,
`core temperature 340 critical` is `core temperature +30 critical`.

Numbers may have decimals and signs around them, as in `$4`, `12,50 €`, `7/20` and
`"count": 3,`. Digits of a code (`A7`), a time, a date, a pair (`3,4`) or a thousand
with a comma are none.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from decimal import Decimal
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition
from worldmodel.text.novelty import PRICE

MIN_CHANGES, MIN_SHARE = 20, 0.05
"""Changed numbers of recorded transitions, and their share of the transitions, below
which they stay as they are. A kind of lines with fewer is decided with others."""
MIN_ADVANTAGE = 0.2
"""By how much more of the changes than of the numbers must be at hand."""
BLANK = "\0"
_DIGITS = rf"(?:{PRICE}|\d{{1,9}}(?:\.\d{{1,4}})?)"
_ANY = re.compile(
    rf"(?:(?<![\w.,+-])(?<!\d:)(?<!\d/)-?|(?<![^\s:$€£¥])\+-?){_DIGITS}"
    r"(?![\w+-]|[.,:]\d|/\d+/)"
)
"""A number between spaces or signs, or a change of one."""
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,8})(?:[.,]\d{1,4})?")
_LIKE_A_CHANGE = re.compile(r"(?<![^\s:$€£¥])\+(?:-?\d|-)")


class ChangeRule(NamedTuple):
    """The kinds of lines whose numbers are written as changes.

    They are all, where that is `usual`, or none, but for the `exceptions`. A kind is a
    line with BLANK in the place of its numbers. With `by_opening` a line of a new kind
    may change the one line of a kind that is gone (_pairs); rules of earlier versions
    do not have it.
    """

    usual: bool
    exceptions: frozenset[str] = frozenset()
    by_opening: bool = False

    def covers(self, kind: str) -> bool:
        """Return whether lines of this kind have changes."""
        return self.usual != (kind in self.exceptions)


ALL_LINES = ChangeRule(usual=True)
"""The rule by which every line has changes that can be read back, of its own kind."""


def write_changes(before: State, after: State, rule: ChangeRule = ALL_LINES) -> State:
    """Return the next state with its changed numbers as changes, as the rule says.

    A line has changes where exactly one line of the state before has the same words,
    numbers aside, and other numbers, or, where the rule says so, the same words before
    its first number. Where none has, and it has one number, that is a change from 0, so
    that a model need not look whether the thing is there already. A next state that
    could not be read back stays as it is, as one does that holds words such as `+4` of
    its own.
    """
    old = _old_numbers(before, after, rule)
    out = tuple(
        _written(old.get(kind), line)
        if line not in before and rule.covers(kind := _kind(line))
        else line
        for line in after
    )
    return out if read_changes(before, out, rule) == after else after


def read_changes(before: State, after: State, rule: ChangeRule = ALL_LINES) -> State:
    """Return the next state with its changes, written by this rule, as numbers.

    A change is of 0 where no line of the state before has its words. One that could be
    of several lines stays as it is (`unread_changes`), as does a line of the state
    before. All kinds of lines are read, also those that the rule does not cover.
    """
    old = _old_numbers(before, after, rule)
    return tuple(
        line if line in before else _read(old.get(_kind(line)), line) for line in after
    )


def drop_changes(text: str) -> str:
    """Return the text without its changes of numbers, such as `+4`."""
    return _ANY.sub(lambda match: match[0] if _size(match[0]) is None else "", text)


def unread_changes(before: State, after: State) -> list[str]:
    """Return the new lines in which a word looks like a change, such as `+4`."""
    return [x for x in after if x not in before and _looks_like_a_change(x)]


class _AtHand(NamedTuple):
    """Of `count` changed numbers, how many a query holds, as numbers or as changes.

    They are held by its action, or anywhere in it.
    """

    count: int = 0
    numbers: int = 0
    changes: int = 0
    numbers_in_action: int = 0
    changes_in_action: int = 0

    @property
    def prefers_changes(self) -> bool:
        """Whether changes are easier, by the action if that decides."""
        return self._advantage >= self._least_advantage

    @property
    def prefers_numbers(self) -> bool:
        """Whether numbers are easier. Where they are as easy, neither is preferred."""
        return self._advantage <= -self._least_advantage

    @property
    def _advantage(self) -> int:
        """How many more are at hand as changes than as numbers.

        Only in the action if that decides: a state with many small numbers holds nearly
        every number and every change.
        """
        in_action = self.changes_in_action - self.numbers_in_action
        if abs(in_action) >= self._least_advantage:
            return in_action
        return self.changes - self.numbers

    @property
    def _least_advantage(self) -> float:
        return MIN_ADVANTAGE * max(self.count, 1)


class _ChangedNumber(NamedTuple):
    """A changed number of a kind of lines, which may be `paired` with another one."""

    kind: str
    paired: bool
    at_hand: _AtHand


def _sum(parts: Iterable[_AtHand]) -> _AtHand:
    columns = zip(*parts, strict=True)
    return _AtHand(*map(sum, columns))


class _NumberIndex:
    """The numbers that action, task and state hold, of the state by kind of lines."""

    def __init__(self, in_texts: set[Decimal], state: State):
        self._in_texts = in_texts
        self._kinds_with: dict[Decimal, set[str]] = {}
        self.kinds = set(map(_kind, state))
        for line in state:
            for number in _values([line]):
                self._kinds_with.setdefault(number, set()).add(_kind(line))

    def has(self, number: Decimal, kinds: Set[str]) -> bool:
        """Return whether a number is in action, task, or a line of no such kind."""
        others = self._kinds_with.get(number, set()) - kinds
        return number in self._in_texts or bool(others)


def change_rule(episodes: Iterable[Episode]) -> ChangeRule | None:
    """Return in which lines a model should write changes, by its training episodes.

    Of the numbers that changed it counts how many stand in the action, and of how many
    the change does; changes by 1 count where the action has a 1, since counters have
    them whatever the action says. Where that does not decide, it counts those that
    stand in the action, the task or the state, and all changes by 1. Kinds of lines
    with fewer than MIN_CHANGES of them are decided together; if they have fewer
    together, all kinds decide. No line that changes may hold a word such as `+4`
    itself. None where no line should have changes.

    Lines of another kind are compared `by_opening` unless their numbers are more often
    at hand than their changes, as where `holding 3 apples` is followed by `holding 5
    pears`: that is another thing, of which the action says how many.
    """
    changed, steps = list[_ChangedNumber](), 0
    for e in episodes:
        steps += len(e.transitions)
        for t in e.transitions:
            if unread_changes(t.state, t.next_state):
                return None
            changed += _changed_numbers(t, e.task.instruction)
    pairs = _sum(x.at_hand for x in changed if x.paired)
    by_opening = pairs.count > 0 and not pairs.prefers_numbers
    by_kind: dict[str, list[_AtHand]] = {}
    for x in changed:
        if by_opening or not x.paired:
            by_kind.setdefault(x.kind, []).append(x.at_hand)
    sums = {kind: _sum(parts) for kind, parts in by_kind.items()}
    everything = _sum(sums.values())
    rare = _sum(x for x in sums.values() if x.count < MIN_CHANGES)
    if everything.count < max(MIN_CHANGES, MIN_SHARE * steps):
        return None
    usual = (rare if rare.count >= MIN_CHANGES else everything).prefers_changes
    exceptions = frozenset(
        kind
        for kind, x in sums.items()
        if x.count >= MIN_CHANGES and x.prefers_changes != usual
    )
    if not (usual or exceptions):
        return None
    return ChangeRule(usual, exceptions, by_opening)


def _changed_numbers(t: Transition, instruction: str) -> Iterator[_ChangedNumber]:
    """Yield the numbers of a next state that change one of the state before."""
    after = write_changes(t.state, t.next_state, ALL_LINES._replace(by_opening=True))
    if after == t.next_state:
        return
    in_action = _values([t.action])
    numbers = _NumberIndex(in_action | _values([instruction]), t.state)
    pairs = _pairs(t.state, t.next_state)
    for line, new in zip(t.next_state, after, strict=True):
        kind = _kind(line)
        if line == new or not (kind in numbers.kinds or kind in pairs):
            continue
        kinds = {kind, _kind(pairs.get(kind, line))}
        words = zip(_ANY.findall(line), _ANY.findall(new), strict=True)
        for number, change in words:
            if number == change:
                continue
            value, size = abs(_value(number)), abs(_value(change[1:]))
            # A counter changes by 1 whatever numbers its action has.
            decides = size != 1 or 1 in in_action
            at_hand = _AtHand(
                count=1,
                numbers=numbers.has(value, kinds),
                changes=size == 1 or numbers.has(size, kinds),
                numbers_in_action=decides and value in in_action,
                changes_in_action=decides and size in in_action,
            )
            yield _ChangedNumber(kind, kind in pairs, at_hand)


def with_changes(
    episodes: Sequence[Episode], rule: ChangeRule = ALL_LINES
) -> list[Episode]:
    """Return the episodes with changes in their next states, for fits and counts.

    Their states no longer chain.
    """
    return [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(
                    t, next_state=write_changes(t.state, t.next_state, rule)
                )
                for t in e.transitions
            ),
        )
        for e in episodes
    ]


def _kind(line: str) -> str:
    """Return the line with BLANK in the place of each number or change."""
    return _ANY.sub(BLANK, line)


def _old_numbers(before: State, after: State, rule: ChangeRule) -> dict[str, State]:
    """Return what numbers the lines of the next state change, by their kind.

    Those of the line of the state before that is the only one of its kind; of a kind
    that is new those of the line it is paired with, if the rule pairs them (_pairs), or
    else 0 if it has one number. A number that changes none there is has "".
    """
    counts = Counter(map(_kind, before))
    old = {
        kind: tuple(_ANY.findall(line))
        for line in before
        if counts[kind := _kind(line)] == 1
    }
    new = {kind for line in after if (kind := _kind(line)) not in counts}
    zeros = {kind: ("0",) for kind in new if kind.count(BLANK) == 1}
    pairs = _pairs(before, after) if rule.by_opening else {}
    return old | zeros | {k: _shared_numbers(line, k) for k, line in pairs.items()}


def _pairs(before: State, after: State) -> dict[str, str]:
    """Return the lines of the state before that new kinds of lines stand for.

    Their own kind is gone, and they are the only such line with this opening, the words
    before the first number, as the other is the only new one. Lines that begin with a
    number or a sign have none: in a list the number says which of them it is.
    """
    missing, new = _by_opening(before, after), _by_opening(after, before)
    return {
        _kind(lines[0]): missing[opening][0]
        for opening, lines in new.items()
        if len(lines) == 1 and len(missing.get(opening, ())) == 1
    }


def _by_opening(state: State, other: State) -> dict[str, list[str]]:
    """Return the lines of kinds that another state does not have, by their opening."""
    kinds, out = set(map(_kind, other)), dict[str, list[str]]()
    for line in state:
        opening, blank, _ = (kind := _kind(line)).partition(BLANK)
        if blank and kind not in kinds and any(map(str.isalpha, opening)):
            out.setdefault(opening, []).append(line)
    return out


def _shared_numbers(line: str, kind: str) -> State:
    """Return the numbers of a line; "" for those behind other words than in the kind.

    Of `tank 5 of 10 full` and `tank 6 with 2 leaks` the second numbers have nothing to
    do with each other.
    """
    words = ([x.split()[-1:] for x in k.split(BLANK)] for k in (_kind(line), kind))
    return tuple(
        number if old == new else ""
        for number, old, new in zip(_ANY.findall(line), *words, strict=False)
    )


def _written(old: State | None, line: str) -> str:
    """Return a line with its numbers as changes of the old ones, if there are any."""
    if old is None:
        return line
    numbers = iter(old)

    def change(match: re.Match[str]) -> str:
        before, after = next(numbers, ""), match[0]
        if not (_NUMBER.fullmatch(before) and _NUMBER.fullmatch(after)):
            return after
        size = _value(after) - _value(before)
        # An action that adds 1 to `12.50` says no `1.00`.
        spelled = re.sub(r"\.0+$", "", _spell(size, before, after))
        return f"+{spelled}" if size else after

    written = _ANY.sub(change, line)
    # `11.75` to `12.0` would be read as `12.00`.
    return written if _read(old, written) == line else line


def _read(old: State | None, line: str) -> str:
    """Return a line with its changes of the old numbers as numbers."""
    if old is None:
        return line
    numbers = iter(old)

    def number(match: re.Match[str]) -> str:
        before, size = next(numbers, ""), _size(match[0])
        if size is None or not _NUMBER.fullmatch(before):
            return match[0]
        return _spell(_value(before) + size, before, match[0])

    return _ANY.sub(number, line)


def _size(word: str) -> Decimal | None:
    """Return by how much a number changes; None where the word is no change."""
    is_change = word.startswith("+") and _NUMBER.fullmatch(word[1:])
    return (_value(word[1:]) or None) if is_change else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", "."))


def _spell(value: Decimal, *texts: str) -> str:
    """Return the number with the most decimals of the texts, and their separator."""
    decimals = max(len(re.split("[.,]", f"{text}.")[1]) for text in texts)
    spelled = f"{value:.{decimals}f}"
    return spelled.replace(".", ",") if any("," in x for x in texts) else spelled


def _looks_like_a_change(line: str) -> bool:
    return _LIKE_A_CHANGE.search(line) is not None


def _values(texts: Iterable[str]) -> set[Decimal]:
    """Return the numbers in texts; of `12,50` also 12 and 50, which may be apart."""
    patterns = (r"\d+", r"\d+[.,]\d+")
    return {_value(w) for x in texts for p in patterns for w in re.findall(p, x)}
