"""Lines of the state that a trace quotes, word for word.

A trace by rule names the action, and then quotes the lines that it is about
(reasoning/rule.py). A small model begins such a quote as the line begins and ends it as
most lines of its kind end: `order K6 ball wanted 3 picked 0` where the state has
`picked 3`. What follows is computed from the quote, and is wrong with it. So where the
traces of a family quote whole lines, the sampled ones must as well.
"""

from collections.abc import Iterable, Sequence, Set

from worldmodel.backbone.grammar import Quotable
from worldmodel.data.records import Episode, State
from worldmodel.experience.base import Query
from worldmodel.text.references import AnyTokenizer
from worldmodel.text.tools.tool_calls import MAX_ACTION_WORDS, action_words

FREE_WORDS = 2
"""Words of a line behind which a quote of it has to go on. By one word alone a trace
may mean something else: the thing that it names."""
MAX_BREAKS = 1e-3
"""The share of the quotes, at most, that end within their line."""
MIN_QUOTES = 50
"""Quotes that a family's traces must hold: a few may be chance."""
MAX_TRANSITIONS = 2000
"""Transitions of a family that are looked at."""


def quoting_families(episodes: Iterable[Episode]) -> frozenset[str]:
    """Return the families whose traces quote whole lines behind the action.

    Their traces hold MIN_QUOTES quotes or more, of which hardly any is broken off.
    """
    counts: dict[str, list[int]] = {}
    for e in episodes:
        count = counts.setdefault(e.task.family, [0, 0, 0])
        for t in e.transitions[: max(MAX_TRANSITIONS - count[0], 0)]:
            quotes, breaks = count_quotes(t.reasoning or "", t.action, t.state)
            count[0] += 1
            count[1] += quotes
            count[2] += breaks
    return frozenset(
        family
        for family, (_, quotes, breaks) in counts.items()
        if quotes >= MIN_QUOTES and breaks <= MAX_BREAKS * quotes
    )


def count_quotes(trace: str, action: str, state: State) -> tuple[int, int]:
    """Return how many lines a trace quotes, and how many of these it breaks off.

    A quote stands behind the action or another quote, and counts from its word
    FREE_WORDS on.
    """
    texts = [action_words(action)[:MAX_ACTION_WORDS], *(line.split() for line in state)]
    places: set[tuple[int, int]] = set()  # (text, words of it that were written)
    quotes = breaks = 0
    for word in trace.split():
        ended = any(n == len(texts[i]) for i, n in places)
        must = [(i, n) for i, n in places if i and FREE_WORDS <= n < len(texts[i])]
        if must and not any(n == len(texts[i]) for i, n in places if i):
            breaks += not any(texts[i][n] == word for i, n in must)
        places = {
            (i, n + 1)
            for i, n in (
                *places,
                (0, 0),
                *((i, 0) for i in range(1, len(texts)) if ended),
            )
            if texts[i][n : n + 1] == [word]
        }
        quotes += any(i and n == FREE_WORDS < len(texts[i]) for i, n in places)
    open_quotes = [n < len(texts[i]) for i, n in places if i and n >= FREE_WORDS]
    return quotes, breaks + (bool(open_quotes) and all(open_quotes))


def quotable_rows(
    families: Set[str], pairs: Sequence[tuple[AnyTokenizer, Query]]
) -> list[Quotable] | None:
    """Return what the trace of each query may quote; None where no family quotes."""
    if not families:
        return None
    return [
        encode_quotable(tok, q.action, q.state)
        if q.task.family in families
        else Quotable.of([], [], [])
        for tok, q in pairs
    ]


def encode_quotable(tokenizer: AnyTokenizer, action: str, state: State) -> Quotable:
    """Return the tokens of the action and of each line that models read.

    They are those that traces write.

    Nothing can be quoted where a line does not begin with the tokens of its first
    words.
    """
    opening = tokenizer.encode(" ".join(action_words(action)[:MAX_ACTION_WORDS]))
    lines, free = [], []
    for line in filter(str.strip, tokenizer.writing.model_input(state)):
        words = line.split()
        ids = tokenizer.encode(line)
        start = tokenizer.encode(" ".join(words[:FREE_WORDS]))
        if ids[: len(start)] != start:
            return Quotable.of([], [], [])
        lines.append(ids)
        free.append(len(start))
    return Quotable.of(opening, lines, free)
