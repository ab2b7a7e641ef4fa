"""References, markers and ranks: what a word of its context means, as one token.

context -> a reference for each identifier, which is written in place of the word, a
marker for each argument of the instruction, which is written before the word, and a
rank for each number -> ReferenceTokenizer, which writes words with these tokens and
reads them back.

A reference says which of the things in its context is meant, by its place: the first
one of the state, the second one, ... So a name that no training episode held is as good
as any other (the anonymised entities of Hermann et al., arXiv:1506.03340, without a
parser), and a model need not learn to compare or copy names: with references that are
drawn at random it has to, and a small one fitted to some hundred demonstrations does
not.

What the action of a query names has references of its own, by its place in the action.
So whether the state has the thing that an action names, and on which line, is a
question about one token.

Numbers are compared as well as copied. A context holds each of them behind its rank
among the numbers of the context, so that which of two is larger is seen from two
tokens. In a reply a number of the context is written as its rank where the data copy
numbers, and digit by digit where they compute with them.

Arguments are the words in which the instructions of a family differ, such as `studio`
in `bring the coin from studio`. Wherever an argument stands, its marker says at which
place the instruction names it, so a model needs not compare words to see that it has
arrived at what the task is about (entity markers: Baldini Soares et al.,
arXiv:1906.03158, also without a parser). It stands before the word, so that to write
the word is to copy what follows the marker elsewhere.

The words in which the actions with one first word differ have markers as well, in the
queries of the experience model, and each line of the state that holds one begins with
its marker. To find the line that lists what an action takes is the hardest part of
many steps: a model reads from left to right, and at a word it has passed the beginning
of the line. A marker at the beginning is what it can look for.
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Episode
from worldmodel.text import identifiers
from worldmodel.text.identifiers import ReferenceRule, is_identifier, is_number
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.writing.columns import grid_words
from worldmodel.text.writing.number_changes import change_rule, with_changes

MIN_TASKS = 0.5
"""References are used where this share of a family's tasks holds an identifier, and
markers where this share of its instructions has an argument."""
MAX_TEMPLATE_SHARE = 0.85
"""A word in a smaller share of a family's instructions is an argument of them."""
ARGUMENTS = 12
"""Arguments of an instruction that have markers, at most. The markers are the first
of the tokens for references."""
ACTION_PLACES = 4
"""Arguments of an action that have tokens by their place in it, at most. Their tokens
are the first ones behind those of the markers; a policy, which begins at the weights of
the experience model and has no action yet, leaves them out."""
MARKED_LINES = 3
"""Lines of a state that are marked as those of an action's argument, at most. Where
more hold it, none is."""
NUMBERS = 16
"""Numbers of a context that have ranks, at most. Their tokens are the last ones."""


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
        ranks: Mapping[str, int] | None = None,
        line_markers: Mapping[str, int] | None = None,
        *,
        in_context: bool = False,
        quoted_numbers: bool = False,
    ):
        """Create the view from the number of the token of each word.

        `ranks` are markers of numbers, which only contexts have: with `in_context`, the
        numbers stand there behind their ranks and have no references. `line_markers`
        stand before the lines that hold a word (`line_marks`). With `quoted_numbers` a
        number of a reply has its reference in texts of JSON alone: elsewhere it is
        written digit by digit.
        """
        self.base = tokenizer
        self._quoted_numbers = quoted_numbers and not in_context
        self._arguments = references, markers, ranks, line_markers
        tokens = tokenizer.references
        self._line_markers = {w: tokens[i] for w, i in (line_markers or {}).items()}
        self._ranks = {w: tokens[i] for w, i in (ranks or {}).items() if in_context}
        self._markers = {w: tokens[i] for w, i in markers.items()}
        self._ids = {
            w: tokens[i] for w, i in references.items() if w not in self._ranks
        }
        self._words = {i: word for word, i in self._ids.items()}
        self._written_apart = {*self._ids, *self._markers, *self._ranks}

    @functools.cached_property
    def context_view(self) -> "ReferenceTokenizer":
        """The tokenizer of contexts, where numbers stand behind their ranks."""
        return ReferenceTokenizer(self.base, *self._arguments, in_context=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def line_marks(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the markers of each line: those of the action's arguments it holds.

        An argument that more than MARKED_LINES lines hold marks none.
        """
        if not self._line_markers:
            return [[] for _ in lines]
        line_words = [set(identifiers.words(line)) for line in lines]
        markers = [
            (word, token)
            for word, token in self._line_markers.items()
            if sum(word in words for words in line_words) <= MARKED_LINES
        ]
        return [[t for word, t in markers if word in words] for words in line_words]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, with its references and markers."""
        text, out, at = f" {text}", [], 0
        for match in identifiers.matches(text):
            word = match[0]
            if word not in self._written_apart:
                continue
            joined = text[match.start() - 1] != " "
            start = match.start() - 1 + joined
            if self._quoted_numbers and is_number(word):
                if not _in_quotes(text[: match.start()]):
                    continue  # a value of type number is spelled
            before = [x[word] for x in (self._markers, self._ranks) if word in x]
            if before:
                out += [*self.base.encode_piece(text[at:start]), *before]
                at = start
            if word not in self._ids:
                continue
            out += self.base.encode_piece(text[at:start])
            out += [self.base.join] * joined + [self._ids[word]]
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
    action: str = "",
    literals: frozenset[str] | None = None,
) -> AnyTokenizer:
    """Return the tokenizer with markers and references to words of a context.

    The arguments of the `instruction` have markers in their order; an argument that is
    a name is written as its marker alone. The other names of the `action` have
    references by their order in it, all further ones by their order in the `texts`.
    Numbers have ranks, which are markers in a context and references in a reply; a
    number that is an argument, or stands in the action, has a marker besides. Where
    there are more words than tokens, the first ones have one. A tokenizer without a
    rule is returned as it is. `literals` have no references: in a reply they are
    written letter by letter. Where they are given, the reply is a call in JSON, and
    numbers have references in its texts alone: a value of type number is spelled.
    """
    rule = tokenizer.reference_rule
    if rule is None:
        return tokenizer

    action_words = identifiers.words(action)
    text_words = (w for text in texts for w in identifiers.words(text))
    words = [*dict.fromkeys([*text_words, *action_words])] if rule.identifiers else []
    referable = {
        w for w in words if _has_reference(rule, w) and not _stays_text(w, literals)
    }
    arguments, first = list[str](), 0
    if rule.template is not None:
        arguments = [
            w
            for w in dict.fromkeys(identifiers.words(instruction))
            if w not in rule.template and not _stays_text(w, literals)
        ][:ARGUMENTS]
        first = ARGUMENTS
    places = {w: i for i, w in enumerate(arguments)}
    action_arguments = [
        w
        for i, w in enumerate(dict.fromkeys(action_words))
        if w in referable or (i and _is_action_argument(rule, w))
    ]
    if rule.action_template is None:  # of a run before lines were marked
        action_arguments = [w for w in action_arguments if w not in places]
    in_action = {w: first + i for i, w in enumerate(action_arguments[:ACTION_PLACES])}
    places = in_action | places
    first += ACTION_PLACES

    last = len(tokenizer.references) - NUMBERS
    names = [w for w in words if w in referable - places.keys() and not is_number(w)]
    numbers = sorted(
        [w for w in words if is_number(w)][:NUMBERS], key=identifiers.value
    )
    ranks = {w: last + i for i, w in enumerate(numbers)}
    # A place is the reference of a name, but only the marker of a number.
    named = {w: i for w, i in places.items() if w in referable and not is_number(w)}
    return ReferenceTokenizer(
        tokenizer,
        {
            **{w: first + i for i, w in enumerate(names[: last - first])},
            **named,
            **{w: i for w, i in ranks.items() if w in referable},
        },
        {w: i for w, i in places.items() if w not in named},
        ranks,
        {} if rule.action_template is None else in_action,
        quoted_numbers=literals is not None,
    )


def _stays_text(word: str, literals: frozenset[str] | None) -> bool:
    """Return whether a word is written letter by letter, and has no reference."""
    return literals is not None and word in literals


def _in_quotes(text: str) -> bool:
    """Return whether a text of JSON is open at the end of this one."""
    return re.sub(r"\\.", "", text).count('"') % 2 == 1


def _is_action_argument(rule: ReferenceRule, word: str) -> bool:
    return rule.action_template is not None and word not in rule.action_template


def _has_reference(rule: ReferenceRule, word: str) -> bool:
    return word not in rule.words and (rule.numbers or not is_number(word))


def reference_rule(
    episodes: Sequence[Episode],
    *,
    references: bool = True,
    markers: bool = True,
    changes: bool = True,
    columns: bool = True,
) -> ReferenceRule | None:
    """Return which words of such episodes have references and which have markers.

    None where few tasks have any, or `references` and `markers` are off, unless numbers
    are to be written as `changes` and that is easier in some lines, or states to be
    read with the `columns` of a grid and recorded steps change them (writing/).
    Known words are those of a family's form (identifiers.is_identifier) in any family,
    single letters, and the first words of actions. Numbers stay text where any family
    computes with them, digit by digit.
    """
    rule = change_rule(episodes) if changes else None
    cells = grid_words(episodes) if columns else frozenset[str]()
    families: dict[str, list[Episode]] = {}
    for e in episodes if rule is None else with_changes(episodes, rule):
        families.setdefault(e.task.family, []).append(e)
    shares = identifiers.task_shares(episodes)
    form = {w for e in episodes for t in e.transitions for w in t.action.split()[:1]}
    for words in shares.values():
        form |= {
            w
            for w, x in words.items()
            if (len(w) == 1 and not is_number(w)) or not is_identifier(w, x)
        }
    has_identifiers = references and _most_tasks(
        families.values(),
        lambda e: (
            {w for x in identifiers.texts(e) for w in identifiers.words(x)} - form
        ),
    )
    template = _template(families.values()) if markers else None
    has_arguments = template is not None and _most_tasks(
        families.values(),
        lambda e: set(identifiers.words(e.task.instruction)) - template,
    )
    action_template = _action_template(episodes) if markers else frozenset()
    has_action_arguments = markers and _most_tasks(
        families.values(), lambda e: _action_arguments(e) - action_template
    )
    if not any((has_identifiers, has_arguments, has_action_arguments, rule, cells)):
        return None
    return ReferenceRule(
        frozenset(form),
        not any(identifiers.computes_numbers(group) for group in families.values()),
        has_identifiers,
        template if has_arguments else None,
        action_template if has_action_arguments else None,
        rule,
        cells,
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


def _action_template(episodes: Sequence[Episode]) -> frozenset[str]:
    """Return the words of actions that are no arguments.

    In the different actions with one first word, those that most of them hold are none.
    Actions that were invalid do not count, as random players make some of words that do
    not belong together. Words that stand in no state are no arguments: a marker would
    tell nothing about them.
    """
    actions: dict[str, set[frozenset[str]]] = {}
    visible = set[str]()
    for e in episodes:
        for t in e.transitions:
            words = identifiers.words(t.action)
            if words and not is_invalid(t):
                actions.setdefault(words[0], set()).add(frozenset(words[1:]))
            visible |= {w for line in t.state for w in identifiers.words(line)}
    usual, others = Counter[str](), Counter[str]()
    for sets in actions.values():
        for word, n in Counter(w for words in sets for w in words).items():
            common = n >= MAX_TEMPLATE_SHARE * len(sets)
            (usual if common else others)[word] += n
    return frozenset(
        w
        for w in usual.keys() | others.keys()
        if w not in visible or usual[w] >= others[w]
    )


def _action_arguments(episode: Episode) -> set[str]:
    """Return the words of an episode's valid actions but their first ones."""
    return {
        w
        for t in episode.transitions
        if not is_invalid(t)
        for w in identifiers.words(t.action)[1:]
    }
