"""Values in an agent's sight that may be wanted as arguments of a tool.

instruction, lines of the state -> values of a type, the likely ones first:
  values that the text calls like the argument (`order R7` for `order_id`),
  names and quoted texts of the instruction, then of the state,
  other words of the instruction, numbers, other words of the state,
  and words without content where there is nothing else
A name is a word with a digit, a sign such as _ . / @ inside, or a capital letter that
does not begin a line or a sentence.
"""

import itertools
import json
import random
import re
import types
import typing
from collections.abc import Collection, Iterable, Sequence
from decimal import Decimal
from typing import Any, Literal

_QUOTED = re.compile(
    r'"(?P<json>(?:[^"\\\n]|\\.)+)"(?P<key>\s*:)?'
    r"|(?<!\w)'(?P<plain>[^'\n]+)'(?!\w)"
)
"""Texts in quotes. One before a colon is a key of JSON, and no value."""
_WORD = re.compile(r"[^\W_][\w.:/@-]*[\w/]|[^\W_]")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\b\d{1,2}:\d\d(?::\d\d)?\b")
_NAME = re.compile(r".*[\d_.:/@-]|.+[A-Z]")
_SENTENCE_START = re.compile(r"(?:^|[.!?][\"')]*\s)[\s\"'(]*$")
_NAME_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
LABEL_DISTANCE = 2
"""How many words behind a label its value may stand; 1 is right behind it."""
LISTED = 6
"""The most likely values, of which lists have one or two."""
OTHERS = 3
"""Values besides those that are called like the argument, where there are any."""
_NO_LABELS = frozenset("id ids key name value text string number argument arg".split())
"""Parts of an argument's name that say nothing about which value is meant."""
_FUNCTION_WORDS = frozenset(
    "a about above after all an and any are as at be been before below but by can "
    "could did do does each every exactly for from had has have how i if in into is "
    "it its least least me more most must my no nor not nothing of off on or other "
    "our out over she he should so such than that the their them then there these "
    "they this those to under until up was we were what when where which while who "
    "whose will with would you your".split()
)


class Sight:
    """What an agent sees, as values for the arguments of tools."""

    def __init__(
        self,
        instruction: str,
        lines: Sequence[str] = (),
        *,
        unlikely: Collection[str] = (),
    ):
        """See the class; `unlikely` words, names of tools, count as without content."""
        self.text, self._lines = "\n".join((instruction, *lines)), lines
        self._unlikely = {word.lower() for word in unlikely} | _FUNCTION_WORDS
        self._names: list[str] = []
        self._numbers: list[str] = []
        words, state_words = self._sort(instruction), self._sort("\n".join(lines))
        ranked = [*self._names, *words, *self._numbers, *state_words]
        likely = [w for w in ranked if w.lower() not in self._unlikely]
        self._texts = tuple(dict.fromkeys(likely or ranked))

    def _sort(self, text: str) -> list[str]:
        """Add the names and the numbers of a text; return its other words."""
        words = []
        for match in _QUOTED.finditer(text):
            if not match["key"]:
                self._names.append(match["plain"] or _unescaped(match["json"]))
        for line in text.split("\n"):
            for match in _WORD.finditer(line):
                word = match[0]
                if _NUMBER.fullmatch(word):
                    self._numbers.append(word)
                elif _NAME.match(word) or (
                    word[0].isupper() and not _begins_sentence(line, match.start())
                ):
                    self._names.append(word)
                else:
                    words.append(word)
        return words

    def values(self, hint: Any, name: str = "") -> Iterable[Any]:
        """Return the values of a type, each once, the likely ones first.

        Those that stand behind a word of the argument's `name` come before all others.
        A list has one or two values of its items' type, texts where it has none. There
        are no values of objects.
        """
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin is Literal:
            return parts
        if origin in (typing.Union, types.UnionType):
            return itertools.chain(*(self.values(part, name) for part in parts))
        if hint is list or origin is list:
            (item,) = parts or (str,)
            likely = list(itertools.islice(self.values(item, name), LISTED))
            pairs = itertools.combinations(likely, 2)
            return [*([x] for x in likely), *map(list, pairs)]
        if hint is bool:
            return (False, True)
        if hint is str:
            labelled = [w for w in self._labelled(name) if w in self._texts]
            others = [w for w in self._texts if w not in labelled]
            few = others[:OTHERS] if labelled else others
            in_lines = [w for w in self._labelled_in_lines(name) if w in self._texts]
            return tuple(dict.fromkeys([*labelled, *in_lines, *few]))
        if hint in (int, float):
            labelled = [n for n in self._labelled(name) if _NUMBER.fullmatch(n)]
            text = _DATE.sub(" ", self.text)
            numbers = (*labelled, *_NUMBER.findall(text))
            if hint is float:
                return dict.fromkeys(map(float, numbers))
            # Not by way of a float, which has no room for long identifiers.
            whole = (Decimal(n) for n in numbers)
            return dict.fromkeys(int(n) for n in whole if n == n.to_integral_value())
        return (None,) if hint is type(None) else ()

    def _labelled(self, name: str) -> list[str]:
        """Return the words that stand right behind a word of an argument's name.

        Those next to it come first. Words without a digit are left out: they are mostly
        ordinary words.
        """
        labels = _labels(name)
        labelled: list[tuple[int, str]] = []
        for line in self.text.split("\n") if labels else ():
            words = [match[0] for match in _WORD.finditer(line)]
            for i, word in enumerate(words):
                if not any(c.isdigit() for c in word):
                    continue
                for distance in range(1, LABEL_DISTANCE + 1):
                    before = words[i - distance] if i >= distance else ""
                    if labels & {p.lower() for p in _NAME_PART.findall(before)}:
                        labelled.append((distance, word))
                        break
        return [word for _, word in sorted(labelled, key=lambda item: item[0])]

    def _labelled_in_lines(self, name: str) -> list[str]:
        """Return the words next to a word of an argument's name in lines of the state.

        There `topic printer` is a fact, where a sentence of the instruction says any
        word.
        """
        labels = _labels(name)
        out = []
        for line in self._lines if labels else ():
            words = [match[0] for match in _WORD.finditer(line)]
            for before, word in itertools.pairwise(words):
                if labels & {p.lower() for p in _NAME_PART.findall(before)}:
                    out.append(word)
        return out


def _labels(name: str) -> frozenset[str]:
    """Return the words of an argument's name that say which value is meant."""
    return frozenset(p.lower() for p in _NAME_PART.findall(name)) - _NO_LABELS


def _begins_sentence(line: str, start: int) -> bool:
    """Return whether a word at this place begins a line or a sentence."""
    return bool(_SENTENCE_START.search(line[:start]))


def _unescaped(text: str) -> str:
    """Return the text that stands so in JSON's quotes, or as it is."""
    try:
        return json.loads(f'"{text}"')
    except ValueError:
        return text


def fair_shares(
    lists: Sequence[Sequence[Any]], limit: int, draw: random.Random
) -> list[Any]:
    """Return at most `limit` items of lists that are ordered, the best items first.

    Each list has an equal share; what a short one leaves is for the longer ones. Half
    of a share is the beginning of its list, the rest is drawn from what follows.
    """
    sizes, left = dict[int, int](), limit
    by_length = sorted(range(len(lists)), key=lambda i: len(lists[i]))
    for position, i in enumerate(by_length):
        sizes[i] = min(len(lists[i]), left // (len(lists) - position))
        left -= sizes[i]
    chosen = []
    for i, items in enumerate(lists):
        first = sizes[i] if sizes[i] == len(items) else sizes[i] // 2
        chosen += items[:first]
        chosen += draw.sample(items[first:], sizes[i] - first)
    return chosen
