"""Sampling of the tasks that the next batch rolls out.

pool -> generated tasks, up to a share lambda -> seed tasks by value (or by proximity to
a target success), families in equal numbers, in the quotas of the lesson's task mixture
if there is one -> the batch. Untried tasks have the largest value.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float

from curriculum.config import CurriculumConfig
from curriculum.pool import Entry, TaskPool, TaskQuota
from curriculum.value import target_proximity
from worldmodel.data.records import Task


def pool_of(
    tasks: Sequence[Task], config: CurriculumConfig, *, seed: int = 0
) -> TaskPool:
    """Return a new pool of seed tasks; `seed` is that of the lexical clusters."""
    return TaskPool(tasks, patience=config.retire_after, values=config.value, seed=seed)


def task_weights(
    pool: TaskPool, entries: Sequence[Entry], config: CurriculumConfig
) -> Float[np.ndarray, " N"]:
    """Return the weight of each task: its value, or its proximity to the target."""
    if not config.target_success:
        return pool.values(entries)
    expected = pool.success(entries).tolist()
    near = [
        target_proximity(p, config.target_success, config.target_width)
        for p in expected
    ]
    return np.array(near, float)


def weights(
    task_weights: Float[np.ndarray, " N"], coverage: float | int
) -> Float[np.ndarray, " N"]:
    """Return sampling probabilities: proportional to weight, plus an even share."""
    even = np.full(len(task_weights), 1.0 / len(task_weights))
    # All tasks are always won or always lost: none is better to draw than another.
    if task_weights.sum() == 0:
        return even
    return (1.0 - coverage) * task_weights / task_weights.sum() + coverage * even


def sample(
    pool: TaskPool,
    count: int,
    config: CurriculumConfig,
    rng: np.random.Generator,
    *,
    task_mixture: Sequence[TaskQuota] = (),
    exclude: Collection[str] = (),
) -> list[Task]:
    """Return `count` tasks, at most lambda of them generated, distinct where possible.

    Tasks with ids in `exclude` are left out while there are others. Families share the
    seed tasks evenly. `task_mixture` (lessons.task_quotas) has the quotas of a lesson.
    A quota whose tasks are all retired has them back, because what it measures must
    still be played. A quota without tasks leaves its share to the others; without any,
    every active task may be drawn.

    Raises:
      ValueError: the count is below 1.
    """
    if count < 1:
        raise ValueError(f"count must be >= 1, got {count}")

    def in_mixture(entry: Entry) -> bool:
        return not task_mixture or any(
            share > 0 and fits(entry) for share, fits in task_mixture
        )

    def except_excluded(entries: list[Entry]) -> list[Entry]:
        return [e for e in entries if e.task.id not in exclude] or entries

    generated = except_excluded(
        [e for e in pool.active(generated=True) if in_mixture(e)]
    )
    num_generated = min(max_generated(config, count), len(generated))
    chosen = _draw(pool, generated, num_generated, config, rng)
    active = pool.active(generated=False)
    seeds = [e for e in pool.entries.values() if not e.generated]

    def matching(fits: Callable[[Entry], bool]) -> list[Entry]:
        fresh = [e for e in active if fits(e)]
        return except_excluded(fresh or [e for e in seeds if fits(e)])

    quotas = [(share, matching(fits)) for share, fits in task_mixture]
    quotas = [(share, entries) for share, entries in quotas if entries and share > 0]
    if not quotas:
        quotas = [(1.0, except_excluded(active))]
    counts = apportion([share for share, _ in quotas], count - num_generated)
    for number, (_, entries) in zip(counts, quotas, strict=True):
        chosen += _families(pool, entries, number, config, rng)
    return [e.task for e in chosen]


def max_generated(config: CurriculumConfig, count: int) -> int:
    """Return how many of a batch of `count` tasks may be generated ones."""
    # Rounded down: the share is a bound, and a batch of few tasks has none.
    return int(config.generated_share * count)


def apportion(shares: Sequence[float | int], count: int) -> list[int]:
    """Return integers in these shares that sum to `count` (largest remainders)."""
    exact = np.asarray(shares, float) / np.sum(shares) * count
    out = np.floor(exact + 1e-9).astype(int)  # 1e-9: 0.29 * 100 is just short of 29
    order = np.argsort(-(exact - out), kind="stable")
    out[order[: count - int(out.sum())]] += 1
    return out.tolist()


def _families(
    pool: TaskPool,
    entries: Sequence[Entry],
    count: int,
    config: CurriculumConfig,
    rng: np.random.Generator,
) -> list[Entry]:
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.task.family, []).append(entry)
    # Shuffled, so that the families which get one task more change from batch to batch.
    names = sorted(families)
    order = [names[i] for i in rng.permutation(len(names))]
    out: list[Entry] = []
    for i, name in enumerate(order):
        share = count // len(order) + (i < count % len(order))
        out += _draw(pool, families[name], share, config, rng)
    return out


def _draw(
    pool: TaskPool,
    entries: Sequence[Entry],
    count: int,
    config: CurriculumConfig,
    rng: np.random.Generator,
) -> list[Entry]:
    if count == 0:
        return []
    # With replacement only where there are too few tasks that can be drawn at all.
    probabilities = weights(task_weights(pool, entries, config), config.uniform_share)
    positive = int((probabilities > 0).sum())
    index = rng.choice(len(entries), count, p=probabilities, replace=count > positive)
    return [entries[i] for i in index]
