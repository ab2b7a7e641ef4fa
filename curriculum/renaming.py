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
    """What stands beside each word in instructions and initial states."""
    before: dict[str, set[str]] = collections.defaultdict(set)
    after: dict[str, set[str]] = collections.defaultdict(set)
    for task in tasks:
        for words in _lines(task):
            ends = ["", *words, ""]
            for left, word, right in zip(ends, words, ends[2:], strict=False):
                before[word].add(left)
                after[word].add(right)
    return {w: (frozenset(before[w]), frozenset(after[w])) for w in before}


def entities(tasks: Sequence[Task]) -> set[str]:
    """Words that some tasks hold and others do not: those in all are the form's."""
    held = [{w for words in _lines(t) for w in words} for t in tasks]
    return set().union(*held) - set.intersection(*held) if held else set()


def stand_ins(task: Task, word: str, names: set[str], known: Neighbours) -> list[str]:
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

    here, mine = kinds(neighbours([task])[word]), kinds(known[word])
    out = []
    for other in sorted(names - {word}):
        theirs = kinds(known[other])
        alike = len(mine & theirs) / len(mine | theirs)
        if here <= theirs and alike >= LIKE:
            out.append(other)
    return out


def renamed(task: Task, renames: Mapping[str, str]) -> Task:
    """The task with words exchanged throughout: `a` becomes `b`, and `b` becomes `a`.

    An exchange keeps what was different different, so two rooms never become one.
    """
    swap = dict(renames) | {b: a for a, b in renames.items()}

    def told(line: str) -> str:
        return " ".join(swap.get(w, w) for w in line.split())

    instruction = told(task.instruction)
    state = tuple(map(told, task.initial_state))
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
        self._names = {k: entities(some) for k, some in families.items()}
        self._known = {k: neighbours(some) for k, some in families.items()}

    def vary(self, task: Task, rng: np.random.Generator) -> Task | None:
        """A variation of the task, None where nothing in it can be renamed."""
        names = self._names.get(task.family, set())
        known = self._known.get(task.family, {})
        here = sorted({w for words in _lines(task) for w in words} & names)
        renames: dict[str, str] = {}
        for i in rng.permutation(len(here)):
            taken = {*renames, *renames.values()}
            if here[i] in taken:
                continue
            some = [w for w in stand_ins(task, here[i], names, known) if w not in taken]
            if some:
                renames[here[i]] = some[int(rng.integers(len(some)))]
            if len(renames) == RENAMED:
                break
        return renamed(task, renames) if renames else None
