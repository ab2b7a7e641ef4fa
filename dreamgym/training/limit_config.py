"""Settings of a limit of a cost."""

import dataclasses
import math

from dreamgym.rewards.config import check_pattern


@dataclasses.dataclass(frozen=True, kw_only=True)
class LimitConfig:
    """A limit of a cost, kept by a Lagrange multiplier.

    The reward of a step is lowered by the multiplier times its cost. After each update
    the multiplier rises by `learning_rate` times what the mean cost of a rollout is
    above the limit, or falls, and is never negative.
    """

    name: str
    """Name of the cost, as the environment reports it in info["costs"]."""
    limit: float
    """Mean cost of an episode that is allowed, E[cost] <= limit."""
    worst_share: float = 1.0
    """Share of the rollouts, the costliest ones, whose mean cost is to be within the
    limit: below 1 the conditional value at risk, CVaR (arXiv:1512.01629), and not the
    mean over all."""
    pattern: str = ""
    """Regular expression; each step whose action or next state it occurs in costs 1,
    unless the environment reports this cost for the step. So it counts in the dream,
    which reports none. "" counts what the environment reports alone."""
    search_in: str = "action"
    """Where the pattern is searched: in the "action" or in the lines of the
    "next_state"."""
    initial_weight: float = 0.0
    """The multiplier before the first update."""
    learning_rate: float = 0.1
    """Change of the multiplier for each unit of cost above the limit."""

    def __post_init__(self):
        if not self.name:
            raise ValueError("name of a limit must not be empty")
        check_pattern(f"limit {self.name!r}", self.pattern, self.search_in)
        numbers = (self.limit, self.initial_weight, self.learning_rate)
        if not all(x >= 0 and math.isfinite(x) for x in numbers):
            raise ValueError(
                "limit, initial_weight and learning_rate must be >= 0 and finite, got "
                f"{numbers}"
            )
        if not 0 < self.worst_share <= 1:
            raise ValueError(f"worst_share must be in (0, 1], got {self.worst_share}")

    def dead(self) -> str | None:
        """Return why the limit would have no effect, None where it has one."""
        if self.search_in != LimitConfig.search_in and not self.pattern:
            return "search_in says where the pattern is searched, and there is none"
        if not self.learning_rate and not self.initial_weight:
            return (
                "it would change nothing: learning_rate and initial_weight are both 0"
            )
        return None
