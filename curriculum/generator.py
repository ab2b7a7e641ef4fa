"""Generate new tasks from valuable ones (DreamGym, Eq. 6).

valuable seeds -> proposals (variations by the experience model or by a rule) -> format
and duplicate filters -> feasibility test, if there is one -> the pool, with lineage. A
task that passes and cannot be solved is retired after two groups without a success.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from curriculum.feasibility import Feasible
from curriculum.pool import TaskPool
from worldmodel.data.records import State, Task
from worldmodel.data.seed_tasks import MAX_SEEDS, SeedTask
from worldmodel.text import state_format
from worldmodel.text.state_format import StateFormat
from worldmodel.text.task_variations import nearest_tasks

CANDIDATES = 128
"""The most valuable tasks of a family, among which similar ones are looked for."""


@runtime_checkable
class Proposer(Protocol):
    """Writes variations of tasks."""

    @property
    def starts_in_environment(self) -> bool:
        """Whether a real environment has begun all proposals.

        The format of their initial states is then right by definition.
        """
        ...

    @property
    def group_size(self) -> int:
        """How many seed tasks it reads for a new one, at most."""
        ...

    def __call__(
        self, groups: Sequence[Sequence[SeedTask]], /
    ) -> Sequence[Task | None]:
        """Return a new task from each group of seed tasks, None where there is none.

        It is of the family of the group's first task.
        """
        ...


@dataclasses.dataclass(frozen=True)
class FunctionProposer:
    """A function as a Proposer."""

    function: Callable[[Sequence[Sequence[SeedTask]]], Sequence[Task | None]]
    starts_in_environment: bool = False
    group_size: int = MAX_SEEDS

    def __call__(
        self, groups: Sequence[Sequence[SeedTask]], /
    ) -> Sequence[Task | None]:
        """See Proposer."""
        return self.function(groups)


class TaskFormat(NamedTuple):
    """What proposals must have in common with the seed tasks of their family.

    `state_format` is the format of initial states, None where there are too few to
    infer it. `instructed` says that all have an instruction, `distinct` that no initial
    state has the same line twice.
    """

    state_format: StateFormat | None
    instructed: bool
    distinct: bool


ANY = TaskFormat(None, False, False)
"""Accepts every initial state, such as those of a real environment."""


def task_format(tasks: Sequence[Task]) -> TaskFormat:
    """Return what the seed tasks of a family have in common."""
    starts = {t.initial_state for t in tasks}
    # One start alone would make all of its line keys part of the format.
    form = state_format.state_format(starts) if len(starts) > 1 else None
    distinct = all(len(set(s)) == len(s) for s in starts)
    return TaskFormat(form, all(t.instruction for t in tasks), distinct)


def seeds(pool: TaskPool, count: int, rng: np.random.Generator) -> list[Task]:
    """Return the `count` most valuable tasks, by expected value without optimism.

    Variations of an untried task would be guesses about a guess.
    """
    entries = pool.active(generated=False)
    jitter = rng.random(len(entries)) * 1e-6  # breaks ties at random, not by order
    order = np.argsort(pool.values(entries, optimism=0.0) + jitter)[::-1][:count]
    return [entries[i].task for i in order]


def seed_groups(
    pool: TaskPool, count: int, rng: np.random.Generator, size: int = MAX_SEEDS
) -> list[list[SeedTask]]:
    """Return the seeds of `count` proposals: a valuable task and similar ones.

    There are at most `size` in a group. Those behind the first are drawn among the
    NEAREST of the family's CANDIDATES most valuable tasks. Each has the share of its
    rollouts that were won.
    """
    firsts = seeds(pool, count, rng)
    if size == 1:
        return [[_with_success(pool, task)] for task in firsts]
    ranked: dict[str, list[Task]] = {}
    for task in seeds(pool, len(pool.entries), rng):
        ranked.setdefault(task.family, []).append(task)
    groups: dict[str, list[SeedTask]] = {}
    for family in dict.fromkeys(first.family for first in firsts):
        of_family = [first for first in firsts if first.family == family]
        # Behind the candidates may stand a first task that is less valuable.
        tasks = list(
            {t.id: t for t in (*ranked[family][:CANDIDATES], *of_family)}.values()
        )
        nearest = dict(zip((t.id for t in tasks), nearest_tasks(tasks), strict=True))
        for first in of_family:
            drawn = rng.permutation(np.array(nearest[first.id], int))[: size - 1]
            group = [first, *(tasks[i] for i in drawn)]
            groups[first.id] = [_with_success(pool, task) for task in group]
    return [groups[first.id] for first in firsts]


def _with_success(pool: TaskPool, task: Task) -> SeedTask:
    entry = pool.entries[task.id]
    tries = entry.rollouts
    return SeedTask(task, entry.successes / tries if tries else None)


def proposal_error(
    task: Task | None, task_format: TaskFormat, earlier_states: set[tuple[str, State]]
) -> str | None:
    """Return why a proposal is refused, "form" or "duplicate", or None.

    `earlier_states` holds (instruction, initial state) of the existing tasks.
    """
    if task is None or not task.initial_state:
        return "form"
    if task_format.instructed and not task.instruction:
        return "form"
    if task_format.distinct and len(set(task.initial_state)) < len(task.initial_state):
        return "form"
    if task_format.state_format is not None and state_format.format_error(
        task.initial_state, task_format.state_format
    ):
        return "form"
    if (task.instruction, task.initial_state) in earlier_states:
        return "duplicate"
    return None


def extend(
    pool: TaskPool,
    propose: Proposer,
    count: int,
    rng: np.random.Generator,
    *,
    feasible: Feasible | None = None,
    name: str = "model",
) -> dict[str, int]:
    """Propose `count` variations and add the good ones to the pool; return counts.

    The counts are by "accepted" or the reason of the refusal: "form", "duplicate", or
    what `feasible` returns. The pool sums them under the generator's `name`. The format
    of real starts is not checked.
    """
    if count == 0:
        return {}
    groups = seed_groups(pool, count, rng, propose.group_size)
    firsts = [group[0].task for group in groups]
    real = propose.starts_in_environment
    passed, counts = _filter_proposals(pool, firsts, propose(groups), real=real)
    reasons: Sequence[str | None] = [None] * len(passed)
    if feasible is not None and passed:
        reasons = feasible(passed)
    for task, reason in zip(passed, reasons, strict=True):
        counts[reason or "accepted"] += 1
        if reason is None:
            pool.add_generated(task)
    pool.count_proposals(name, counts)
    return dict(counts)


def _filter_proposals(
    pool: TaskPool,
    seed_tasks: Sequence[Task],
    proposals: Sequence[Task | None],
    *,
    real: bool,
) -> tuple[list[Task], collections.Counter[str]]:
    """Return the proposals that are well-formed and new, and the counts of refusals."""
    earlier_states = {
        (e.task.instruction, e.task.initial_state) for e in pool.entries.values()
    }
    families: dict[str, list[Task]] = {}
    for entry in pool.entries.values():
        if not entry.generated:
            families.setdefault(entry.task.family, []).append(entry.task)
    formats = {k: ANY if real else task_format(tasks) for k, tasks in families.items()}
    ids, passed = set(pool.entries), list[Task]()
    counts: collections.Counter[str] = collections.Counter()
    for seed_task, task in zip(seed_tasks, proposals, strict=True):
        reason = proposal_error(task, formats[seed_task.family], earlier_states)
        if reason is None and task is not None and task.id in ids:
            reason = "duplicate"
        if reason is not None or task is None:
            counts[reason or "form"] += 1
            continue
        earlier_states.add((task.instruction, task.initial_state))
        ids.add(task.id)
        passed.append(task)
    return passed, counts
