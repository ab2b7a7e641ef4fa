"""New tasks from valuable ones (papers.md Eq. 6).

valuable seeds -> propose (the experience model's own variations) -> form and duplicate
filters -> the pool, with lineage. Feasibility shows itself: a task that
every rollout of a group loses, twice, is retired.
"""

import collections
from collections.abc import Callable, Sequence

import numpy as np

from curriculum.pool import TaskPool
from curriculum.sampler import UNTRIED
from worldmodel.text import forms
from worldmodel.text.forms import Form
from worldmodel.text.records import State, Task

Propose = Callable[[Sequence[Task]], Sequence[Task | None]]


def seeds(pool: TaskPool, count: int, rng: np.random.Generator) -> list[Task]:
    """The most valuable tasks first; an untried one counts half of the most."""
    entries = pool.active(generated=False)
    jitter = rng.random(len(entries)) * 1e-6
    value = [
        (e.value if e.value is not None else 0.5 * UNTRIED) + j
        for e, j in zip(entries, jitter, strict=True)
    ]
    order = np.argsort(value)[::-1][:count]
    return [entries[i].task for i in order]


def fault(task: Task | None, form: Form, known: set[tuple[str, State]]) -> str | None:
    """Why a proposal is refused: form, copy, or None where it is good.

    A variation is another task of the same kind, with the same slots of state.
    """
    if task is None or not task.instruction or not task.initial_state:
        return "form"
    if len(set(task.initial_state)) < len(task.initial_state):
        return "form"
    if forms.fault(task.initial_state, form):
        return "form"
    if (task.instruction, task.initial_state) in known:
        return "duplicate"
    return None


def extend(
    pool: TaskPool, propose: Propose, count: int, rng: np.random.Generator
) -> dict[str, int]:
    """Ask for `count` variations, take the good ones in; counts what became of each."""
    if count == 0:
        return {}
    chosen = seeds(pool, count, rng)
    known = {(e.task.instruction, e.task.initial_state) for e in pool.entries.values()}
    families: dict[str, list[Task]] = {}
    for entry in pool.entries.values():
        if not entry.generated:
            families.setdefault(entry.task.family, []).append(entry.task)
    form = {
        family: forms.form_of(t.initial_state for t in tasks)
        for family, tasks in families.items()
    }
    verdicts: collections.Counter[str] = collections.Counter()
    for like, task in zip(chosen, propose(chosen), strict=True):
        reason = fault(task, form[like.family], known)
        if reason is None and task is not None and task.id in pool.entries:
            reason = "duplicate"
        verdicts[reason or "accepted"] += 1
        if reason is None and task is not None:
            known.add((task.instruction, task.initial_state))
            pool.add_generated(task)
    return dict(verdicts)
