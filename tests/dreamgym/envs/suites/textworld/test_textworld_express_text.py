"""States of TextWorldExpress as people read them."""

import pytest

from dreamgym.envs.base import as_render, begin, take
from dreamgym.envs.suites.textworld.express import TextWorldExpress
from dreamgym.envs.suites.textworld.express_text import readable_state


def test_a_state_by_hand():
    state = (
        "found kitchen has coin box with key corridor has map",
        "pantry near kitchen corridor hall",
        "corridor south kitchen",
        "cellar no exits",
        "kitchen north pantry unseen kitchen south corridor",
        "said unknown action carry map here coin box with key at kitchen",
    )
    assert readable_state(state).splitlines() == [
        "Kitchen. North: pantry, not visited yet. South: corridor.",
        "Here: a coin, a box with a key. You carry a map.",
        "The game says: unknown action.",
        "From the map: the pantry is near the kitchen, the corridor and the hall.",
        "Seen before: Corridor. South: kitchen. There: a map.",
        "Seen before: Cellar. No exits.",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "kitchen north",
        "kitchen north pantry cellar south hall",
        "x near",
        "<b>hi</b>",
        "found",
        "said ok carry here nothing at",
        "no exits",
        "found coin",
    ],
)
def test_a_line_of_another_form_is_shown_as_it_is(line):
    # A dreamed state may hold anything; the rest is read nevertheless.
    status = "said ok carry nothing here nothing at kitchen"
    shown = readable_state((line, "kitchen west hall", status)).splitlines()
    assert line in shown
    assert shown[0] == "Kitchen. West: hall."
    assert "Here: nothing. You carry nothing." in shown


def test_a_state_without_a_status_or_without_anything_is_shown():
    assert readable_state(()) == ""
    assert readable_state(("found nothing", "kitchen west hall")) == (
        "Seen before: Kitchen. West: hall."
    )


@pytest.mark.parametrize("family", ["coin", "mapreader"])
def test_every_line_of_a_real_state_is_read(family):
    env = TextWorldExpress()
    task = next(t for t in env.tasks("train") if t.family == family)
    _, state = begin(env, task)
    states = [state, *(take(env, a).state for a in env.expert())]
    starts = ("Here: ", "The game says: ", "From the map: ", "Seen before: ")
    assert as_render(env) is env
    for state in states:
        first, *rest = env.render_state(state).splitlines()
        assert first.lower().startswith(state[-1].rpartition(" ")[2])
        assert [line for line in rest if not line.startswith(starts)] == []
        rooms = sum(" has " not in x and " near " not in x for x in state[1:-1])
        assert sum(x.startswith("Seen before") for x in rest) == rooms - 1
