"""Whether an action was refused, where the environment does not say so."""

import pytest

from tests.helpers import transition
from worldmodel.data.invalid_actions import error_only_change, is_invalid

HERE = ("at kitchen", "said nothing")


@pytest.mark.parametrize(
    ("after", "result"),
    [
        (HERE, True),  # nothing happened
        (("at kitchen", "said unknown action"), True),
        (("at kitchen", "said nothing", "Invalid command."), True),
        (("at kitchen", "said taken"), False),
        (("at hall", "said you cannot go further"), False),  # it moved as well
        (("at kitchen",), False),
    ],
)
def test_a_state_that_stayed_but_for_an_error(after, result):
    assert error_only_change(HERE, after) == result


@pytest.mark.parametrize(
    ("after", "message", "wrong"),
    [
        (("a", "said b"), {}, True),  # nothing changed
        (("a", "said You can't do that."), {}, True),
        (("a", "said b", "Nothing happens"), {}, True),
        (("a", "said hello"), {}, False),
        (("c", "said unknown action"), {}, False),  # two lines changed
        (("a",), {}, False),
        (("a", "said b"), {"invalid": False}, False),  # it says itself
        (("c", "said hello"), {"invalid": True}, True),
        (("a", "said b"), {"terminated": True}, False),
        (("a", "said b"), {"reward": 0.5}, False),
        (("a", "said b"), {"reward": -0.1}, True),  # every step may have its price
    ],
)
def test_an_error_is_what_the_environment_could_not_do(after, message, wrong):
    assert is_invalid(transition(("a", "said b"), "x", after, **message)) == wrong
