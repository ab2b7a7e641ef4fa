"""A mean as hits among cases, on the host."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Rate:
    """Hits among cases; a mean kept as two numbers until it is printed."""

    hits: float | int = 0
    count: float | int = 0

    def add(self, hits: float | int, count: float | int = 1) -> None:
        """Count cases, and how many of them were hits."""
        self.hits, self.count = self.hits + hits, self.count + count

    def json(self) -> dict[str, Any]:
        """{mean, count}; the mean of no cases is None."""
        return {
            "mean": self.hits / self.count if self.count else None,
            "count": self.count,
        }
