"""References and markers: which thing of its context a word means, as one token.

context -> a reference for each identifier, which is written in place of the word, and
a marker for each argument of the instruction, which is written before the word ->
ReferenceTokenizer, which writes words with these tokens and reads them back.

References of identifiers are drawn at random. They mean nothing by themselves: a model
can only say which of the things in its context is meant, and a name that no training
episode held is as good as any other (the anonymised entities of Hermann et al.,
arXiv:1506.03340, without a parser).

What the action of a query names has the same references in every query, by its place in
the action. So whether the state has the thing that an action names, and on which line,
is a question about one token, and needs no comparison of names.

Arguments are the words in which the instructions of a family differ, such as `studio`
in `bring the coin from studio`. Wherever an argument stands, its marker says at which
place the instruction names it, so a model needs not compare words to see that it has
arrived at what the task is about (entity markers: Baldini Soares et al.,
arXiv:1906.03158, also without a parser). It stands before the word, so that to write
the word is to copy what follows the marker elsewhere.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.data.records import Episode
from worldmodel.text import identifiers
from worldmodel.text.identifiers import is_identifier, is_number
from worldmodel.text.tokenizer import ReferenceRule, TextTokenizer

MIN_TASKS = 0.5
"""References are used where this share of a family's tasks holds an identifier, and
markers where this share of its instructions has an argument."""
MAX_TEMPLATE_SHARE = 0.85
"""A word in a smaller share of a family's instructions is an argument of them."""
ARGUMENTS = 12
"""Arguments of an instruction that have markers, at most. The markers are the first
of the tokens for references."""
ACTION_PLACES = 4
"""Identifiers of an action whose references are not drawn, at most. Their tokens are
the first ones behind those of the markers; a policy, which begins at the weights of the
experience model and has no action yet, leaves them out."""


class ReferenceTokenizer:
    """A view of a tokenizer in which some words have tokens of their own.

    A reference stands for its word with the space before it; behind `join` it stands
    for the word alone. A marker stands before its word. All else is the tokenizer's.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        references: Mapping[str, int],
        markers: Mapping[str, int],
    ):
        """Create the view from the number of the token of each word."""
        self.base = tokenizer
        self._ids = {w: tokenizer.references[i] for w, i in references.items()}
        self._markers = {w: tokenizer.references[i] for w, i in markers.items()}
        self._words = {i: word for word, i in self._ids.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with its references and markers."""
        text, out, at = f" {text}", [], 0
        for match in identifiers.matches(text):
            joined = text[match.start() - 1] != " "
            start = match.start() - 1 + joined
            if match[0] in self._markers:
                out += [
                    *self.base.encode_piece(text[at:start]),
                    self._markers[match[0]],
                ]
                at = start
            if match[0] not in self._ids:
                continue
            out += self.base.encode_piece(text[at:start])
            out += [self.base.join] * joined + [self._ids[match[0]]]
            at = match.end()
        return out + self.base.encode_piece(text[at:])

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without control tokens."""
        out, run, joined = "", list[int](), False
        for token in map(int, ids):
            if token in self._words:
                out += self.base.decode_piece(run)
                out += ("" if joined else " ") + self._words[token]
                run = []
            else:
                run.append(token)
            joined = token == self.base.join
        return (out + self.base.decode_piece(run)).removeprefix(" ")

    def unused_references(self) -> np.ndarray:
        """Return bool [V], true for references and markers of no word here."""
        mask = self.base.reference_mask()
        mask[[*self._words, *self._markers.values()]] = False
        mask[self.base.join] = not self._words
        return mask


AnyTokenizer = TextTokenizer | ReferenceTokenizer


def with_references(
    tokenizer: TextTokenizer,
    instruction: str,
    texts: Iterable[str],
    *,
    seed: int,
    action: str = "",
    literals: frozenset[str] | None = None,
) -> AnyTokenizer:
    """Return the tokenizer with markers and references to words of a context.

    The arguments of the `instruction` have markers in their order; an argument that is
    an identifier is written as its marker alone. The other identifiers of the `action`
    have references by their order, those of `texts` references that are drawn by
    `seed`. Where there are more words than tokens, the first ones have one. A tokenizer
    without a rule is returned as it is. `literals` and, where they are given, numbers
    stay text: they are written letter by letter.
    """
    rule = tokenizer.reference_rule
    if rule is None:
        return tokenizer

    action_words = identifiers.words(action)
    names = dict.fromkeys(
        [*action_words, *(w for text in texts for w in identifiers.words(text))]
    )
    names = {w: None for w in names if rule.identifiers and _has_reference(rule, w)}
    names = {w: None for w in names if not _stays_text(w, literals)}
    arguments, first = list[str](), 0
    if rule.template is not None:
        words = dict.fromkeys(identifiers.words(instruction))
        arguments = [
            w for w in words if w not in rule.template and not _stays_text(w, literals)
        ][:ARGUMENTS]
        first = ARGUMENTS
    places = {w: i for i, w in enumerate(arguments)}
    named = dict.fromkeys(w for w in action_words if w in names and w not in places)
    in_action = {w: first + i for i, w in enumerate([*named][:ACTION_PLACES])}
    first += ACTION_PLACES
    drawn = [w for w in names if w not in places and w not in in_action]
    count = len(tokenizer.references) - first
    order = first + np.random.default_rng(seed).permutation(count)
    return ReferenceTokenizer(
        tokenizer,
        {w: i for w, i in places.items() if w in names}
        | in_action
        | dict(zip(drawn, order.tolist(), strict=False)),
        {w: i for w, i in places.items() if w not in names},
    )


def _stays_text(word: str, literals: frozenset[str] | None) -> bool:
    """Return whether a word is written letter by letter, and has no reference."""
    return literals is not None and (word in literals or is_number(word))


def _has_reference(rule: ReferenceRule, word: str) -> bool:
    return word not in rule.words and (rule.numbers or not is_number(word))


def reference_rule(
    episodes: Sequence[Episode], *, references: bool = True, markers: bool = True
) -> ReferenceRule | None:
    """Return which words of such episodes have references and which have markers.

    None where few tasks have any, or `references` and `markers` are off. Known words
    are those of a family's form (identifiers.is_identifier) in any family, single
    letters, and the first words of actions. Numbers stay text where any family computes
    with them, digit by digit.
    """
    families: dict[str, list[Episode]] = {}
    for e in episodes:
        families.setdefault(e.task.family, []).append(e)
    shares = identifiers.task_shares(episodes)
    form = {w for e in episodes for t in e.transitions for w in t.action.split()[:1]}
    for words in shares.values():
        form |= {w for w, x in words.items() if len(w) == 1 or not is_identifier(w, x)}
    named = references and _most_tasks(
        families.values(),
        lambda e: (
            {w for x in identifiers.texts(e) for w in identifiers.words(x)} - form
        ),
    )
    template = _template(families.values()) if markers else None
    argued = template is not None and _most_tasks(
        families.values(),
        lambda e: set(identifiers.words(e.task.instruction)) - template,
    )
    if not (named or argued):
        return None
    return ReferenceRule(
        frozenset(form),
        not any(identifiers.computes_numbers(group) for group in families.values()),
        named,
        template if argued else None,
    )


def _most_tasks(
    families: Iterable[Sequence[Episode]], words_of: Callable[[Episode], set[str]]
) -> bool:
    """Return whether most tasks of a family have an episode with such words."""
    return any(
        len({e.task.id for e in group if words_of(e)})
        > MIN_TASKS * len({e.task.id for e in group})
        for group in families
    )


def _template(families: Iterable[Sequence[Episode]]) -> frozenset[str]:
    """Return the words of instructions that are no arguments.

    Those that most instructions of a family hold, and those that stand in no state and
    no action: a marker would tell nothing about them.
    """
    template, instruction_words, visible = set[str](), set[str](), set[str]()
    for group in families:
        by_task = {e.task.id: set(identifiers.words(e.task.instruction)) for e in group}
        counts = Counter(w for words in by_task.values() for w in words)
        template |= {
            w for w, n in counts.items() if n >= MAX_TEMPLATE_SHARE * len(by_task)
        }
        instruction_words |= set(counts)
        visible |= {
            w
            for e in group
            for t in e.transitions
            for text in (*t.state, t.action, *t.next_state)
            for w in identifiers.words(text)
        }
    return frozenset(template | (instruction_words - visible))
