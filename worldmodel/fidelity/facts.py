"""Which facts of a state still hold after a step, and whether a prediction keeps them.

A transition that reveals something cannot be predicted word by word, but most of its
next state was known before: the lines that stay, and within a line that changes the
words that stay. These are the known facts, and a prediction must not lose them.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import State


class KnownFacts(NamedTuple):
    """What the next state takes over from the state.

    `lines` stand as they were, as a multiset; each row of `fragments` holds the words,
    in order, that a changed line kept.
    """

    lines: Counter[str]
    fragments: tuple[tuple[str, ...], ...]


def known_facts(state: State, next_state: State) -> KnownFacts:
    """Return what of a state still stands in the next one.

    A changed line is compared with the most similar line that went, each of these once.
    """
    lines = Counter(state) & Counter(next_state)
    removed = [x.split() for x in (Counter(state) - lines).elements()]
    added = [x.split() for x in (Counter(next_state) - lines).elements()]
    pairs = sorted(
        ((_similarity(old, new), i, j)
         for i, old in enumerate(removed) for j, new in enumerate(added)),
        key=lambda p: (-p[0], p[1], p[2]),
    )  # fmt: skip
    used_old, used_new = set[int](), set[int]()
    fragments = []
    for similarity, i, j in pairs:
        if similarity and i not in used_old and j not in used_new:
            used_old.add(i)
            used_new.add(j)
            fragments.append(tuple(_common(removed[i], added[j])))
    return KnownFacts(lines, tuple(fragments))


def preserves(facts: KnownFacts, predicted: State) -> bool:
    """Return whether a predicted next state holds all known facts.

    It does where every line that stays is there and every fragment is, word after word
    in its order, part of a line of its own among the others.
    """
    if facts.lines - Counter(predicted):
        return False
    others = [x.split() for x in (Counter(predicted) - facts.lines).elements()]
    for fragment in sorted(facts.fragments, key=len, reverse=True):
        match = next((x for x in others if _is_subsequence(fragment, x)), None)
        if match is None:
            return False
        others.remove(match)
    return True


def _matcher(old: Sequence[str], new: Sequence[str]) -> difflib.SequenceMatcher:
    return difflib.SequenceMatcher(a=old, b=new, autojunk=False)


def _similarity(old: Sequence[str], new: Sequence[str]) -> float:
    return _matcher(old, new).ratio()


def _common(old: Sequence[str], new: Sequence[str]) -> list[str]:
    blocks = _matcher(old, new).get_matching_blocks()
    return [word for b in blocks for word in new[b.b : b.b + b.size]]


def _is_subsequence(words: Sequence[str], line: Sequence[str]) -> bool:
    rest = iter(line)
    return all(word in rest for word in words)
