"""Identifiers and numbers of texts: the words that have to be copied, not remembered.

episodes -> the share of a family's tasks that hold each word -> the words that name one
thing of one task. Such a word cannot be learnt by heart; whoever writes it must have
read it in the context.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from worldmodel.data.json_reading import RecordError
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode
from worldmodel.text.novelty import LETTERS, PRICE, novel_words
from worldmodel.text.writing.number_changes import ALL_LINES, ChangeRule

MAX_SHARE = 0.05
"""A word in a smaller share of its family's tasks is an identifier."""
MAX_NAME_SHARE = 0.5
"""The same for a word that is spelled like a name: with a digit or a capital letter."""

MAX_COMPUTED = 0.5
"""The share of new numbers, and of winning actions with a number that stood nowhere
before, above which a family computes with numbers."""
MAX_REWARDS = 4
"""Rewards of more values than these are probably computed from numbers."""
COMMON_SHARE = 0.3
"""A word in at least this share of a family's tasks belongs to its vocabulary."""
COMMON_TASKS = 10
"""Tasks of a family below which nothing is known of its vocabulary."""
LONGEST_CACHED = 256
"""Letters of the texts whose words are remembered, at most."""
REFERENCE_FILE = "references.json"
"""The file of a model directory that holds its rule of references."""

Shares = Mapping[str, Mapping[str, float]]
"""The share of tasks that hold each word, by family."""

_WORD = re.compile(rf"\d+(?:[.:]\d+)+|{PRICE}|{LETTERS}")
_NUMBER = re.compile(r"\d+(?:[.:]\d+)*|\d+,\d\d")


class ReferenceRule(NamedTuple):
    """Which words of a context have references, and which have markers (references.py).

    Where data hold `identifiers`, all words have references but the known `words`, and
    numbers only with `numbers`. Words of an instruction outside its `template` are its
    arguments, which have markers; there are none where it is None. The same holds for
    words of an action outside `action_template`, and for the lines that hold them.
    `changes`: in which lines of next states numbers are written as changes
    (writing/number_changes.py); None: in no line. `columns`: the words of grids that
    are read with their columns (writing/columns.py).
    """

    words: frozenset[str]
    numbers: bool
    identifiers: bool = True
    template: frozenset[str] | None = None
    action_template: frozenset[str] | None = None
    changes: ChangeRule | None = None
    columns: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: bytes | str) -> "ReferenceRule":
        """Return the rule of a file; raise RecordError if the text is no such rule.

        Files without a template have no markers.
        """
        try:
            raw = json.loads(text)
            templates = [raw.get(name) for name in ("template", "action_template")]
            return cls(
                _word_set(raw["words"]),
                bool(raw["numbers"]),
                bool(raw.get("identifiers", True)),
                *(None if words is None else _word_set(words) for words in templates),
                changes=_change_rule(raw.get("changes")),
                columns=_word_set(raw.get("columns", [])),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise RecordError(
                f"{REFERENCE_FILE}: expected words and numbers of a rule of references "
                f"({type(error).__name__}: {error})"
            ) from error

    def json(self) -> str:
        """Return the rule as text that `parse` reads."""
        names = ("words", "template", "action_template", "columns")
        sets = {name: getattr(self, name) for name in names}
        lists = {k: None if v is None else sorted(v) for k, v in sets.items()}
        changes = None
        if self.changes is not None:
            exceptions = sorted(self.changes.exceptions)
            changes = {**self.changes._asdict(), "exceptions": exceptions}
        return json.dumps({**self._asdict(), **lists, "changes": changes})


def _change_rule(value: Any) -> ChangeRule | None:
    """Return the rule of changes in a file; earlier files say less."""
    if isinstance(value, dict):
        exceptions, by_opening = value["exceptions"], value.get("by_opening", False)
        return ChangeRule(bool(value["usual"]), _word_set(exceptions), bool(by_opening))
    return ALL_LINES if value else None


def _word_set(value: Any) -> frozenset[str]:
    """Return a list of words as a set; raise a TypeError where it is none."""
    if not isinstance(value, list) or not all(isinstance(w, str) for w in value):
        raise TypeError(f"expected a list of texts, got {value!r:.40}")
    return frozenset(value)


def words(text: str) -> list[str]:
    """Return the words of a text in order, as they are spelled, without punctuation.

    `7:00`, `3.5` and the `12,50` of a price are one word each.
    """
    return [match[0] for match in matches(text)]


def matches(text: str) -> Iterable[re.Match[str]]:
    """Return the matches of the words of a text, in order."""
    if len(text) > LONGEST_CACHED:
        return _WORD.finditer(text)
    return _cached_matches(text)


@functools.lru_cache(maxsize=1 << 13)  # lines of states and actions recur all the time
def _cached_matches(text: str) -> tuple[re.Match[str], ...]:
    return tuple(_WORD.finditer(text))


def replace_words(text: str, new_word: Callable[[str], str]) -> str:
    """Return the text with `new_word(word)` in the place of each of its words."""
    return _WORD.sub(lambda match: new_word(match[0]), text)


def is_number(word: str) -> bool:
    """Return whether the word is a number, or a time such as `7:00`."""
    return _NUMBER.fullmatch(word) is not None


def value(number: str) -> tuple[float, str]:
    """Return what numbers are sorted by: `7:30` is 7.5, and `3.25` is less than 3.5.

    Other spellings of one value, such as `7` and `07`, are sorted by their text.
    """
    whole, *rest = number.replace(",", ".").split(":")
    parts = [float(".".join(p.split(".")[:2])) for p in (whole, *rest)]
    return sum(part * 60.0**-i for i, part in enumerate(parts)), number


def has_digit(word: str) -> bool:
    """Return whether the word is a number or holds one, as `T25` does."""
    return any(c.isdigit() for c in word)


def is_identifier(word: str, share: float) -> bool:
    """Return whether a word that this share of tasks holds names one thing of a task.

    A task's instruction and lines also hold the words of the family's form, which most
    tasks have; a capital letter alone does not make a name of `Answer`.
    """
    like_a_name = has_digit(word) or word[0].isupper()
    return share < (MAX_NAME_SHARE if like_a_name else MAX_SHARE)


def texts(episode: Episode) -> Iterator[str]:
    """Yield the texts of an episode, without thoughts and reasoning traces."""
    yield episode.task.instruction
    yield from episode.task.initial_state
    for t in episode.transitions:
        yield from (*t.state, t.action, *t.next_state)


def task_shares(episodes: Iterable[Episode]) -> dict[str, dict[str, float]]:
    """Return the share of each family's tasks whose episodes hold each word."""
    tasks: dict[str, dict[str, set[str]]] = {}
    for e in episodes:
        family = tasks.setdefault(e.task.family, {})
        task_words = {w for text in texts(e) for w in words(text)}
        family.setdefault(e.task.id, set()).update(task_words)
    return {
        name: {
            word: count / len(family)
            for word, count in Counter(w for x in family.values() for w in x).items()
        }
        for name, family in tasks.items()
    }


def common_words(episodes: Sequence[Episode]) -> dict[str, str]:
    """Return the words that many tasks of a family hold, by family, as one line.

    Such a word (`right`, `wrong`, `taken`) tells nothing new where an episode shows it
    for the first time. Words with digits are values and no vocabulary.
    """
    tasks: dict[str, set[str]] = {}
    for e in episodes:
        tasks.setdefault(e.task.family, set()).add(e.task.id)
    return {
        family: " ".join(
            sorted(w for w, s in shares.items() if s >= COMMON_SHARE and w.isalpha())
        )
        for family, shares in task_shares(episodes).items()
        if len(tasks[family]) >= COMMON_TASKS
    }


def computes_numbers(episodes: Sequence[Episode]) -> bool:
    """Return whether numbers of these episodes are computed rather than copied.

    They are where rewards have many values, where most winning actions with a number
    hold one that stood nowhere before, or where most numbers that appear in a next
    state are a sum or difference of two that state and action hold, as in a counter.
    """
    # By digits and not by decimals, so that a unit of another size changes nothing.
    rewards = {f"{t.reward:.6g}" for e in episodes for t in e.transitions}
    answers, results = Rate(), Rate()
    for e in episodes:
        history = [e.task.instruction, *e.task.initial_state]
        for t in e.transitions:
            history += t.state
            if t.success and (numbers := _numbers([t.action])):
                answers.add(not numbers <= _numbers(history))
            new = _numbers(t.next_state) - _numbers([*history, t.action])
            if new:
                novel = novel_words(t.state, t.action, "", t.next_state, history)
                results.add(not new & novel)
    return (
        len(rewards) > MAX_REWARDS
        or answers.hits > MAX_COMPUTED * answers.count
        or results.hits > MAX_COMPUTED * results.count
    )


def _numbers(texts: Iterable[str]) -> set[str]:
    """Return the whole numbers in texts."""
    return {w for text in texts for w in words(text) if w.isdecimal()}


def copied(
    sources: Iterable[str],
    real: Iterable[str],
    written: Iterable[str],
    shares: Mapping[str, float],
) -> tuple[Counter[str], Counter[str]]:
    """Return the identifiers of `real` to be copied, and those that `written` has.

    To be copied are numbers and identifiers that stand in `sources`. Both results are
    multisets, the second a part of the first. Order is not compared: that is what
    exactness is for.
    """
    source_words = {w for text in sources for w in words(text)}
    wanted = Counter(
        w
        for text in real
        for w in words(text)
        if w in source_words and (has_digit(w) or is_identifier(w, shares.get(w, 0.0)))
    )
    return wanted, wanted & Counter(w for text in written for w in words(text))
