"""References: identifiers of a context as single tokens, so that they are copied whole.

context -> the words that are not of the form of the data -> a token for each, drawn at
random -> ReferenceTokenizer, which writes these words as their tokens and reads them
back. The tokens mean nothing by themselves: a model can only say which of the things in
its context is meant, and a name that no training episode held is as good as any other
(the anonymised entities of Hermann et al., arXiv:1506.03340, without a parser).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.data.records import Episode
from worldmodel.text import identifiers
from worldmodel.text.identifiers import is_identifier, is_number
from worldmodel.text.tokenizer import ReferenceRule, TextTokenizer

MIN_TASKS = 0.5
"""References are used where this share of a family's tasks holds an identifier."""


class ReferenceTokenizer:
    """A view of a tokenizer in which some words have tokens of their own.

    A reference stands for its word with the space before it; behind `join` it stands
    for the word alone. All else is the tokenizer's.
    """

    def __init__(self, tokenizer: TextTokenizer, names: Mapping[str, int]):
        self._tokenizer = tokenizer
        self._ids = {word: tokenizer.references[i] for word, i in names.items()}
        self._words = {i: word for word, i in self._ids.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, each word with a reference as one of them."""
        text, out, at = f" {text}", [], 0
        for match in identifiers.matches(text):
            if match[0] not in self._ids:
                continue
            start, joined = match.start() - 1, text[match.start() - 1] != " "
            out += self._tokenizer.encode_piece(text[at : start + joined])
            out += [self._tokenizer.join] * joined + [self._ids[match[0]]]
            at = match.end()
        return out + self._tokenizer.encode_piece(text[at:])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without control tokens."""
        out, run, joined = "", list[int](), False
        for token in map(int, ids):
            if token in self._words:
                out += self._tokenizer.decode_piece(run)
                out += ("" if joined else " ") + self._words[token]
                run = []
            else:
                run.append(token)
            joined = token == self._tokenizer.join
        return (out + self._tokenizer.decode_piece(run)).removeprefix(" ")

    def unused_references(self) -> np.ndarray:
        """Return bool [V], true for references that stand for no word here."""
        mask = self._tokenizer.reference_mask()
        mask[[*self._words, self._tokenizer.join]] = False
        return mask


AnyTokenizer = TextTokenizer | ReferenceTokenizer


def with_references(
    tokenizer: TextTokenizer, texts: Iterable[str], *, seed: int
) -> AnyTokenizer:
    """Return the tokenizer with references, drawn by `seed`, to words of these texts.

    They are the words that its rule does not know. Where there are more of them than
    references, the first ones get one. A tokenizer without references is returned as it
    is.
    """
    rule = tokenizer.reference_rule
    if rule is None:
        return tokenizer
    candidates = dict.fromkeys(w for text in texts for w in identifiers.words(text))
    words = [
        w
        for w in candidates
        if w not in rule.words and not (is_number(w) and not rule.numbers)
    ]
    order = np.random.default_rng(seed).permutation(len(tokenizer.references))
    return ReferenceTokenizer(tokenizer, dict(zip(words, order.tolist(), strict=False)))


def reference_rule(episodes: Sequence[Episode]) -> ReferenceRule | None:
    """Return which words of such episodes are no identifiers; None: few tasks have any.

    Known words are those of a family's form (identifiers.is_identifier) in any family,
    single letters, and the first words of actions. Numbers stay text where any family
    computes with them, digit by digit.
    """
    families: dict[str, list[Episode]] = {}
    for e in episodes:
        families.setdefault(e.task.family, []).append(e)
    shares = identifiers.task_shares(episodes)
    form = {w for e in episodes for t in e.transitions for w in t.action.split()[:1]}
    for words in shares.values():
        form |= {w for w, x in words.items() if len(w) == 1 or not is_identifier(w, x)}
    named, tasks = dict[str, set[str]](), dict[str, set[str]]()
    for e in episodes:
        tasks.setdefault(e.task.family, set()).add(e.task.id)
        words = {w for text in identifiers.texts(e) for w in identifiers.words(text)}
        if words - form:
            named.setdefault(e.task.family, set()).add(e.task.id)
    if not any(len(named[k]) > MIN_TASKS * len(tasks[k]) for k in named):
        return None
    return ReferenceRule(
        frozenset(form),
        not any(identifiers.computes_numbers(group) for group in families.values()),
    )
