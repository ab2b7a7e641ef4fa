"""Misspelt words: noise in a request that its reader can see through.

a text, the words to keep -> the text with some other words misspelt, and their number.
Only words in lower case of at least MIN_LETTERS letters are: names and numbers stay.
"""

import random
import re
from collections.abc import Collection

MIN_LETTERS = 4

_WORD = re.compile(rf"\b[a-z]{{{MIN_LETTERS},}}\b")


def misspell(
    text: str, rate: float, rng: random.Random, *, keep: Collection[str] = ()
) -> tuple[str, int]:
    """Return the text with each word misspelt at a rate, and how many are.

    The words of `keep` stay as they are.
    """
    count = 0

    def misspelt(match: re.Match[str]) -> str:
        nonlocal count
        word = match[0]
        if word in keep or rng.random() >= rate:
            return word
        other = _with_typo(word, rng)
        count += other != word
        return other

    return _WORD.sub(misspelt, text), count


def _with_typo(word: str, rng: random.Random) -> str:
    """Return a word with a letter left out, a letter doubled, or two exchanged.

    The first letter stays.
    """
    i = rng.randrange(1, len(word) - 1)
    return rng.choice(
        (
            word[:i] + word[i + 1 :],
            word[:i] + word[i] + word[i:],
            word[:i] + word[i + 1] + word[i] + word[i + 2 :],
        )
    )
