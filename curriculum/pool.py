"""The pool of tasks, with the outcomes, value, age and lineage of each.

outcomes of a batch -> pooled by cluster -> values, retirement. Plain data, saved as
JSON, so that a run resumes with the same pool.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from curriculum import clusters
from curriculum.config import ValueConfig
from curriculum.value import (
    LARGEST,
    decayed,
    optimistic,
    posterior,
    task_value,
)
from worldmodel.data.records import Task

Outcomes = Sequence[tuple[str, Sequence[bool]]]
"""Task ids, each with the scored successes of its rollouts."""


@dataclasses.dataclass
class Entry:
    """A task and the outcomes of its rollouts.

    `won` and `lost` are decayed to `last_update`; `successes` and `rollouts` are not.
    `value` is the variance of the last group of its cluster, at update `valued_at`.
    `uninformative_groups` counts groups in a row with equal outcomes, `unscored_groups`
    those without a scored rollout.
    """

    task: Task
    generated: bool = False
    cluster: str = ""
    groups: int = 0
    successes: int = 0
    rollouts: int = 0
    won: float = 0.0
    lost: float = 0.0
    value: float | None = None
    valued_at: int = -1
    uninformative_groups: int = 0
    unscored_groups: int = 0
    last_update: int = -1
    retired: bool = False


TaskQuota = tuple[float, Callable[[Entry], bool]]
"""A share of a batch, and the predicate of tasks that may fill it."""


class TaskPool:
    """Tasks by id, in order of addition.

    `next_update` is the number of the next update, `proposal_counts` holds by generator
    what became of its proposals, and `resets` counts the resets of real environments
    that these took.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        patience: int = 2,
        values: ValueConfig | None = None,
        seed: int = 0,
    ):
        """Build a pool of seed tasks.

        Args:
          patience: uninformative groups in a row after which a task is retired.
          seed: the seed of the lexical clusters.

        Raises:
          ValueError: there are no tasks, an id is repeated, or patience is below 1.
        """
        if patience < 1:
            raise ValueError(f"patience must be >= 1, got {patience}")
        self._patience, self._seed = patience, seed
        self._values = ValueConfig() if values is None else values
        self.next_update = self.resets = 0
        self.proposal_counts: dict[str, dict[str, int]] = {}
        self.entries: dict[str, Entry] = {}
        for task in tasks:
            self._add(Entry(task))
        if not self.entries:
            raise ValueError("a pool needs at least one task")
        self._set_clusters()
        for entry in self.entries.values():
            entry.cluster = self._cluster(entry.task)

    def _add(self, entry: Entry) -> None:
        if entry.task.id in self.entries:
            raise ValueError(f"task id {entry.task.id!r} is in the pool already")
        self.entries[entry.task.id] = entry

    def _set_clusters(self) -> None:
        c = self._values
        seeds = [e.task for e in self.entries.values() if not e.generated]
        self._cluster = clusters.namer(c.pooling, seeds, c.clusters, seed=self._seed)

    def add_generated(self, task: Task) -> None:
        """Add a generated task; its id must be new."""
        self._add(Entry(task, generated=True, cluster=self._cluster(task)))

    def active(self, *, generated: bool | None = None) -> list[Entry]:
        """Return the tasks that are not retired, generated or not if given."""
        return [
            e
            for e in self.entries.values()
            if not e.retired and generated in (None, e.generated)
        ]

    # --- outcomes -------------------------------------------------------------

    def record_batch(self, outcomes: Outcomes, update: int) -> None:
        """Record the scored outcomes of a batch of groups, pooled by cluster.

        A task is retired when its last `patience` batches were all won or all lost, or
        had no scored rollout, because nothing can be learned from it. A single outcome
        has no variance: with one rollout a task (PPO), the outcomes of its cluster in
        the batch decide, of which there must be two.

        Raises:
          ValueError: a task is not in the pool; then nothing is recorded.
        """
        outcomes = [(task_id, list(successes)) for task_id, successes in outcomes]
        unknown = [x for x, _ in outcomes if x not in self.entries]
        if unknown:
            raise ValueError(f"no tasks of this pool: {unknown[:3]}")
        pooled: dict[str, list[bool]] = collections.defaultdict(list)
        outcomes_by_task: dict[str, list[bool]] = {}
        for task_id, successes in outcomes:
            entry = self.entries[task_id]
            self._count_rollouts(entry, successes, update)
            if successes:
                pooled[entry.cluster] += successes
                outcomes_by_task.setdefault(task_id, []).extend(successes)
                entry.unscored_groups = 0
            else:
                entry.unscored_groups += 1
                entry.retired = entry.retired or entry.unscored_groups >= self._patience
        # A single outcome has no variance, which is not a variance of 0.
        values = {k: task_value(x) for k, x in pooled.items() if len(x) > 1}
        for entry in self.entries.values() if values else ():
            if entry.cluster not in values:
                continue
            value = values[entry.cluster]
            entry.value, entry.valued_at = value, update
        for task_id, successes in outcomes_by_task.items():
            entry = self.entries[task_id]
            compared = successes if len(successes) > 1 else pooled[entry.cluster]
            if len(compared) > 1:
                entry.uninformative_groups += 1
                if task_value(compared) > 0.0:
                    entry.uninformative_groups = 0
                entry.retired = entry.uninformative_groups >= self._patience
        # Values decay by the number of updates, also for tasks that were not drawn.
        self.next_update = max(self.next_update, update + 1)
        # Without seed tasks nothing could be drawn, and nothing varied.
        if not any(not e.retired for e in self.entries.values() if not e.generated):
            self._readmit_seeds()

    def _count_rollouts(
        self, entry: Entry, successes: Sequence[bool], update: int
    ) -> None:
        weight = self._weight(update - entry.last_update)
        won = sum(successes)
        entry.won = entry.won * weight + won
        entry.lost = entry.lost * weight + len(successes) - won
        entry.last_update = update
        entry.groups += bool(successes)
        entry.rollouts += len(successes)
        entry.successes += won

    def _weight(self, updates: int) -> float:
        return self._values.decay ** max(updates, 0)

    def _readmit_seeds(self) -> None:
        """Readmit all seed tasks when all are retired: the policy has changed since."""
        for entry in self.entries.values():
            if not entry.generated:
                self._readmit(entry)

    def readmit_unsolved(self) -> None:
        """Readmit retired tasks without a success, because the step limit has grown."""
        for entry in self.entries.values():
            if entry.retired and not entry.successes:
                self._readmit(entry)

    def _readmit(self, entry: Entry) -> None:
        entry.retired, entry.uninformative_groups, entry.unscored_groups = False, 0, 0
        # As if untried: these outcomes are what retired it, and would do so again.
        entry.value, entry.won, entry.lost = None, 0.0, 0.0

    def count_proposals(
        self, generator: str, proposal_counts: Mapping[str, int]
    ) -> None:
        """Add to the counts of what became of a generator's proposals."""
        counts = collections.Counter(self.proposal_counts.get(generator, {}))
        counts.update(proposal_counts)
        self.proposal_counts[generator] = dict(counts)

    # --- values ---------------------------------------------------------------

    def values(
        self, entries: Sequence[Entry], *, optimism: float | int | None = None
    ) -> Float[np.ndarray, " N"]:
        """Return the value of each task, in [0, 1/4].

        `optimism` overrides the setting. Without optimism an untried task has half the
        maximal value under the group estimator, and the prior's expectation under the
        posterior.
        """
        c = self._values
        deviations = c.optimism if optimism is None else optimism
        if c.estimator == "posterior":
            counts = self._counts()
            spreads = [
                posterior(*counts[e.cluster], prior=c.beta_prior) for e in entries
            ]
            return np.array([optimistic(s, deviations) for s in spreads], float)
        untried = LARGEST if deviations else 0.5 * LARGEST
        return np.array(
            [
                untried
                if e.value is None
                else decayed(
                    e.value, untried, self._weight(self.next_update - e.valued_at)
                )
                for e in entries
            ],
            float,
        )

    def success(self, entries: Sequence[Entry]) -> Float[np.ndarray, " N"]:
        """Return the expected success of each task's cluster, 1/2 where unknown."""
        counts, prior = self._counts(), self._values.beta_prior
        pairs = [counts[e.cluster] for e in entries]
        return np.array([(prior + w) / (2 * prior + w + x) for w, x in pairs], float)

    def _counts(self) -> dict[str, tuple[float, float]]:
        """Return rollouts won and lost by cluster, decayed to the next update."""
        out: dict[str, tuple[float, float]] = {}
        for e in self.entries.values():
            won, lost = out.get(e.cluster, (0.0, 0.0))
            weight = self._weight(self.next_update - e.last_update)
            out[e.cluster] = (won + e.won * weight, lost + e.lost * weight)
        return out

    def acceptance(self) -> dict[str, float]:
        """Return the share of accepted proposals by generator."""
        return {
            name: counts.get("accepted", 0) / max(sum(counts.values()), 1)
            for name, counts in self.proposal_counts.items()
        }

    def state(self) -> dict[str, Any]:
        """Return the pool as JSON."""
        return {
            "next_update": self.next_update,
            "resets": self.resets,
            "proposal_counts": {k: dict(v) for k, v in self.proposal_counts.items()},
            "entries": [dataclasses.asdict(e) for e in self.entries.values()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace the pool by what `state()` returned."""
        self.next_update, self.resets = state["next_update"], state["resets"]
        self.proposal_counts = {k: dict(v) for k, v in state["proposal_counts"].items()}
        self.entries = {}
        for row in state["entries"]:
            task = row["task"] | {
                "initial_state": tuple(row["task"]["initial_state"]),
                "lineage": tuple(row["task"]["lineage"]),
            }
            self._add(Entry(**row | {"task": Task(**task)}))
        self._set_clusters()
