"""Which tasks the next batch rolls out.

pool -> seed tasks by value and age, one family as often as another -> generated tasks
up to a share lambda -> the batch. Tasks never tried count with the largest value.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from curriculum.pool import Entry, TaskPool
from worldmodel.text.records import Task

UNTRIED = 0.25
"""The largest variance a 0/1 outcome can have: what an untried task may be worth."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
    """How tasks are chosen and invented.

    `generated_share` is the paper's lambda; `coverage` the share of the weight that is
    spread evenly, so that no task is forgotten; `proposals` variations are asked for
    each update; `patience` all-same groups retire a task.
    """

    generated_share: float = 0.125
    coverage: float = 0.2
    proposals: int = 4
    patience: int = 2

    def __post_init__(self):
        for name in ("generated_share", "coverage"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        if self.proposals < 0 or self.patience < 1:
            raise ValueError(
                "proposals must be >= 0 and patience >= 1, got "
                f"{self.proposals} and {self.patience}"
            )


def weights(entries: Sequence[Entry], coverage: float) -> np.ndarray:
    """Sampling probabilities, float [n]: value-weighted plus an even share."""
    value = np.array([UNTRIED if e.value is None else e.value for e in entries])
    even = np.full(len(entries), 1.0 / len(entries))
    if value.sum() == 0:
        return even
    return (1.0 - coverage) * value / value.sum() + coverage * even


def sample(
    pool: TaskPool, count: int, config: CurriculumConfig, rng: np.random.Generator
) -> list[Task]:
    """`count` tasks, at most lambda of them generated; distinct where the pool allows.

    Families share the seed tasks evenly.
    """
    if count < 1:
        raise ValueError(f"count must be >= 1, got {count}")
    invented = pool.active(generated=True)
    quota = min(int(config.generated_share * count), len(invented))
    chosen = _draw(invented, quota, config, rng)
    families: dict[str, list[Entry]] = {}
    for entry in pool.active(generated=False):
        families.setdefault(entry.task.family, []).append(entry)
    left = count - quota
    names = sorted(families)
    order = [names[i] for i in rng.permutation(len(names))]
    for i, name in enumerate(order):
        share = left // len(order) + (i < left % len(order))
        chosen += _draw(families[name], share, config, rng)
    return [e.task for e in chosen]


def _draw(
    entries: Sequence[Entry],
    count: int,
    config: CurriculumConfig,
    rng: np.random.Generator,
) -> list[Entry]:
    if count == 0:
        return []
    p = weights(entries, config.coverage)
    positive = int((p > 0).sum())
    index = rng.choice(len(entries), count, p=p, replace=count > positive)
    return [entries[i] for i in index]
