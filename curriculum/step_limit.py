"""The schedule of the step limit by the number of the update."""

from curriculum.config import StepLimitConfig


def step_limit_schedule(update: int, last: int, config: StepLimitConfig) -> int:
    """Return the step limit of update number `update` (from 0); `last` is the run's.

    Linear from `initial` at update 0 to `last` at update `updates`, rounded down; with
    `increments`, the line's value where the increment began (the last one begins at
    `updates`).

    Raises:
      ValueError: `last` is below `first` or 1, or the update is negative.
    """
    if last < max(config.initial, 1) or update < 0:
        raise ValueError(
            f"the step limit must be >= initial = {config.initial} and >= 1 and the "
            f"update >= 0, got {last} and {update}"
        )
    if not config.initial:
        return last
    done = min(update, config.updates)
    parts = config.increments if config.increments else config.updates
    # Integer arithmetic, because 0.29 times 100 falls just short of 29.
    reached = done * parts // config.updates
    return config.initial + (last - config.initial) * reached // parts
