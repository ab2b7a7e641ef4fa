"""The schedule of the step limit, a function of the update's number."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepLimitConfig:
    """How many steps an episode may take, from `first` up to the run's own limit.

    The limit rises over the first `updates` updates, in `stages` equal steps, or at
    every update where `stages` is 0. With `first` = 0 it is the run's from the start.
    """

    first: int = 0
    updates: int = 10
    stages: int = 0

    def __post_init__(self):
        if min(self.first, self.stages) < 0 or self.updates < 1:
            raise ValueError(
                "first and stages must be >= 0 and updates >= 1, got "
                f"{self.first}, {self.stages} and {self.updates}"
            )


def step_limit_schedule(update: int, last: int, config: StepLimitConfig) -> int:
    """Return the step limit of update number `update` (from 0); `last` is the run's.

    Linear from `first` at update 0 to `last` at update `updates`, rounded down; with
    stages, the line's value where the stage began (the last one begins at `updates`).

    Raises:
      ValueError: `last` is below `first` or 1, or the update is negative.
    """
    if last < max(config.first, 1) or update < 0:
        raise ValueError(
            f"the step limit must be >= first = {config.first} and >= 1 and the update "
            f">= 0, got {last} and {update}"
        )
    if not config.first:
        return last
    done = min(update, config.updates)
    parts = config.stages if config.stages else config.updates
    # Integer arithmetic, because 0.3 times 10 may fall just short of 3.
    reached = done * parts // config.updates
    return config.first + (last - config.first) * reached // parts
