"""Words of a next state that occurred nowhere before."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from fractions import Fraction

from worldmodel.data.records import State, Transition

PRICE = r"\d+,\d\d(?=\s?(?:[€£$¥]|EUR|CHF|USD))"
"""A price with a comma, which elsewhere parts the numbers of a pair: `12,50 €`."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
"""Characters of writing without spaces (Thai, Lao, Burmese, Khmer, Chinese, Japanese):
each is a word of its own, with the marks that follow it."""


def _marks() -> str:
    """Return the combining marks, as vowel signs and accents, of a character class."""
    codes = range(0x300, 0x3100)
    marks = [c for c in map(chr, codes) if unicodedata.category(c) in ("Mn", "Mc")]
    return "".join(marks)


_MARKS = _marks()
LETTERS = rf"(?=\w)[{UNSPACED}][{_MARKS}]*|(?:(?![{UNSPACED}])\w[{_MARKS}]*)+"
"""A word of letters, digits and underscores, without its marks cut off."""
_WORD = re.compile(rf"\d+(?:\.\d+)+|{PRICE}|{LETTERS}")
_NUMBER = re.compile(r"\d{1,30}(?:[.,]\d{1,30})?")
"""A number to calculate with; a longer row of digits, such as a tape, is a word."""
MAX_NUMBERS = 64
"""Numbers of a state and action whose sums and differences count as computable."""


def words_of(text: str) -> list[str]:
    """Return the words of a text in order, case-folded and without punctuation.

    A decimal number is one word, also a price such as `12,50 €` without its sign, and
    so is an identifier of letters, digits and underscores.
    """
    return _WORD.findall(text.casefold())


def novel_words(
    state: State,
    action: str,
    instruction: str,
    next_state: State,
    history: Sequence[str] = (),
) -> set[str]:
    """Return the words of `next_state` that occur nowhere in what came before.

    What came before is the state, the action, the instruction and the lines of
    `history`. A number that is the sum or difference of two numbers of the state and
    the action, or of one of them and 1, is not novel, because it can be computed.
    """
    known_words = {
        w for x in (*state, *history, action, instruction) for w in words_of(x)
    }
    novel = {w for line in next_state for w in words_of(line)} - known_words
    numbers = {w for w in novel if _NUMBER.fullmatch(w)}
    if not numbers:
        return novel
    return novel - _computable(numbers, (*state, action))


def is_reveal(t: Transition, instruction: str, history: Sequence[str] = ()) -> bool:
    """Return the environment's flag `reveals`, else whether a word is novel."""
    if t.reveals is not None:
        return t.reveals
    return bool(novel_words(t.state, t.action, instruction, t.next_state, history))


def _computable(numbers: Iterable[str], texts: Iterable[str]) -> set[str]:
    """Return the numbers that are a sum or difference of two numbers in the texts."""
    known_numbers = [w for x in texts for w in words_of(x) if _NUMBER.fullmatch(w)]
    values = {_value(w) for w in dict.fromkeys(known_numbers[:MAX_NUMBERS])} | {
        Fraction(1)
    }
    return {
        w
        for w in numbers
        if any(abs(_value(w) - v) in values or _value(w) + v in values for v in values)
    }


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", "."))
