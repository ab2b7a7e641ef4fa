"""Variation of tasks by renaming: the rule-based baseline of the generator.

tasks of a family -> the words that name things, and which could replace each other -> a
task with one or two of them renamed consistently in instruction and initial state.
It needs neither a model nor an environment, so the result may be unsolvable.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from worldmodel.data.records import Task
from worldmodel.text import identifiers
from worldmodel.text.names import word_contexts
from worldmodel.text.task_options import with_renamed_words

Contexts = Mapping[str, frozenset[tuple[int, str]]]
"""What stands before and after each word (worldmodel.text.names.word_contexts)."""

RENAMED = 2
"""The maximal number of words that change at once."""
LIKE = 0.5
"""The smallest overlap (intersection over union) of the neighbours of two words at
which one may replace the other."""


def _lines(task: Task) -> list[str]:
    return [task.instruction, *task.initial_state]


def _words(task: Task) -> set[str]:
    return {w for line in _lines(task) for w in identifiers.words(line)}


def contexts_of(tasks: Iterable[Task], names: set[str]) -> Contexts:
    """Return what stands next to the names in instructions and initial states."""
    lines = (line for task in tasks for line in _lines(task))
    return word_contexts(lines, frozenset(names))


def entities(tasks: Sequence[Task]) -> set[str]:
    """Return the words that some tasks have and others do not; the rest is form."""
    word_sets = [_words(t) for t in tasks]
    return (
        set().union(*word_sets) - set.intersection(*word_sets) if word_sets else set()
    )


def stand_ins(task: Task, word: str, names: set[str], contexts: Contexts) -> list[str]:
    """Return the names that may replace `word`: those that occur in its contexts.

    Such a name was seen, in other tasks, next to all neighbours that `word` has in this
    one, and overlaps with its neighbours by LIKE in all: rooms stand between rooms as
    directions do, but no direction begins a line.
    """
    required = contexts_of([task], names)[word]
    out = []
    for other in sorted(names - {word}):
        shared = contexts[word] & contexts[other]
        overlap = len(shared) / len(contexts[word] | contexts[other])
        if required <= contexts[other] and overlap >= LIKE:
            out.append(other)
    return out


def with_renames(task: Task, renames: Mapping[str, str]) -> Task:
    """Return the task with pairs of words swapped everywhere.

    A swap keeps different words different, so that two rooms never become one.
    """
    swap = dict(renames) | {b: a for a, b in renames.items()}

    def swapped(line: str) -> str:
        return identifiers.replace_words(line, lambda w: swap.get(w, w))

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
        self._contexts = {
            k: contexts_of(members, self._names[k]) for k, members in families.items()
        }

    def vary(self, task: Task, rng: np.random.Generator) -> Task | None:
        """Return a variation of the task, or None where it has nothing to rename."""
        names = self._names.get(task.family, set())
        contexts = self._contexts.get(task.family, {})
        entities_of_task = sorted(_words(task) & names)
        renames: dict[str, str] = {}
        for i in rng.permutation(len(entities_of_task)):
            used_words = {*renames, *renames.values()}
            if entities_of_task[i] in used_words:
                continue
            candidates = [
                w
                for w in stand_ins(task, entities_of_task[i], names, contexts)
                if w not in used_words
            ]
            if candidates:
                renames[entities_of_task[i]] = candidates[
                    int(rng.integers(len(candidates)))
                ]
            if len(renames) == RENAMED:
                break
        return with_renames(task, renames) if renames else None
