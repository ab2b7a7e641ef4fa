"""Self-reflection: why the expert's action beats another one (arXiv:2510.08558, Eq. 4).

expert episodes, branches -> cases -> a writer -> leak detectors -> a thought each.
A writer knows what the actions led to, and the policy will not. A thought leaks if it
mentions an outcome, an expert or a numbered choice, as the thoughts that models write
often do. A thought that leaks or is missing is replaced by one of a rule, which passes
every detector. Where the expert's action has no visible advantage the rule has no
reason either, and there is no thought.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from dreamgym.agent.policy import Situation
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Branch, Episode, State, Task, Transition
from worldmodel.reasoning.annotator import Report
from worldmodel.text.novelty import novel_words


class ReflectionCase(NamedTuple):
    """An expert's step, and what other actions led to in the same state."""

    task: Task
    past: tuple[str, ...]
    expert: Transition
    others: tuple[Transition, ...]
    past_states: tuple[State, ...] = ()

    @property
    def situation(self) -> Situation:
        """What the expert acted in."""
        return Situation(
            self.task,
            self.past,
            self.expert.state,
            self.expert.valid_actions,
            self.past_states,
        )


def reflection_cases(
    episodes: Sequence[Episode],
    branches: Sequence[Branch],
    *,
    per_state: int,
    alternatives: int = 1,
    seed: int,
) -> list[ReflectionCase]:
    """Return at most `per_state` cases of every state that has alternatives.

    Each holds as many `alternatives`, the last one of a state what is left of them; no
    alternative is in two cases.
    """
    rng = np.random.default_rng(seed)
    by_state: dict[tuple[str, int], list[Transition]] = {}
    for b in branches:
        by_state.setdefault((b.episode, b.step), []).append(b.transition)
    out = []
    for e in episodes:
        for step, t in enumerate(e.transitions):
            others = by_state.get((e.id, step), [])
            past = tuple(x.action for x in e.transitions[:step])
            states = tuple(x.state for x in e.transitions[:step])
            order = rng.permutation(len(others))[: per_state * alternatives]
            for start in range(0, len(order), alternatives):
                compared = order[start : start + alternatives]
                chosen = tuple(others[i] for i in compared)
                out.append(ReflectionCase(e.task, past, t, chosen, states))
    return out


# --- writers -----------------------------------------------------------------


@runtime_checkable
class Writer(Protocol):
    """Writes reflections; `report` holds the counts of the last call."""

    report: Report

    def write(self, cases: Sequence[ReflectionCase]) -> list[str | None]:
        """Return a thought for each case, or None where none is acceptable."""
        ...


class RuleWriter:
    """Writes reflections by a rule, without a model."""

    report = Report({})

    def write(self, cases: Sequence[ReflectionCase]) -> list[str | None]:
        """See Writer; None where `reflect` has no reason."""
        return [reflect(c.expert, c.others) for c in cases]


def reflections(
    writer: Writer, cases: Sequence[ReflectionCase]
) -> tuple[list[str | None], dict[str, int]]:
    """Return a thought for each case, or None, and counts.

    The counts are of thoughts `rewritten` by the rule, of cases `unexplained` even by
    the rule (None), of leaks by kind (`leak_KIND`), and those of the writer's report.
    """
    thoughts = writer.write(cases)
    counts = Counter(rewritten=0, unexplained=0, **no_leaks())
    out = []
    for case, thought in zip(cases, thoughts, strict=True):
        leaked = [] if thought is None else case_leaks(thought, case)
        counts.update(count_leaks(leaked))
        if thought is not None and not leaked:
            out.append(thought)
            continue
        out.append(reflect(case.expert, case.others))
        counts["unexplained" if out[-1] is None else "rewritten"] += 1
    counts.update(writer.report.counts)
    return out, dict(counts)


EFFECTS = (
    "would fail",
    "would change nothing",
    "would lead on",
    "would show something new",
    "would make progress",
    "would finish the task",
)
"""What an action does, as far as the next state shows; a later one is better."""


def reflect(expert: Transition, others: Sequence[Transition]) -> str | None:
    """Return a thought why an action is better than others, or None.

    The rule knows the real outcomes and words them as expectations, because the policy
    will not know them. It leaves out actions that are as good or better, as far as the
    next state shows: such a reason would teach the policy to act against them. None
    where all others are.
    """
    effect = _effect(expert)
    if not others:
        return f"{expert.action} {EFFECTS[effect]}"
    worse = [t for t in others if _effect(t) < effect]
    if not worse:
        return None
    reasons = " and ".join(f"{t.action} {EFFECTS[_effect(t)]}" for t in worse)
    return f"{reasons} so {expert.action} {EFFECTS[effect]}"


def _effect(t: Transition) -> int:
    """Return the index of a transition's effect in EFFECTS."""
    if t.success:
        return 5
    if t.reward > 0:
        return 4
    if t.terminated:  # without success: the task is lost
        return 0
    if t.state == t.next_state or is_invalid(t):
        return 1
    # A state that has grown shows more, since environments list what is in sight.
    return 3 if len(t.next_state) > len(t.state) else 2


# --- leaks -------------------------------------------------------------------

LEAK_KINDS = ("expert", "numbering", "outcome")
"""Kinds of leak: who acted, which numbered choice it was, what it led to."""

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
    # The words of the rule, and words that name nothing.
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
    """Return what a thought says that the agent cannot know, each as "KIND: words".

    Kinds are those of LEAK_KINDS. An outcome is a phrase about what has happened, or a
    word of a next state that is in no text the agent reads and in none of the actions
    (worldmodel.text.novelty), except numbers and words that name nothing. Phrases that
    the agent reads never leak, whatever they are: a coin may be golden. Upper and lower
    case are the same.

    Args:
      transition: the step that the thought leads to.
      others: what other actions led to in the same state.
    """
    actions = [transition.action, *(t.action for t in others)]
    texts = [task.instruction, *task.initial_state, *past, *transition.state, *actions]
    visible_texts = [" ".join(text.lower().split()) for text in texts]
    line = " ".join(thought.split())
    out = []
    for kind, pattern in _PATTERNS.items():
        for match in pattern.finditer(line):
            phrase = re.compile(rf"(?<!\w){re.escape(match[0].lower())}(?!\w)")
            if not any(phrase.search(text) for text in visible_texts):
                out.append(f"{kind}: {match[0].lower()}")
    visible_words = {w for text in visible_texts for w in _words(text)} | _COMMON
    outcome_words = set[str]()
    for t in (transition, *others):
        novel = novel_words(t.state, t.action, task.instruction, t.next_state)
        outcome_words |= {w for text in novel for w in _words(text)}
    hidden = outcome_words - visible_words
    leaked = [w for w in _words(line) if w in hidden and not w.isdigit()]
    return list(dict.fromkeys([*out, *(f"outcome: {w}" for w in leaked)]))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def case_leaks(thought: str, case: ReflectionCase) -> list[str]:
    """Return the `leaks` of a thought about a case."""
    c = case
    return leaks(thought, c.expert, c.others, task=c.task, past=c.past)


def count_leaks(leaked: Sequence[str]) -> Counter[str]:
    """Return the number of leaks of each kind, as `leak_KIND`."""
    return Counter(f"leak_{x.partition(':')[0]}" for x in leaked)


def no_leaks() -> dict[str, int]:
    """Return a count of 0 for each kind of leak."""
    return {f"leak_{kind}": 0 for kind in LEAK_KINDS}
