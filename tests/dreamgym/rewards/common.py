"""What tests of the reward model's refits share: a few corridors, and pairs in them."""

from dreamgym.rewards.preferences import Preference
from tests import doubles

TASKS = [doubles.task(0, goal, end) for goal, end in ((1, 3), (1, 4), (2, 4), (2, 5))]
WALK = ["go right"] * 9
"""Past the coin to the wall, and against it: never lost before time is up."""


def attempt(task, actions):
    return doubles.episode(task, actions, name=f"e-{task.id}")


def fallen(task):
    """A pair that says: fetching the coin is better than falling."""
    return Preference(
        task=task,
        better=doubles.expert(task).transitions,
        worse=attempt(task, ["go left"]).transitions,
    )
