"""Lists of actions, and actions made of words.

Random players of an environment that lists no actions make them of the words that an
agent reads, and of actions that were taken before. Without a language model nobody can
guess what an environment understands; but instructions often say it (`flip N`), and one
word of an action that was taken can be exchanged.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from dreamgym.envs.spaces import AnyText
from worldmodel.data.records import State

UNORDERED = (set, frozenset)
"""Types of lists of actions whose order differs from process to process."""
KEEP = 0.4
"""Probability to repeat an action that was taken, where there are any."""
EXCHANGE = 0.3
"""Probability to exchange one word of an action that was taken, where there are any."""
PHRASE = 0.7
"""Probability of a phrase of the instruction, else of a few random words."""
FORM = 0.5
"""Probability that the phrase is one with a placeholder, where there are any."""
NUMBER = 0.5
"""Probability that a placeholder stands for a number, where there are any."""
MAX_PHRASE = 6
"""Words of a phrase that may be an action, at most."""
MAX_WORDS = 3
"""Random words of an action, at most."""

_CLAUSE_END = re.compile(r"[\n,;:!?()\"`]|\.(?=\s|$)|(?<!\w)'|'(?!\w)|\s(?:or|and)\s")
_PLACEHOLDER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\{[^{}\s]+\}|[A-Z]+(?:_[A-Z]+)*")
_EDGES = ".,;:!?()\"'`"


def as_list(values: Iterable[Any] | None) -> list[Any] | None:
    """Return what an environment lists as a list, what a generator yields included.

    The order of a set of texts is another one in each process, so that it is sorted:
    random players choose actions by their number.

    Raises:
      TypeError: it is one text, which would be read letter by letter.
    """
    if values is None:
        return None
    if isinstance(values, str | bytes):
        raise TypeError(
            "expert(), valid_actions() and tasks() must return a list, got the text "
            f"{values!r:.60}: it would be read letter by letter"
        )
    return sorted(values, key=str) if isinstance(values, UNORDERED) else list(values)


def has_sampler(env: gymnasium.Env) -> bool:
    """Return whether the action space of an environment draws actions of its own.

    Spaces of text draw letters, which no environment understands.
    """
    return not isinstance(env.action_space, AnyText | spaces.Text)


def make_action(
    rng: np.random.Generator, instruction: str, state: State, taken: Sequence[str]
) -> str:
    """Return an action made of the words of an instruction, of a state and of actions.

    It is an action of `taken`, one of these with another word in a place, a short
    phrase of the instruction or a few words. A placeholder of a phrase, which is a word
    in capitals or in brackets as in `go DIRECTION` and `open [box]`, is replaced by a
    word of the state or the instruction: each spelling of words (a name, a date) is as
    likely as another one, and numbers more, so that values are found among many words.

    Args:
      rng: where the draws come from.
      instruction: what the agent is told to do.
      state: lines of text.
      taken: actions that an environment of this kind has taken.
    """
    sight = _words("\n".join(state))
    words = [*sight]
    for word in _words(instruction):
        if word not in sight and not _is_placeholder(word, sight):
            words.append(word)
    if taken and (draw := rng.random()) < KEEP + EXCHANGE:
        action = _choose(rng, taken)
        return action if draw < KEEP else _with_other_word(rng, action, words)
    phrases = _phrases(instruction)
    forms = [p for p in phrases if any(_is_placeholder(w, sight) for w in p.split())]
    if forms and rng.random() < FORM:
        phrases = forms
    if phrases and rng.random() < PHRASE:
        return " ".join(
            _substitute(rng, word, words) if _is_placeholder(word, sight) else word
            for word in _choose(rng, phrases).split()
        )
    count = int(rng.integers(1, MAX_WORDS + 1))
    return " ".join(_choose(rng, words) for _ in range(count)) if words else "wait"


def _words(text: str) -> list[str]:
    """Return the distinct words of a text, without the punctuation around them."""
    words = (word.strip(_EDGES) for word in text.split())
    return list(dict.fromkeys(word for word in words if word))


def _phrases(instruction: str) -> list[str]:
    """Return the clauses of an instruction that are short enough for an action."""
    clauses = (" ".join(part.split()) for part in _CLAUSE_END.split(instruction))
    return [c for c in clauses if c and len(c.split()) <= MAX_PHRASE]


def _is_placeholder(word: str, sight: Sequence[str]) -> bool:
    """Return whether a word stands for others: one that no state shows as it is."""
    return word != "I" and word not in sight and bool(_PLACEHOLDER.fullmatch(word))


def _with_other_word(
    rng: np.random.Generator, action: str, words: Sequence[str]
) -> str:
    """Return an action with another word in one place, of the same spelling if any."""
    parts = action.split()
    if not parts or not words:
        return action
    place = int(rng.integers(len(parts)))
    alike = _by_spelling(words).get(_spelling(parts[place]), words)
    parts[place] = _choose(rng, alike)
    return " ".join(parts)


def _substitute(
    rng: np.random.Generator, placeholder: str, words: Sequence[str]
) -> str:
    """Return a word for a placeholder: a number, or of a spelling that is drawn."""
    if not words:
        return placeholder
    numbers = [word for word in words if word.isdecimal()]
    if numbers and rng.random() < NUMBER:
        return _choose(rng, numbers)
    spellings = [*_by_spelling(words).values()]
    return _choose(rng, spellings[int(rng.integers(len(spellings)))])


def _by_spelling(words: Sequence[str]) -> dict[str, list[str]]:
    """Return the words by their spelling."""
    out: dict[str, list[str]] = {}
    for word in words:
        out.setdefault(_spelling(word), []).append(word)
    return out


def _spelling(word: str) -> str:
    """Return what kind of word it looks like: `0-0-0` for a date, `Aa` for a name."""
    kinds = ("0" if c.isdigit() else "A" if c.isupper() else "a" for c in word)
    marks = (k if c.isalnum() else c for k, c in zip(kinds, word, strict=True))
    return "".join(c for c, _ in itertools.groupby(marks))


def _choose(rng: np.random.Generator, texts: Sequence[str]) -> str:
    # Not `choice`: an array of texts is as wide as its longest one.
    return str(texts[int(rng.integers(len(texts)))])
