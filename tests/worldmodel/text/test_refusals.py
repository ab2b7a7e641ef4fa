"""Whether an action was refused, where the environment does not say so."""

import pytest

from tests.helpers import transition
from worldmodel.text.refusals import refused, unmoved

HERE = ("at kitchen", "said nothing")


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (HERE, True),  # nothing happened
        (("at kitchen", "said unknown action"), True),
        (("at kitchen", "said nothing", "Invalid command."), True),
        (("at kitchen", "said taken"), False),
        (("at hall", "said you cannot go further"), False),  # it moved as well
        (("at kitchen",), False),
    ],
)
def test_a_state_that_stayed_but_for_an_error(after, found):
    assert unmoved(HERE, after) == found


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ({}, True),
        ({"invalid": False}, False),  # to look changes nothing
        ({"reward": 0.5}, False),
        ({"terminated": True}, False),
    ],
)
def test_what_the_environment_says_counts_and_what_earns_was_taken(told, found):
    assert refused(transition(HERE, "look", HERE, **told)) == found
    moved = transition(HERE, "go", ("at hall",), invalid=True)
    assert refused(moved)
