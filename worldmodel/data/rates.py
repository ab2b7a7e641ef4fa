"""Means on the host: of weighted cases, and of the largest values."""

import dataclasses
from collections.abc import Sequence
from typing import Any


def mean_of_worst(costs: Sequence[float], share: float) -> float:
    """Return the mean of the largest `share` of costs, in (0, 1]: their CVaR.

    A cost that lies only partly in the share counts with that part.
    """
    size = share * len(costs)
    parts = (min(max(size - i, 0.0), 1.0) for i in range(len(costs)))
    largest = sorted(costs, reverse=True)
    return sum(c * part for c, part in zip(largest, parts, strict=True)) / size


@dataclasses.dataclass
class Rate:
    """A mean over weighted cases, stored as sums until it is printed.

    `count` is the number of cases; `weight` and `squared` are the sums of their weights
    and of the squares of these.
    """

    hits: float = 0.0
    weight: float = 0.0
    squared: float = 0.0
    count: int = 0

    def add(self, hit: float | int, weight: float = 1.0) -> None:
        """Count a case: `hit` in [0, 1], and `weight`, how many cases it stands for."""
        self.hits += weight * hit
        self.weight += weight
        self.squared += weight**2
        self.count += 1

    def join(self, other: "Rate") -> None:
        """Add the cases of another rate."""
        self.hits += other.hits
        self.weight += other.weight
        self.squared += other.squared
        self.count += other.count

    @classmethod
    def of(cls, hits: int, count: int) -> "Rate":
        """Return the rate of `hits` among `count` cases of equal weight."""
        return cls(float(hits), float(count), float(count), count)

    def json(self) -> dict[str, Any]:
        """Return {mean, count, effective}; the mean of no cases is None.

        `effective` is Kish's effective sample size, (sum w)^2 / sum w^2: the number of
        cases of equal weight that are as informative. Intervals are computed from it.
        """
        return {
            "mean": self.hits / self.weight if self.weight else None,
            "count": self.count,
            "effective": self.weight**2 / self.squared if self.squared else 0.0,
        }
