"""Checks of a budget of real steps, once environment or episodes are known."""

from dreamgym.config.budget import ESTIMATE_STEPS, BudgetConfig, minimum
from dreamgym.run.directory import RunError


def check_budget(budget: BudgetConfig, max_steps: int, env: str) -> None:
    """Check that a budget pays for the least that a run collects.

    Raises:
      RunError: it does not; the message names the smallest that does.
    """
    required = minimum(budget, max_steps)
    if 0 < budget.real_steps < required:
        raise RunError(
            f"--budget {budget.real_steps}: expected at least {required:,} real steps "
            f"in {env}: its episodes have up to {max_steps} steps, and train and dev "
            f"episodes have budget.collect = {budget.collect:g} of it, of which "
            f"budget.dev = {budget.dev:g} is for dev episodes; "
            "--env.max-episode-steps ends episodes earlier"
        )


def check_recorded(budget: BudgetConfig, transitions: int) -> None:
    """Check that a budget covers the transitions of given episodes, which count.

    Raises:
      RunError: it does not; the message names the smallest that does.
    """
    required = transitions + ESTIMATE_STEPS
    if 0 < budget.real_steps < required:
        raise RunError(
            f"--budget {budget.real_steps}: the given episodes hold {transitions:,} "
            f"real transitions, which count: expected at least {required:,}"
        )
