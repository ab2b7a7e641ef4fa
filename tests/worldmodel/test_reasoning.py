import pytest

from tests import helpers
from worldmodel import reasoning

DARK = ("lamp is off", "door is shut")


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"next_state": DARK}, "nothing changes"),
        ({"next_state": ("lamp is lit", "door is shut")}, "lamp change"),
        (
            {"next_state": ("lamp is red", "door is shut")},
            "lamp change something is revealed",
        ),
        (
            {"next_state": ("lamp is shut", "door is off"), "reward": 0.5},
            "lamp door change earns 0.5",
        ),
        ({"next_state": (*DARK, "lit lamp")}, "new change"),
        (
            {"next_state": DARK, "reward": -1, "terminated": True},
            "nothing changes earns -1 and loses",
        ),
        (
            {"next_state": ("lamp is off",), "terminated": True, "success": True},
            "door change and wins",
        ),
        ({"next_state": DARK, "truncated": True}, "nothing changes"),
    ],
)
def test_what_changes_what_is_new_and_what_it_earns(changes, ending):
    t = helpers.transition(DARK, "press it", **changes)
    assert reasoning.explain(t, "have it lit").endswith(ending)


def test_a_line_word_is_named_once():
    t = helpers.transition(("lamp a", "lamp b"), "do", ("lamp b x", "lamp a x", "do"))
    assert reasoning.explain(t, "x").count("lamp") == 1


@pytest.mark.parametrize(
    ("after", "want"),
    [
        (("lamp is lit", "door is open"), "lit as lamp door change"),
        (("lamp is off and it is lit", *DARK[1:]), "and it lit as lamp change"),
        (("lamp off", "door is shut"), "nothing as lamp change"),
        (("door is shut",), "nothing as lamp change"),
        ((*DARK, "lamp two"), "lamp two as new change"),
    ],
)
def test_the_new_words_of_the_first_changed_line_come_first(after, want):
    t = helpers.transition(DARK, "press it", after)
    assert reasoning.explain(t, "have it lit and open two") == want


def test_reveals_by_hand():
    # Known are the words of state, action and instruction; "red" is in none of them.
    got = reasoning.reveals(("a b",), "take c", "find d", ("a c", "d red", "b take"))
    assert got == {"red"}
    assert reasoning.reveals((), "", "", ()) == set()


def test_a_lamp_and_a_door_are_explained():
    e = helpers.lamp_and_door()
    got = [reasoning.explain(t, e.task.instruction) for t in e.transitions]
    assert got == [
        "on as the change something is revealed earns 0.5",
        "nothing changes",
        "open as the change something is revealed earns 1 and wins",
    ]
