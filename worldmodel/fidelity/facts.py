"""Facts of a state that remain true after a step, and predictions that preserve them.

A transition that reveals something cannot be predicted word by word, but most of its
next state was known before: the lines that stay, and the words that stay within a line
that changes. A prediction must not lose these known facts.
"""

import difflib
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import State

MAX_PAIRS = 2500
"""Pairs of a removed and an added line that are compared, at most."""


class KnownFacts(NamedTuple):
    """What the next state takes over from the state.

    `lines` is the multiset of unchanged lines; each row of `fragments` holds, in order,
    the words that a changed line kept.
    """

    lines: Counter[str]
    fragments: tuple[tuple[str, ...], ...]


def known_facts(state: State, next_state: State) -> KnownFacts:
    """Return what of a state is still part of the next one.

    A changed line is compared with the most similar removed line, each used once; where
    there are more than MAX_PAIRS pairs of them, with the one in the same place.
    """
    lines = Counter(state) & Counter(next_state)
    removed = [x.split() for x in (Counter(state) - lines).elements()]
    added = [x.split() for x in (Counter(next_state) - lines).elements()]
    candidates = itertools.product(range(len(removed)), range(len(added)))
    if len(removed) * len(added) > MAX_PAIRS:  # a long table: line by line
        both = range(min(len(removed), len(added)))
        candidates = zip(both, both, strict=True)
    pairs = sorted(
        ((_similarity(removed[i], added[j]), i, j) for i, j in candidates),
        key=lambda p: (-p[0], p[1], p[2]),
    )
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

    It does if every unchanged line is in it, and every fragment is a subsequence of the
    words of one of the other lines, each used once.
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
