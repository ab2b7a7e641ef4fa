"""Self-reflections: why the expert's action beats another one (2510.08558, eq. 4).

expert episodes, branches -> moments -> a writer -> leak detectors -> a thought each.
The writer knows what the actions led to, and the policy will not: so a thought that
tells it, or tells of experts and of numbered choices, leaks (about one in six written
by a model does, and one in four tells outcomes: papers.md 2.5). A thought that leaks,
or that no writer could write, is the rule's, which passes every detector; where the
expert's action shows nothing better at once the rule has no reason, and there is none.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Branch, Episode, Task, Transition
from worldmodel.reasoning.annotator import Report
from worldmodel.text.novelty import novel_words


class Moment(NamedTuple):
    """Where an expert acted, and what other actions led to there."""

    task: Task
    past: tuple[str, ...]
    expert: Transition
    others: tuple[Transition, ...]


def moments(
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
    *,
    per_state: int,
    seed: int,
) -> list[Moment]:
    """One moment for each of at most `per_state` alternatives of every state."""
    rng = np.random.default_rng(seed)
    at: dict[tuple[str, int], list[Transition]] = {}
    for b in branches:
        at.setdefault((b.episode, b.step), []).append(b.transition)
    out = []
    for e in episodes:
        for step, t in enumerate(e.transitions):
            others = at.get((e.id, step), [])
            past = tuple(x.action for x in e.transitions[:step])
            for i in rng.permutation(len(others))[:per_state]:
                out.append(Moment(e.task, past, t, (others[i],)))
    return out


# --- writers -----------------------------------------------------------------


@runtime_checkable
class Writer(Protocol):
    """Anything that writes reflections. `report` tells of the last call."""

    report: Report

    def write(self, moments: Sequence[Moment]) -> list[str | None]:
        """A thought a moment, None where it has none that will do."""
        ...


class RuleWriter:
    """Reflections by rule: no model, no cost."""

    report = Report({})

    def write(self, moments: Sequence[Moment]) -> list[str | None]:
        """See Writer; None where `reflect` knows no reason."""
        return [reflect(m.expert, m.others) for m in moments]


def reflections(
    writer: Writer, moments: Sequence[Moment]
) -> tuple[list[str | None], dict[str, int]]:
    """A thought a moment, None where even the rule knows no reason; and counts.

    `rewritten` by the rule, `unexplained`: without a thought, `leak_KIND` found.
    """
    written = writer.write(moments)
    counts = Counter(rewritten=0, unexplained=0, **no_leaks())
    out = []
    for m, thought in zip(moments, written, strict=True):
        found = [] if thought is None else leaks_of(thought, m)
        counts.update(tally(found))
        good = thought is not None and not found
        last = thought if good else reflect(m.expert, m.others)
        counts["rewritten"] += not good and last is not None
        counts["unexplained"] += last is None
        out.append(last)
    counts.update(writer.report.counts)
    return out, dict(counts)


EFFECTS = (
    "would fail", "would change nothing", "would lead on", "would show something new",
    "would make progress", "would finish the task",
)  # fmt: skip
"""What an action does, as far as one sees at once; the better the later."""


def reflect(expert: Transition, others: Sequence[Transition]) -> str | None:
    """A thought why the first action beats the others, from their real outcomes.

    The writer knows the outcomes; the words anticipate, since the policy will not. None
    where the first of the others does as well or better, by what one sees at once: a
    reason that speaks for both, or for the other, would teach to act against it.
    """
    gain = _effect(expert)
    if not others:
        return f"{expert.action} {EFFECTS[gain]}"
    worse = _effect(others[0])
    if worse >= gain:
        return None
    return f"{others[0].action} {EFFECTS[worse]} so {expert.action} {EFFECTS[gain]}"


def _effect(t: Transition) -> int:
    """Which of EFFECTS."""
    if t.success:
        return 5
    if t.reward > 0:
        return 4
    if t.terminated:
        return 0
    if t.state == t.next_state or is_invalid(t):
        return 1
    return 3 if len(t.next_state) > len(t.state) else 2


# --- leaks -------------------------------------------------------------------

KINDS = ("expert", "numbering", "outcome")
"""Kinds of leak: who showed it, which choice it was, what came of it."""

_PATTERNS = {
    "expert": re.compile(
        r"\b(experts?|demonstrat\w*|gold(en)?|ground[- ]truth|annotat\w*|trajector\w*|"
        r"(optimal|correct|reference|given|provided|chosen|preferred)"
        r" (action|answer|choice|move|option|step|path|solution))\b",
        re.IGNORECASE,
    ),
    "numbering": re.compile(  # no letter I: "the options I have"
        r"\b(?i:actions?|options?|candidates?|alternatives?|choices?|states?)"
        r"[ _-]*(?i:#|no\.?|number)?[ (\[]*"
        r"(\d+|[A-HJ-Z]|(?i:one|two|three|four|five))(?!\w)|"
        r"\b(?i:first|second|third|fourth|fifth)"
        r" (?i:option|candidate|alternative|choice)\b"
    ),
    "outcome": re.compile(
        r"\b(resulted in|turned out|in hindsight|ended up|as (it|was) (happened|shown)|"
        r"(resulting|next) states?)\b",
        re.IGNORECASE,
    ),
}
_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
_COMMON = frozenset(
    # What the rule says, and words without a thing they name.
    "would finish the task make progress fail change nothing show something new lead "
    "on so a an and are as at be been being but by can could did do does done for from "
    "go had has have here how i if in into is it its just less may me might more must "
    "my no nor not now of off only or other our out over rather should some still such "
    "than that their them then there these they this those to too up was we were what "
    "when where which while who why will with without yet you your first next last "
    "before after already again because since also need needs needed want help helps "
    "take takes get gets see sees find look looks try move moves act action closer "
    "away back wrong good better worse useful yes ok".split()
)


def leaks(
    thought: str,
    transition: Transition,
    others: Sequence[Transition],
    *,
    task: Task,
    past: Sequence[str] = (),
) -> list[str]:
    """What a thought tells that the agent cannot know, each as "KIND: words".

    Kinds are those of KINDS. Outcomes are words of a next state found nowhere in task,
    history, state or an action in question (worldmodel.reasoning.reveals), but for
    numbers and words that name nothing; and phrases that tell of what has happened.
    Words that stand in what the agent knows never leak, whatever they are: a coin may
    be golden. Letters' case does not matter.
    """
    actions = [transition.action, *(t.action for t in others)]
    texts = [task.instruction, *task.initial_state, *past, *transition.state, *actions]
    known = [" ".join(text.lower().split()) for text in texts]
    said = " ".join(thought.split())
    out = []
    for kind, pattern in _PATTERNS.items():
        for found in pattern.finditer(said):
            phrase = re.compile(rf"(?<!\w){re.escape(found[0].lower())}(?!\w)")
            if not any(phrase.search(text) for text in known):
                out.append(f"{kind}: {found[0].lower()}")
    words = {w for text in known for w in _words(text)} | _COMMON
    told = set[str]()
    for t in (transition, *others):
        new = novel_words(t.state, t.action, task.instruction, t.next_state)
        told |= {w for text in new for w in _words(text)}
    named = [w for w in _words(said) if w in told - words and not w.isdigit()]
    return list(dict.fromkeys([*out, *(f"outcome: {w}" for w in named)]))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def leaks_of(thought: str, moment: Moment) -> list[str]:
    """`leaks` of a thought at a moment."""
    m = moment
    return leaks(thought, m.expert, m.others, task=m.task, past=m.past)


def tally(found: Sequence[str]) -> Counter[str]:
    """How many leaks of each kind, as `leak_KIND`."""
    return Counter(f"leak_{x.partition(':')[0]}" for x in found)


def no_leaks() -> dict[str, int]:
    """The count of every kind, all 0."""
    return {f"leak_{kind}": 0 for kind in KINDS}
