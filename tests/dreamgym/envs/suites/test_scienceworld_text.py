"""Texts of ScienceWorld as lines of a state: no Java is needed here."""

import pytest

from dreamgym.envs.suites import scienceworld_text as texts

KITCHEN = """This room is called the kitchen. In it, you see: 
\tthe agent
\ta substance called air
\ta chair. On the chair is: nothing.
\ta counter. On the counter is: a bowl (containing a red apple, an orange), a drawer.
\ta cupboard. The cupboard door is closed. 
\ta oven, which is turned off. The oven door is closed. 
\ta red box (containing nothing)
\ta sink, which is turned off. In the sink is: nothing.
\ta substance called soap
\ta thermometer, currently reading a temperature of 10 degrees celsius
You also see:
\tA door to the bathroom (that is open)
\tA door to the living room (that is closed)
"""

QUESTION = """Ambiguous request: Please enter the number for the action you intended \
(or blank to cancel):
0:\tpick up orange (in bowl, in counter, in kitchen)
1:\tpick up orange (in inventory, in agent, in kitchen)
"""


def test_a_room_by_hand():
    assert texts.parse_room(KITCHEN) == texts.Room(
        name="kitchen",
        doors=("bathroom open", "living room closed"),
        things=(
            "chair (empty)",
            "counter (bowl (red apple, orange), drawer)",
            "cupboard closed",
            "oven off closed",
            "red box (empty)",
            "sink off (empty)",
            "soap",
            "thermometer reads 10 degrees celsius",
        ),
    )


def test_outside_is_a_room_and_another_text_is_none():
    text = "This outside location is called the outside. Here you see: \n\tthe ground\n"
    assert texts.parse_room(text) == texts.Room("outside", (), ("ground",))
    with pytest.raises(ValueError, match="expected the description of a room"):
        texts.parse_room("The door is now open.")


@pytest.mark.parametrize(
    ("phrase", "expected"),
    [
        ("a substance called sodium chloride", "sodium chloride"),
        ("an axe", "axe"),
        ("a ultra low temperature freezer", "ultra low temperature freezer"),
        (
            "a cupboard. The cupboard door is open. In the cupboard is: a tin cup "
            "(containing nothing), a drawer.",
            "cupboard open (tin cup (empty), drawer)",
        ),
        (
            "a bed. On the bed is: a mattress. On the mattress is: a white pillow..",
            "bed (mattress (white pillow))",
        ),
        (
            "a toilet. In the toilet is: A drain, which is closed, a substance called "
            "water.",
            "toilet (drain closed, water)",
        ),
        (
            "a flower pot 1 (containing a pea plant in the reproducing stage with a "
            "tall height. On the pea plant you see: a purple flower. , soil)",
            "flower pot 1 (pea plant in the reproducing stage with tall height with "
            "purple flower, soil)",
        ),
        (
            "a red box (containing a cupboard. The cupboard door is closed. )",
            "red box (cupboard closed)",
        ),
        ("what no rule knows; it stays", "what no rule knows; it stays"),
    ],
)
def test_a_thing_is_shortened_and_keeps_its_name(phrase, expected):
    assert texts.short_name(phrase) == expected


def test_an_inventory_by_hand():
    text = "In your inventory, you see:\n\tan orange\n\ta jug (containing red paint)\n"
    assert texts.parse_inventory(text) == ("orange", "jug (red paint)")
    assert texts.parse_inventory("In your inventory, you see:\n\tnothing\n") == ()


def test_a_state_ends_with_the_last_answer():
    room = texts.Room("hall", ("kitchen open",), ("picture",))
    state = texts.state_lines(
        room,
        ("orange",),
        "You focus on the orange.",
        visited=("kitchen", "hall"),
        focus="orange",
        notes=("The recipe reads: mix it",),
    )
    assert state == [
        "visited kitchen, hall",
        "focus orange",
        "note The recipe reads: mix it",
        "door kitchen open",
        "see picture",
        "carry orange",
        "at hall",
        "said You focus on the orange",
    ]
    state = texts.state_lines(room, (), QUESTION, visited=("hall",))
    assert state == [
        "visited hall",
        "focus nothing",
        "door kitchen open",
        "see picture",
        "carry nothing",
        "at hall",
        "choice 0 pick up orange (in bowl, in counter, in kitchen)",
        "choice 1 pick up orange (in inventory, in agent, in kitchen)",
        "said which number",
    ]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (KITCHEN, "ok"),
        ("In your inventory, you see:\n\tan orange\n", "ok"),
        ("No known action matches that input.", "unknown action"),
        ("Unknown action.  Type 'help' for a list of actions", "unknown action"),
        ("Inside the table is: \n\ta glass cup", "Inside the table is: a glass cup"),
        ("", "ok"),
    ],
)
def test_an_answer_is_one_line_without_what_the_state_shows(message, expected):
    assert texts.short_message(message) == expected


@pytest.mark.parametrize(
    "message",
    [
        "No known action matches that input.",
        "It's not clear how to get there from here.",
        "Its not clear how to go to/through a wolf.",
        "I'm not sure how to use those two things together.",
        "The door is already open.",
        "The door is not open.",
        "The bowl is not openable.",
        "The air is not something that can be activated.",
        "You can't move something into itself.",
        "That container is empty, so there are no items to mix.",
        "The jug does not contain any liquids to dunk into.",
        "The stove appears broken, and can't be activated or deactivated.",
    ],
)
def test_a_refused_action_is_recognized(message):
    assert texts.is_refused(message)


@pytest.mark.parametrize(
    "message",
    [
        KITCHEN,
        QUESTION,
        "The cupboard is now open.",
        "You move the apple to the red box.",
        "the thermometer measures a temperature of -8 degrees celsius",
        "terminal 1 on air is now connected to terminal 2 on battery",
        "You decide to wait for 10 iterations.",
    ],
)
def test_an_action_that_was_taken_is_not_refused(message):
    assert not texts.is_refused(message)


def test_what_is_read_is_a_note():
    text = "The recipe reads:\n'To make salt water, mix both.'"
    assert texts.note(text) == "The recipe reads: 'To make salt water, mix both.'"
    assert texts.note("The cupboard is now open.") == ""
    assert texts.note("a stopwatch, which is deactivated. The time reads 0.") == ""


def test_opening_and_measuring_reveal():
    assert texts.is_revealing("The drawer is now open.")
    assert texts.is_revealing("the thermometer measures a temperature of 9 degrees")
    assert not texts.is_revealing("The drawer is already open.")


def test_useful_actions_by_hand():
    # 1 is the orange that is carried, 2 to 6 stand in the room, 7 in a closed cupboard.
    rows = [
        ("put down orange", 1),
        ("focus on orange", 1),
        ("move orange to jug", 1, 2),
        ("move orange to kitchen", 1, 9),  # a room
        ("move apple to jug", 3, 2),  # not carried
        ("move apple to red box", 3, 4),
        ("look at apple", 3),
        ("focus on baby baby wolf", 5),
        ("pour cup containing red paint into jug", 6, 2),
        ("pour paint in cup containing red paint into jug", 6, 2),
        ("mix jug", 2),
        ("mix apple", 3),
        ("pick up metal pot", 7),  # hidden
        ("go to hallway", 8),
        ("go to door to hallway", 8),
        ("teleport to foundry", 99),
        ("wait1",),
        ("reset task",),
    ]
    actions = [texts.Action(text, tuple(things)) for text, *things in rows]
    expected = [
        "focus on baby wolf",
        "focus on orange",
        "go to hallway",
        "mix jug",
        "move apple to red box",
        "move orange to jug",
        "pour cup containing red paint in jug",
        "put down orange",
        "teleport to foundry",
        "wait1",
    ]
    assert texts.useful_actions(actions, (2, 3, 4, 5, 6, 8, 9)) == expected
    assert texts.useful_actions(actions[::-1], (9, 8, 6, 5, 4, 3, 2)) == expected
