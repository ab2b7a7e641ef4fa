"""Reasoning traces by rule: why an action in a state leads to the next state.

The rule reads only the two states, the action and the outcome, so that it works for any
environment whose states are lines.
"""

import dataclasses
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from worldmodel.data.outcomes import number_text, outcome_of
from worldmodel.data.records import Episode, State, Transition
from worldmodel.text import edits
from worldmodel.text.identifiers import has_digit, is_number, words
from worldmodel.text.tools.tool_calls import MAX_ACTION_WORDS, action_words
from worldmodel.text.writing.number_changes import drop_changes
from worldmodel.text.writing.states import StateWriting, written_transition

MAX_LINE_WORDS = 12
"""Words of a line that a trace quotes, at most."""
MIN_NAME_LETTERS = 3
"""Letters of a word of an action that may name something; `on` and `to` do not."""
MAX_LINE_NUMBERS = 2
"""Numbers of an action that name a line each, as in `move 4 1`; more are values."""
_SEPARATOR = re.compile(r"(?<=\d)\s*(?:[|=]|:(?!\d))")
"""What stands between the number of an enumerated line and its value, not in 7:30."""
LABEL_SIGNS = "[](){}<>.:)#"
"""Signs around the number with which a line begins, as in `[5] link`."""
MAX_ROWS = 3
"""Rows of a grid that a trace quotes, at most; of more it quotes none. The same for the
lines that hold a name of the action."""


def annotate(
    episode: Episode,
    traces: Sequence[str | None] | None = None,
    *,
    style: str = "words",
) -> Episode:
    """Return the episode with these traces where it has none (None: by rule)."""
    status = has_status_line(episode)
    new_traces = [None] * len(episode.transitions) if traces is None else traces
    steps = tuple(
        t
        if t.reasoning is not None
        else dataclasses.replace(
            t, reasoning=trace or explain(t, status=status, style=style)
        )
        for t, trace in zip(episode.transitions, new_traces, strict=True)
    )
    return dataclasses.replace(episode, transitions=steps)


def set_rule_traces(
    episode: Episode,
    *,
    enabled: bool,
    writing: StateWriting | None = None,
    style: str = "words",
) -> Episode:
    """Return the episode with traces by rule where it has none, or without any.

    Where models read and write states in another form (`writing`), with changes for
    numbers or with columns of a grid, traces by rule say these too. Traces of another
    writer stay as they are.
    """
    if not enabled:
        return without_reasoning(episode)
    episode = annotate(episode, style=style)
    if writing is None or not (writing.columns or writing.changes):
        return episode
    return _in_written_form(episode, writing, style)


def _in_written_form(episode: Episode, writing: StateWriting, style: str) -> Episode:
    """Return the episode with traces by rule of its states as models write them."""
    status = has_status_line(episode)

    def trace(t: Transition) -> str | None:
        if t.reasoning != explain(t, status=status, style=style):
            return t.reasoning
        return explain_as_written(t, writing, status=status, style=style)

    steps = (dataclasses.replace(t, reasoning=trace(t)) for t in episode.transitions)
    return dataclasses.replace(episode, transitions=tuple(steps))


def without_reasoning(episode: Episode) -> Episode:
    """Return the episode with empty reasoning traces, as an ablation."""
    steps = tuple(dataclasses.replace(t, reasoning="") for t in episode.transitions)
    return dataclasses.replace(episode, transitions=steps)


def has_status_line(episode: Episode) -> bool:
    """Return whether the last line of the states says where the agent is.

    Such a line begins with the same word in all states, and changes. The last item of a
    list does not, and what it holds has nothing to do with most actions.
    """
    steps = episode.transitions
    last = {x[-1] for x in (steps[0].state, *(t.next_state for t in steps)) if x}
    return len(last) > 1 and len({line.split()[0] for line in last}) == 1


def explain_as_written(
    transition: Transition,
    writing: StateWriting,
    *,
    status: bool = True,
    style: str = "words",
) -> str:
    """Return a trace by rule of the states as models read and write them."""
    written = written_transition(transition, writing)
    columns = len(written.state) - len(transition.state)
    return explain(written, status=status, columns=columns, style=style)


def explain(
    transition: Transition,
    *,
    status: bool = True,
    columns: int = 0,
    style: str = "words",
) -> str:
    """Return a trace: where, what is done, its effect, the changed lines, the reward.

    Only what the change needs is quoted, in one place, because to look it up is hard
    for a small model: the last words of the state where that ends with a `status` line,
    the first words of the action, the lines that the action names, or that hold a name
    of it, the changed lines that hold a word of it, the line from which names and
    numbers are copied, the changed rows of a grid, and then the new words of the last
    changed line, the last one first. The first lines are the `columns` of a grid, where
    models read these. In the `style` "words" nothing but these words is written, in
    "sentences" the same stands in a sentence that a person can follow.
    """
    t = transition
    script = edits.diff(t.state, t.next_state)
    touched = [_first_word(t.state, x) for e in script for x in _lines_of(e)]
    place = _place(t.state) if status else []
    named = [
        *_lines_in_action(t),
        *_lines_with_names(t, status=status),
        *_changed_lines_in_action(t, script, status=status),
    ]
    copied = _copied_lines(t, script, known={w for x in named for w in words(x)})
    parts = _Parts(
        place,
        action_words(t.action)[:MAX_ACTION_WORDS],
        list(dict.fromkeys([*named, *copied, *_changed_rows(t, script, columns)])),
        _new_words(t, script[-1]) if script else [],
        list(dict.fromkeys(touched)),
    )
    what = _STYLES[style](parts)
    if t.reward:
        what += f" {_REWARD[style]} {number_text(t.reward)}"
    if t.terminated and t.success is None:
        return f"{what} {_ENDS[style]['end']}"
    outcome = outcome_of(t)
    return what if outcome == "go" else f"{what} {_ENDS[style][outcome]}"


class _Parts(NamedTuple):
    """What a trace says of a step, but for its reward and its end.

    Of the lines that are `touched` there are the first words; None is a new line.
    """

    place: list[str]
    action: list[str]
    quoted: list[str]
    new_words: list[str]
    touched: list[str | None]


def _in_words(parts: _Parts) -> str:
    """Return the parts as a list of words."""
    touched = ["new" if x is None else x for x in parts.touched]
    effect = [*parts.new_words, "as", *touched, "change"]
    if not parts.touched:
        effect = ["nothing changes"]
    return " ".join([*parts.place, *parts.action, *parts.quoted, *effect])


def _in_sentences(parts: _Parts) -> str:
    """Return the parts in a sentence, in the same order.

    It has no punctuation: a word that a sign sticks to would be spelled with other
    tokens than the state spells it with.
    """
    place = ["the state ends with", *parts.place, "and"] if parts.place else []
    quoted = ["about", " and ".join(parts.quoted)] if parts.quoted else []
    effect = ["so nothing changes"]
    if parts.touched:
        touched = ["a new line" if x is None else x for x in parts.touched]
        verb = "are" if len(parts.new_words) > 1 else "is"
        new = f"so {' and '.join(parts.new_words)} {verb} new where"
        effect = [new, " and ".join(touched), "change" if touched[1:] else "changes"]
    return " ".join([*place, "the action is", *parts.action, *quoted, *effect])


_STYLES = {"words": _in_words, "sentences": _in_sentences}
_REWARD = {"words": "earns", "sentences": "and this earns"}
_ENDS = {
    "words": {"win": "and wins", "lose": "and loses", "end": "and ends"},
    "sentences": {
        "win": "and the task is won",
        "lose": "and the task is lost",
        "end": "and the episode ends",
    },
}


def _place(state: State) -> list[str]:
    """Return the last four words of a state; none of a line that is JSON.

    JSON that is cut in the middle is no text that a model could learn to close.
    """
    if not state or "{" in state[-1] or "[" in state[-1]:
        return []
    return state[-1].split()[-4:]


def _lines_of(edit: edits.Edit) -> list[int | None]:
    """Return the line that is edited, and those that move there."""
    return [edit.index, *(x for x in edit.lines if isinstance(x, int))]


def _first_word(state: State, index: int | None) -> str | None:
    return None if index is None else state[index].split()[0]


def _lines_in_action(t: Transition) -> list[str]:
    """Return lines such as `bamboo 4` whose words but the last occur in the action.

    Whether the action is possible often depends on these alone.
    """
    action = f" {' '.join(action_words(t.action))} "
    return [
        line
        for line in t.state
        if (key := line.rpartition(" ")[0]) and f" {key} " in action
        if f" {line} " not in action
    ]


def _lines_with_names(t: Transition, *, status: bool) -> list[str]:
    """Return the lines that hold a name of the action, such as `T25`.

    What an action does to a thing depends on what the state says of it. Names are
    spelled with a letter and a digit; a number names the line that begins with it, as
    `click 5` does (`5 link`, `[5] link`, `5) link`), or a line of an enumeration
    (_enumerated_lines). The `status` line is quoted anyway. Of many or long lines there
    are none.
    """
    in_action = words(" ".join(action_words(t.action)))
    named = {w for w in in_action if has_digit(w)}
    names = {w for w in named if not is_number(w)}
    lines = t.state[: -1 if status else None]
    enumerated = _enumerated_lines(lines, tuple(in_action))
    by_name = _if_few(
        line
        for line in lines
        if names.intersection(words(line)) or _opening(line).strip(LABEL_SIGNS) in named
    )
    return [*by_name, *_if_few(enumerated)]


def _enumerated_lines(lines: Sequence[str], action: tuple[str, ...]) -> list[str]:
    """Return the lines of an enumeration that the words of an action name, in order.

    Lines are enumerated where several begin with the same words, and then with other
    numbers: `switch 3 off` and `switch 4 off`, or `cell 1 2 lit` and `cell 1 3 lit`.
    Numbers name one of them where they stand behind its words, as in `flip switch 4`,
    or alone behind the verb, as in `flip 4`; in `get 1 stick` they count. Two numbers
    alone, as in `move 4 1`, name a line each if there is none of them together.
    """
    lines_of: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
    for line in lines:
        opening, key = _numbered(tuple(words(_SEPARATOR.split(line)[0])))
        if opening and key:
            lines_of.setdefault(opening, {}).setdefault(key, []).append(line)
    by_opening = {x: by_key for x, by_key in lines_of.items() if len(by_key) > 1}
    named = [_numbered(action[i:]) for i in range(1, len(action))]
    only = tuple(itertools.takewhile(is_number, action[1:]))
    alone = only if action and not is_number(action[0]) and only == action[1:] else ()
    targets = [(x, alone) for x, by_key in by_opening.items() if alone in by_key]
    keys = [(number,) for number in alone]
    openings = [x for x, by_key in by_opening.items() if by_key.keys() >= {*keys}]
    if not targets and len(keys) == MAX_LINE_NUMBERS and len(openings) == 1:
        targets = [(openings[0], key) for key in keys]
    return [
        line
        for opening, key in dict.fromkeys([*named, *targets])
        for line in by_opening.get(opening, {}).get(key, ())
    ]


def _numbered(words: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words before the first number, and the numbers that stand there."""
    opening = tuple(itertools.takewhile(lambda w: not is_number(w), words))
    numbers = itertools.takewhile(is_number, words[len(opening) :])
    return opening, tuple(numbers)


def _changed_lines_in_action(
    t: Transition, script: Sequence[edits.Edit], *, status: bool
) -> list[str]:
    """Return the changed lines that hold a word of the action, such as `bowl`.

    Which line holds a thing is the hardest part of the change to find, as where the
    action is `take bowl` and one of several lists has a bowl. Words are all but the
    first, without those of one or two letters. The `status` line is quoted anyway. A
    line whose first word it holds, such as the name of a room, needs no quote, unless
    other lines begin with that word as well.
    """
    action = words(" ".join(action_words(t.action)))[1:]
    names = {w for w in action if len(w) >= MIN_NAME_LETTERS}
    place = {w for x in _place(t.state) for w in words(x)} if status else set()
    openings = Counter(w for line in t.state for w in words(line)[:1])
    place = {w for w in place if openings[w] == 1}
    last = len(t.state) - 1 if status else None
    lines = [t.state[e.index] for e in script if e.index not in (None, last)]
    return _if_few(
        line
        for line in lines
        if names.intersection(words(line)) and not place.intersection(words(line)[:1])
    )


def _if_few(lines: Iterable[str]) -> list[str]:
    """Return the lines; none of more than MAX_ROWS, or of longer ones than are quoted.

    They would not stand near the effect.
    """
    lines = list(lines)
    if len(lines) > MAX_ROWS or any(len(x.split()) > MAX_LINE_WORDS for x in lines):
        return []
    return lines


def _copied_lines(
    t: Transition, script: Sequence[edits.Edit], known: Set[str]
) -> list[str]:
    """Return the line of the state with most names and numbers of the written lines.

    Names and numbers are spelled with a digit or a capital letter, which the first word
    of a line may have without being a name; those of the action, and those that are
    `known`, need no other line, nor does a change of a number. A long line is not
    quoted: it would not stand near the effect.
    """
    written = [x for e in script for x in e.lines if isinstance(x, str)]
    lines = [words(_without_changes(x, t.state)) for x in written]
    new_words = {w for line in lines for w in line}
    names = {w for line in lines for w in line[1:] if w[0].isupper()}
    facts = names | {w for w in new_words if has_digit(w)}
    facts -= {*known, *words(t.action)}
    sources = [line for line in t.state if len(line.split()) <= MAX_LINE_WORDS]
    counts = [len(facts.intersection(words(line))) for line in sources]
    largest = max(counts, default=0)
    return [sources[counts.index(largest)]] if largest else []


def _without_changes(line: str, state: State) -> str:
    """Return the line without changes of numbers; words of the state are none."""
    in_state = {w for x in state for w in x.split(" ")}
    return " ".join(w if w in in_state else drop_changes(w) for w in line.split(" "))


def _changed_rows(
    t: Transition, script: Sequence[edits.Edit], columns: int
) -> list[str]:
    """Return the changed lines that begin with the same word as another one of them.

    They are rows of a grid. What a step from one to the other does depends on what
    stands there, and neither the place nor the action says it. Of many there are none.
    Where the columns stand there as well, a step mostly changes one line, which begins
    with the same word as another line of the state.
    """
    lines = [t.state[e.index] for e in script if e.index is not None]
    openings = [_opening(line) for line in (t.state if columns else lines)]
    return _if_few(line for line in lines if openings.count(_opening(line)) > 1)


def _opening(line: str) -> str:
    return line.partition(" ")[0]


def _new_words(t: Transition, edit: edits.Edit, max_words: int = 2) -> list[str]:
    old = set() if edit.index is None else set(t.state[edit.index].split())
    lines = [line for line in edit.lines if isinstance(line, str)]
    new = [w for line in lines for w in line.split() if w not in old]
    return new[::-1][:max_words] or ["nothing"]
