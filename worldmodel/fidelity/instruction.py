"""Do reveals show what the task's instruction says, where it says so?

A transition that reveals something excuses what is new in its next state, but a part of
that may follow from the instruction: who is to bring the coin from the studio finds it
there and nowhere else. A dream that ignores the instruction shows it anywhere.

reveals of all episodes -> for each word of the instruction that was not in sight: is it
in the new part, and which words of the task's own are named there -> words whose
presence depends on that -> cases of which half show such a word -> the agreement of the
dream with them.

That the coin lies where it is brought `from` is not known to this module. It looks for
such dependences in the real episodes, by neighbours: of the rooms that stand after `at`
in a new part, those that stand after `from` in the instruction hold the coin, the
others do not. Every word of an instruction is tried with all such neighbours, and only
a dependence far beyond chance counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State
from worldmodel.experience.base import ExperienceModel, Query, content_seed
from worldmodel.fidelity.cases import reveals
from worldmodel.text.novelty import words_of

MAX_TASK_SHARE = 0.5
"""A word in a smaller share of a family's instructions is of the task's own."""
MIN_CASES = 5
"""Reveals of either kind below which no dependence is looked for."""
MIN_CONTRAST = 0.75
"""The difference in presence between both kinds from which on a word depends on it."""
MIN_DEVIATIONS = 5.0
"""By how many standard deviations the difference must be above 0: many are tried."""

Group = tuple[str, str]
"""A family and a word; "" stands for all words of the tasks' own."""


class Mention(NamedTuple):
    """A reveal and a word of its instruction that neither state nor action holds.

    `present` is whether the new part of the real next state holds the word. `slots` are
    the places of other words in the action and the new part, by their neighbour there:
    the neighbours that the words in them have in the instruction. Only words in sight
    that are of the task's own have any.
    """

    query: Query
    word: str
    group: Group
    present: bool
    slots: Mapping[str, set[str]]


class Dependence(NamedTuple):
    """A neighbour in the new part, and one in the instruction.

    The words of a group are present where a word has both, and absent where the slot
    holds another word.
    """

    slot: str
    neighbor: str

    def expects(self, row: Mention) -> bool | None:
        """Return whether the word is to be present; None where the slot is missing."""
        words = row.slots.get(self.slot)
        return None if words is None else self.neighbor in words


def new_lines(state: State, next_state: State) -> list[list[str]]:
    """Return the words of each line that the state does not have."""
    added = Counter(next_state) - Counter(state)
    return [words_of(line) for line in added]


def shows(word: str, state: State, next_state: State) -> bool:
    """Return whether a line that the state does not have holds a word."""
    return any(word in line for line in new_lines(state, next_state))


def mentions(episodes: Sequence[Episode]) -> list[Mention]:
    """Return every reveal with every word of its instruction that was not in sight."""
    own, out = _own_words(episodes), []
    for query, t, *_ in reveals(episodes):
        family, instruction = query.task.family, words_of(query.task.instruction)
        action, new = words_of(query.action), new_lines(t.state, t.next_state)
        sight = {w for line in t.state for w in words_of(line)} | set(action)
        slots_of_words: dict[str, set[str]] = {}
        for word, neighbor, side in _neighbors([instruction]):
            if word in own[family] & sight:
                slots_of_words.setdefault(word, set()).add(side.format(neighbor))
        neighbors = list(_neighbors([action, *new]))
        for word in dict.fromkeys(instruction):
            if word in sight:
                continue
            slots: dict[str, set[str]] = {}
            for other, neighbor, side in neighbors:
                if word not in (other, neighbor):
                    slot = slots.setdefault(side.format(neighbor), set())
                    slot |= slots_of_words.get(other, set())
            group = family, "" if word in own[family] else word
            present = any(word in line for line in new)
            out.append(Mention(query, word, group, present, slots))
    return out


def _neighbors(lines: Iterable[Sequence[str]]) -> Iterator[tuple[str, str, str]]:
    """Yield (word, neighbour, form of the slot) for both neighbours of each word."""
    for line in lines:
        padded = ["", *line, ""]
        for before, word, after in zip(padded, padded[1:], padded[2:], strict=False):
            yield word, before, "{} _"
            yield word, after, "_ {}"


def _own_words(episodes: Iterable[Episode]) -> dict[str, set[str]]:
    """Return the words of instructions that few tasks of a family share."""
    tasks: dict[str, dict[str, set[str]]] = {}
    for e in episodes:
        family = tasks.setdefault(e.task.family, {})
        family.setdefault(e.task.id, set(words_of(e.task.instruction)))
    return {
        name: {
            word
            for word, count in Counter(w for x in family.values() for w in x).items()
            if count < MAX_TASK_SHARE * len(family)
        }
        for name, family in tasks.items()
    }


def dependences(rows: Iterable[Mention]) -> dict[Group, Dependence]:
    """Return the clearest dependence of each group that has one."""
    groups: dict[Group, list[Mention]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    clearest = {group: _dependence(members) for group, members in groups.items()}
    return {group: d for group, d in clearest.items() if d is not None}


def _dependence(rows: Sequence[Mention]) -> Dependence | None:
    """Return the dependence that is farthest from chance, if any is far enough."""
    slots: dict[str, list[Mention]] = {}
    for row in rows:
        for slot in row.slots:
            slots.setdefault(slot, []).append(row)
    best: tuple[float, Dependence] | None = None
    for slot, members in sorted(slots.items()):
        for neighbor in sorted({n for row in members for n in row.slots[slot]}):
            dependence = Dependence(slot, neighbor)
            deviations = _deviations(dependence, members)
            if deviations >= MIN_DEVIATIONS and (best is None or deviations > best[0]):
                best = deviations, dependence
    return None if best is None else best[1]


def _deviations(dependence: Dependence, rows: Sequence[Mention]) -> float:
    """Return by how many standard deviations presence is larger where it is expected.

    0 where there are too few cases, or the difference is small.
    """
    expected = [row.present for row in rows if dependence.expects(row)]
    others = [row.present for row in rows if dependence.expects(row) is False]
    if min(len(expected), len(others)) < MIN_CASES:
        return 0.0
    contrast = sum(expected) / len(expected) - sum(others) / len(others)
    if contrast < MIN_CONTRAST:
        return 0.0
    share = (sum(expected) + sum(others)) / len(rows)
    variance = share * (1 - share) * (1 / len(expected) + 1 / len(others))
    return contrast / variance**0.5 if variance else float("inf")


def instruction_agreement(
    model: ExperienceModel, episodes: Sequence[Episode], *, limit: int
) -> dict[str, Any]:
    """Return how well reveals of the dream show what the instruction says.

    Asked are reveals in which a word is present or absent as its dependence says, at
    most `limit`, half of them with the word. `shown` is the share of the words present
    that the dream shows, `elsewhere` the share of those absent that it shows, `agree`
    their balanced accuracy: half of (shown + 1 - elsewhere), 0.5 for a dream that
    ignores the instruction. An answer with an error agrees with nothing. `words` are
    those words; all is empty where no word depends on the instruction.
    """
    rows = mentions(episodes)
    sides = _sides(rows, dependences(rows), max(limit // 2, 1))
    queried_rows = [row for side in sides.values() for row in side]
    answers = model.predict([row.query for row in queried_rows]) if queried_rows else []
    agree, rates = Rate(), {True: Rate(), False: Rate()}
    for row, answer in zip(queried_rows, answers, strict=True):
        valid = answer.error is None
        predicted = shows(row.word, row.query.state, answer.next_state)
        # Both sides weigh the same: each case as many as the other side has.
        weight = float(len(sides[not row.present]))
        agree.add(valid and predicted == row.present, weight)
        rates[row.present].add(valid and predicted)
    return {
        "agree": agree.json(),
        "shown": rates[True].json(),
        "elsewhere": rates[False].json(),
        "words": sorted({row.word for row in sides[True]}),
    }


def _sides(
    rows: Sequence[Mention], by_group: Mapping[Group, Dependence], limit: int
) -> dict[bool, list[Mention]]:
    """Return at most `limit` mentions with the word and without; none if one lacks."""
    clear = [
        row
        for row in rows
        if row.group in by_group and by_group[row.group].expects(row) == row.present
    ]
    clear.sort(
        key=lambda r: content_seed("mention", r.query.task.id, *r.query[1:4], r.word)
    )
    sides = {x: [r for r in clear if r.present == x][:limit] for x in (True, False)}
    return sides if all(sides.values()) else {True: [], False: []}
