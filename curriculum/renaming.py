"""Rule-based variation of tasks: the baseline of the generator, and free.

tasks of a family -> which words name things, and which could stand for each other ->
a task with one or two of them renamed throughout, instruction and start alike.
No model and no environment is asked, so nothing says that the result can be solved.
"""

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from worldmodel.data.records import Task

Neighbours = Mapping[str, tuple[frozenset[str], frozenset[str]]]
"""For each word, what was seen before it and after it; "" is an end of a line."""

RENAMED = 2
"""Words that change at once, at most."""
LIKE = 0.5
"""The least share of the neighbours of two words that both of them have."""


def _lines(task: Task) -> list[list[str]]:
    return [line.split() for line in (task.instruction, *task.initial_state)]


def neighbours(tasks: Iterable[Task]) -> Neighbours:
    """Return the words next to each word in instructions and initial states."""
    preceding: dict[str, set[str]] = collections.defaultdict(set)
    following: dict[str, set[str]] = collections.defaultdict(set)
    for task in tasks:
        for words in _lines(task):
            ends = ["", *words, ""]
            for left, word, right in zip(ends, words, ends[2:], strict=False):
                preceding[word].add(left)
                following[word].add(right)
    return {w: (frozenset(preceding[w]), frozenset(following[w])) for w in preceding}


def entities(tasks: Sequence[Task]) -> set[str]:
    """Words that some tasks hold and others do not: those in all are the form's."""
    word_sets = [{w for words in _lines(t) for w in words} for t in tasks]
    return (
        set().union(*word_sets) - set.intersection(*word_sets) if word_sets else set()
    )


def stand_ins(
    task: Task, word: str, names: set[str], neighbour_sets: Neighbours
) -> list[str]:
    """Names that may take the place of `word`: such as were seen in its company.

    They were seen, elsewhere, between all the neighbours that it has here, and theirs
    are LIKE its own on the whole: rooms stand between rooms as directions do, but no
    direction stands at the beginning of a line. A neighbour that is a name itself
    counts as any name, for each task has others.
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
    """The task with words exchanged throughout: `a` becomes `b`, and `b` becomes `a`.

    An exchange keeps what was different different, so two rooms never become one.
    """
    swap = dict(renames) | {b: a for a, b in renames.items()}

    def swapped(line: str) -> str:
        return " ".join(swap.get(w, w) for w in line.split())

    instruction = swapped(task.instruction)
    state = tuple(map(swapped, task.initial_state))
    text = "\n".join((task.env, task.family, instruction, *state)).encode()
    name = hashlib.blake2b(text, digest_size=6).hexdigest()
    return dataclasses.replace(
        task, id=f"rule-{name}", instruction=instruction, initial_state=state,
        options={}, split="generated", lineage=(*task.lineage, task.id),
    )  # fmt: skip


class Renaming:
    """Variations of tasks by consistent renaming; made from the tasks of a run."""

    def __init__(self, tasks: Sequence[Task]):
        families: dict[str, list[Task]] = {}
        for task in tasks:
            families.setdefault(task.family, []).append(task)
        self._names = {k: entities(members) for k, members in families.items()}
        self._neighbours = {k: neighbours(members) for k, members in families.items()}

    def vary(self, task: Task, rng: np.random.Generator) -> Task | None:
        """A variation of the task, None where nothing in it can be renamed."""
        names = self._names.get(task.family, set())
        neighbour_sets = self._neighbours.get(task.family, {})
        entities_of_task = sorted({w for words in _lines(task) for w in words} & names)
        renames: dict[str, str] = {}
        for i in rng.permutation(len(entities_of_task)):
            taken = {*renames, *renames.values()}
            if entities_of_task[i] in taken:
                continue
            candidates = [
                w
                for w in stand_ins(task, entities_of_task[i], names, neighbour_sets)
                if w not in taken
            ]
            if candidates:
                renames[entities_of_task[i]] = candidates[
                    int(rng.integers(len(candidates)))
                ]
            if len(renames) == RENAMED:
                break
        return with_renames(task, renames) if renames else None
