"""What episodes show of words that may stand for each other.

steps -> pairs of steps that are equal but for their names: do their results differ? ->
what is revealed: is it known by its names, or does one name bring a certain other one?
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.outcomes import number_text
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, State, Task, Transition
from worldmodel.text import identifiers
from worldmodel.text.novelty import is_reveal

MAX_DIFFERENCE = 0.01
"""How much more often such pairs may disagree than pairs with the same names."""
MAX_FIXED = 0.5
"""The share of equal actions in equal states of different tasks that may reveal the
same: above it, what is behind a door can be learnt by heart, by its names."""
MIN_FIXED_PAIRS = 10
"""Pairs of such reveals below which nothing is said of them."""
DETERMINED = 0.98
"""Share of the reveals by an action with one name that show another one, from which on
it belongs to the first, as the way back does to a direction, ..."""
MAX_BY_OTHERS = 0.85
"""... if fewer reveals by actions with other names of the group show it."""
MIN_REVEALS = 10
"""Reveals by actions with a name, from at least three tasks, to say so."""
MIN_FIXED = 3
"""Pairs in which a word stands opposite itself alone, from which on it is no name."""


class Step(NamedTuple):
    """A transition with its task, and the words of instruction, state and action."""

    task: Task
    transition: Transition
    query_words: frozenset[str]
    reveals: bool


def read_steps(episodes: Sequence[Episode]) -> list[Step]:
    """Return the steps of all episodes."""
    out = []
    for e in episodes:
        history = [e.task.instruction, *e.task.initial_state]
        for t in e.transitions:
            reveals = is_reveal(t, e.task.instruction, history)
            history += t.state
            texts = (e.task.instruction, *t.state, t.action)
            words = {w for text in texts for w in identifiers.words(text)}
            out.append(Step(e.task, t, frozenset(words), reveals))
    return out


def are_learnt_by_heart(steps: Sequence[Step], group: frozenset[str]) -> bool:
    """Return whether equal actions mostly reveal the same in different tasks."""
    results: dict[tuple[State, str], dict[str, State]] = {}
    equal = Rate()
    for task, t, query_words, reveals in steps:
        if not reveals or not query_words & group:
            continue
        before = results.setdefault((t.state, t.action), {})
        for name, result in before.items():
            if name != task.id:
                equal.add(result == t.next_state)
        before[task.id] = t.next_state
    return equal.count >= MIN_FIXED_PAIRS and equal.hits > MAX_FIXED * equal.count


def determine_each_other(steps: Sequence[Step], group: frozenset[str]) -> bool:
    """Return whether an action with one name always reveals a certain other one.

    So `west` shows a way `east`: exchanged one by one, they would not be opposites.
    """
    counts: Counter[str] = Counter()
    together: Counter[tuple[str, str]] = Counter()
    tasks: dict[str, set[str]] = {}
    for task, t, _, reveals in steps:
        if not reveals:
            continue
        in_action = group.intersection(identifiers.words(t.action))
        if len(in_action) != 1:
            continue
        (name,) = in_action
        before = set(t.state)
        new = (line for line in t.next_state if line not in before)
        new_words = (word for line in new for word in identifiers.words(line))
        new_names = group.intersection(new_words)
        counts[name] += 1
        tasks.setdefault(name, set()).add(task.id)
        together.update((name, other) for other in new_names - {name})
    totals: Counter[str] = Counter()
    for (_, other), count in together.items():
        totals[other] += count
    total = sum(counts.values())
    for (name, other), count in together.items():
        if counts[name] < MIN_REVEALS or len(tasks[name]) < 3:
            continue
        if count < DETERMINED * counts[name]:
            continue
        rest = max(total - counts[name] - counts[other], 1)
        if (totals[other] - count) / rest < MAX_BY_OTHERS:
            return True
    return False


class Pairs(NamedTuple):
    """Pairs of steps that are equal but for their names, and how many disagree.

    `other_names` counts pairs with different names, `same_names` those with the same
    ones. `movable_words` stood opposite another one, `fixed_words` in at least
    MIN_FIXED pairs opposite themselves alone.
    """

    other_names: Rate
    same_names: Rate
    movable_words: frozenset[str]
    fixed_words: frozenset[str]

    @property
    def agree(self) -> bool:
        """Whether pairs with other names disagree no more than those with the same."""
        other, same = self.other_names, self.same_names
        if not other.count:
            return False
        chance = same.hits / same.count if same.count else 0.0
        return other.hits / other.count <= chance + MAX_DIFFERENCE


def compare_places(steps: Sequence[Step], group: frozenset[str]) -> Pairs:
    """Return how often the results of actions depend on which name is where.

    Steps are compared whose task, state and action are equal once each name of the
    group is replaced by the order in which it first occurs there. Those that reveal
    something are left out: what they show cannot be computed from what was seen.
    """
    first: dict[tuple[str, ...], tuple[tuple[str, ...], tuple]] = {}
    other_names, same_names = Rate(), Rate()
    movable: set[str] = set()
    opposite_itself: Counter[str] = Counter()
    for task, t, query_words, reveals in steps:
        if reveals or not query_words & group:
            continue
        key, outcome, names = _by_places(task, t, group)
        if key not in first:
            first[key] = names, outcome
            continue
        names_before, outcome_before = first[key]
        if names == names_before:
            same_names.add(outcome != outcome_before)
            continue
        other_names.add(outcome != outcome_before)
        for one, other in zip(names_before, names, strict=True):
            if one == other:
                opposite_itself[one] += 1
            else:
                movable.update((one, other))
    fixed = {w for w, n in opposite_itself.items() if n >= MIN_FIXED} - movable
    return Pairs(other_names, same_names, frozenset(movable), frozenset(fixed))


def _by_places(
    task: Task, t: Transition, group: frozenset[str]
) -> tuple[tuple[str, ...], tuple[State, str, bool], tuple[str, ...]]:
    """Return the query and the outcome of a step with numbers in place of names.

    The third result are the names of the query, in their order.
    """
    places: dict[str, str] = {}
    query = (task.instruction, *t.state, t.action)
    key = tuple(_with_places(text, group, places) for text in query)
    names = tuple(places)
    state = tuple(_with_places(text, group, places) for text in t.next_state)
    return key, (state, number_text(t.reward), t.terminated), names


def _with_places(text: str, group: frozenset[str], places: dict[str, str]) -> str:
    """Return the text with a place for each name of the group; add new ones.

    A place begins with a character of private use, as no text does.
    """
    return identifiers.replace_words(
        text,
        lambda word: (
            places.setdefault(word, f"\ue000{len(places)}") if word in group else word
        ),
    )
