"""What stays: lines and words that no real transition of a family removes.

episodes -> lasting_facts -> the LastingFacts of each family -> contradiction(before,
after): what a dreamed step forgets, or None; with_lasting_facts(before, after): the
state in which that is put back. A map that the agent has seen is an
example: the words of its exits stay, while `unseen`, what lies in a room and where the
agent is do not. Nothing is declared. A small experience model that writes a line anew
may write another exit, and then a policy learns in a world that changes by itself.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from worldmodel.data.records import Episode, State
from worldmodel.text.identifiers import has_digit

MIN_STOOD = 20
"""Transitions in which a line or word must have stood before it is said to stay."""
MAX_NEW = 0.01
"""The probability that the next word that is deleted from lines of a kind is one that
never was, from which on nothing is said about their words."""
MAX_REFUTED = 0.002
"""The share of other transitions that may contradict what was seen of a kind."""
COMMON = 0.9
"""The share of a family's states with a line of a key from which on it is common."""
OTHER = ""
"""The kind of all lines whose keys are not common."""

Pair = tuple[State, State]
"""A state and the next one."""


class LastingFacts(NamedTuple):
    """What the transitions of a family never remove.

    The key of a line is its first word. Lines with a `common` key, which nearly all
    states have, are of a kind of their own: `said ok`. All others are of one kind,
    OTHER, because each of them is seen too seldom: `kitchen east pantry`. Lines of the
    `kinds` are never dropped, and `words` are the pairs (kind, word) that are never
    deleted.
    """

    common: frozenset[str]
    kinds: frozenset[str]
    words: frozenset[tuple[str, str]]

    def kind(self, key: str) -> str:
        """Return the kind of a line by its key."""
        return key if key in self.common else OTHER


class _Removed(NamedTuple):
    """Keys of which lines are gone, and (key, word) of words that lines have lost."""

    keys: set[str]
    words: set[tuple[str, str]]


def lasting_facts(episodes: Iterable[Episode]) -> dict[str, LastingFacts]:
    """Return what stays in each family's states, by the family's name.

    Each half of the transitions is checked against what the other half says of words:
    nothing is said about those of a kind of lines where more than MAX_REFUTED of the
    transitions contradict it. A kind of which one line was ever dropped may be dropped.
    """
    families: dict[str, list[Pair]] = {}
    for e in episodes:
        pairs = families.setdefault(e.task.family, [])
        pairs += [(t.state, t.next_state) for t in e.transitions]
    return {family: _checked_facts(pairs) for family, pairs in families.items()}


def contradiction(before: State, after: State, facts: LastingFacts) -> str | None:
    """Return what a step removes and no real one does, or None."""
    removed = _removed(before, after)
    for key in sorted(removed.keys):
        if facts.kind(key) in facts.kinds:
            return f"a line that begins with {key!r} is gone"
    for key, word in sorted(removed.words):
        if (facts.kind(key), word) in facts.words:
            return f"the line that begins with {key!r} has lost {word!r}"
    return None


def with_lasting_facts(before: State, after: State, facts: LastingFacts) -> State:
    """Return the next state with the lines and words that no real step removes.

    A line stands where it stood, behind the line that was before it. Words are put back
    where they were deleted, or alone replaced by others. Where more of a line is
    written anew, `kitchen near hall` as `kitchen west cellar`, the new words stay.
    """
    removed = _removed(before, after)
    dropped_keys = {k for k in removed.keys if facts.kind(k) in facts.kinds}
    changed_keys = {
        key
        for key, word in removed.words
        if (facts.kind(key), word) in facts.words and key not in dropped_keys
    }
    lines = list(after)
    for key in changed_keys:
        old, new = _unequal(before, after, key)
        if len(old) == len(new) == 1:
            words = _merged(old[0].split(), new[0].split(), facts)
            indent = new[0][: len(new[0]) - len(new[0].lstrip())]
            lines[lines.index(new[0])] = indent + " ".join(words)
    dropped = Counter(x for key in dropped_keys for x in _dropped(before, after, key))
    for i, line in enumerate(before):
        if dropped[line]:
            lines.insert(_place(before[:i], lines), line)
            dropped[line] -= 1
    return tuple(lines)


def _unequal(before: State, after: State, key: str) -> tuple[list[str], list[str]]:
    """Return the lines of a key that only the first, and only the second state has."""
    old, new = (Counter(x for x in s if _key(x) == key) for s in (before, after))
    return list((old - new).elements()), list((new - old).elements())


def _dropped(before: State, after: State, key: str) -> list[str]:
    """Return the lines of a key that are gone, without those that others replace.

    A new line replaces the old one with which it has most words in common.
    """
    missing, new = _unequal(before, after, key)
    for line in new:
        if missing:
            words = set(line.split())
            missing.remove(max(missing, key=lambda x: len(words & set(x.split()))))
    return missing


def _place(above: Sequence[str], lines: Sequence[str]) -> int:
    """Return where a line goes that had these lines above it: behind the next of them.

    That is the nearest one that still stands, or of which one with its key does.
    """
    keys = [_key(line) for line in lines]
    for line in reversed(above):
        if line in lines:
            return lines.index(line) + 1
        if _key(line) in keys:
            return keys.index(_key(line)) + 1
    return 0


def _merged(old: list[str], new: list[str], facts: LastingFacts) -> list[str]:
    """Return the new words of a line with the old ones that stay."""
    kind = facts.kind(old[0])
    stays = [(kind, word) in facts.words for word in old]
    out: list[str] = []
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        lasts = (tag == "delete" and any(stays[i1:i2])) or (
            tag == "replace" and all(stays[i1:i2])
        )
        out += old[i1:i2] if lasts else new[j1:j2]
    return out


def _key(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.strip() else ""


def _checked_facts(pairs: Sequence[Pair]) -> LastingFacts:
    facts, half = _facts(pairs), len(pairs) // 2
    refuted = set[str]()
    for seen, others in (
        (pairs[:half], pairs[half:]),
        (pairs[half:], pairs[:half]),
    ):
        claims = _facts(seen)._replace(common=facts.common)
        deletions = Counter[str]()
        for pair in others:
            words = {(claims.kind(k), w) for k, w in _removed(*pair).words}
            deletions.update({kind for kind, _ in words & claims.words})
        limit = MAX_REFUTED * len(others)
        refuted |= {kind for kind, n in deletions.items() if n > limit}
    words = frozenset(pair for pair in facts.words if pair[0] not in refuted)
    return facts._replace(words=words)


def _facts(pairs: Sequence[Pair]) -> LastingFacts:
    stood = Counter(key for before, _ in pairs for key in _lines(before))
    common = frozenset(k for k, n in stood.items() if n >= COMMON * len(pairs))
    facts = LastingFacts(common, frozenset(), frozenset())
    kinds, words = Counter[str](), Counter[tuple[str, str]]()
    dropped, deleted = set[str](), Counter[tuple[str, str]]()
    for before, after in pairs:
        lines = _lines(before)
        kinds.update({facts.kind(key) for key in lines})
        words.update(
            {(facts.kind(key), w) for key, (_, counts) in lines.items() for w in counts}
        )
        removed = _removed(before, after)
        dropped |= {facts.kind(key) for key in removed.keys}
        deleted.update({(facts.kind(key), word) for key, word in removed.words})
    closed = {kind for kind in kinds if _new_word(kind, deleted) <= MAX_NEW}
    return facts._replace(
        kinds=frozenset(k for k, n in kinds.items() if n >= MIN_STOOD) - dropped,
        # Numbers are values, which change.
        words=frozenset(
            pair
            for pair, n in words.items()
            if n >= MIN_STOOD and pair[0] in closed and not has_digit(pair[1])
        )
        - deleted.keys(),
    )


def _new_word(kind: str, deleted: Mapping[tuple[str, str], int]) -> float:
    """Return the probability that the next word deleted was never deleted before.

    Good and Turing's estimate: the share of the deletions that are of words deleted
    once.
    """
    counts = [n for (of, _), n in deleted.items() if of == kind]
    return counts.count(1) / sum(counts) if counts else 0.0


def _removed(before: State, after: State) -> _Removed:
    """Return the keys of which a state has fewer lines afterwards, and lost words."""
    lines, lines_after = _lines(before), _lines(after)
    removed = _Removed(set(), set())
    for key, (number, words) in lines.items():
        number_after, words_after = lines_after.get(key, (0, Counter()))
        if number_after < number:
            removed.keys.add(key)
        removed.words.update((key, word) for word in words - words_after)
    return removed


def _lines(state: State) -> dict[str, tuple[int, Counter[str]]]:
    """Return the number of lines and the counts of their words, by key."""
    out: dict[str, tuple[int, Counter[str]]] = {}
    for line in state:
        key, *words = line.split() or [""]
        number, counts = out.get(key, (0, Counter()))
        out[key] = number + 1, counts + Counter(words)
    return out
