"""Variation of tasks by renaming: the rule-based baseline of the generator.

tasks of a family -> the words that name things, and which could replace each other -> a
task with one or two of them renamed consistently in instruction and initial state.
It needs neither a model nor an environment, so the result may be unsolvable.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from worldmodel.data.records import Task
from worldmodel.text.task_options import with_renamed_words

Neighbours = Mapping[str, tuple[frozenset[str], frozenset[str]]]
"""The words seen before and after each word; "" is an end of a line."""

RENAMED = 2
"""The maximal number of words that change at once."""
LIKE = 0.5
"""The smallest overlap (intersection over union) of the neighbours of two words at
which one may replace the other."""


def _lines(task: Task) -> list[list[str]]:
    return [line.split() for line in (task.instruction, *task.initial_state)]


def neighbours(tasks: Iterable[Task]) -> Neighbours:
    """Return the words next to each word in instructions and initial states."""
    previous_words: dict[str, set[str]] = collections.defaultdict(set)
    next_words: dict[str, set[str]] = collections.defaultdict(set)
    for task in tasks:
        for words in _lines(task):
            ends = ["", *words, ""]
            for left, word, right in zip(ends, words, ends[2:], strict=False):
                previous_words[word].add(left)
                next_words[word].add(right)
    return {
        w: (frozenset(previous_words[w]), frozenset(next_words[w]))
        for w in previous_words
    }


def entities(tasks: Sequence[Task]) -> set[str]:
    """Return the words that some tasks have and others do not; the rest is form."""
    word_sets = [{w for words in _lines(t) for w in words} for t in tasks]
    return (
        set().union(*word_sets) - set.intersection(*word_sets) if word_sets else set()
    )


def stand_ins(
    task: Task, word: str, names: set[str], neighbour_sets: Neighbours
) -> list[str]:
    """Return the names that may replace `word`: those that occur in its contexts.

    Such a name was seen, in other tasks, next to all neighbours that `word` has in this
    one, and overlaps with its neighbours by LIKE in all: rooms stand between rooms as
    directions do, but no direction begins a line. A neighbour that is a name itself
    counts as any name, because each task has others.
    """

    def kinds(sides: tuple[frozenset[str], frozenset[str]]) -> set[tuple[int, str]]:
        return {
            (i, "a name" if w in names else w)
            for i, side in enumerate(sides)
            for w in side
        }

    required, word_kinds = kinds(neighbours([task])[word]), kinds(neighbour_sets[word])
    out = []
    for other in sorted(names - {word}):
        other_kinds = kinds(neighbour_sets[other])
        overlap = len(word_kinds & other_kinds) / len(word_kinds | other_kinds)
        if required <= other_kinds and overlap >= LIKE:
            out.append(other)
    return out


def with_renames(task: Task, renames: Mapping[str, str]) -> Task:
    """Return the task with pairs of words swapped everywhere.

    A swap keeps different words different, so that two rooms never become one.
    """
    swap = dict(renames) | {b: a for a, b in renames.items()}

    def swapped(line: str) -> str:
        return " ".join(swap.get(w, w) for w in line.split())

    instruction = swapped(task.instruction)
    state = tuple(map(swapped, task.initial_state))
    text = "\n".join((task.env, task.family, instruction, *state)).encode()
    name = hashlib.blake2b(text, digest_size=6).hexdigest()
    return dataclasses.replace(
        task,
        id=f"rule-{name}",
        instruction=instruction,
        initial_state=state,
        options=with_renamed_words(task.options, swap),
        split="generated",
        lineage=(*task.lineage, task.id),
    )


class Renaming:
    """Variations of tasks by consistent renaming, from the tasks of a run."""

    def __init__(self, tasks: Sequence[Task]):
        families: dict[str, list[Task]] = {}
        for task in tasks:
            families.setdefault(task.family, []).append(task)
        self._names = {k: entities(members) for k, members in families.items()}
        self._neighbours = {k: neighbours(members) for k, members in families.items()}

    def vary(self, task: Task, rng: np.random.Generator) -> Task | None:
        """Return a variation of the task, or None where it has nothing to rename."""
        names = self._names.get(task.family, set())
        neighbour_sets = self._neighbours.get(task.family, {})
        entities_of_task = sorted({w for words in _lines(task) for w in words} & names)
        renames: dict[str, str] = {}
        for i in rng.permutation(len(entities_of_task)):
            used_words = {*renames, *renames.values()}
            if entities_of_task[i] in used_words:
                continue
            candidates = [
                w
                for w in stand_ins(task, entities_of_task[i], names, neighbour_sets)
                if w not in used_words
            ]
            if candidates:
                renames[entities_of_task[i]] = candidates[
                    int(rng.integers(len(candidates)))
                ]
            if len(renames) == RENAMED:
                break
        return with_renames(task, renames) if renames else None
