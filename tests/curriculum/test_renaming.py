"""Renaming: which words stand for each other, and that it is consistent."""

import numpy as np
import pytest

from curriculum import renaming
from curriculum.renaming import Renaming, with_renames
from worldmodel.data.records import Task
from worldmodel.text.tools.tool_calls import Call, expected_calls


def house(name, here, other, way, goal):
    return Task(
        id=name,
        instruction=f"bring the coin to {goal}",
        env="house",
        family="house",
        options={"seed": 1, "calls": [{"tool": "go", "arguments": {"to": "kitchen"}}]},
        initial_state=(f"{here} {way} {other} unseen", f"said ok at {here}"),
    )


ROOMS = ("kitchen", "pantry", "attic", "cellar")
WAYS = ("north", "south", "east")
TASKS = [
    house(
        f"t{i + 12 * k}",
        ROOMS[i % 4],
        ROOMS[(i + 1) % 4],
        WAYS[i % 3],
        ROOMS[(i + k) % 4],
    )
    for k in (0, 1)  # the coin goes here, or to the other room
    for i in range(12)
]


def test_names_are_what_some_tasks_hold_and_others_do_not():
    assert renaming.entities(TASKS) == {*ROOMS, *WAYS}
    assert renaming.entities(TASKS[:1]) == set()
    assert renaming.entities([]) == set()


def test_rooms_stand_in_for_rooms_and_ways_for_ways():
    names = renaming.entities(TASKS)
    known = renaming.contexts_of(TASKS, names)
    assert renaming.stand_ins(TASKS[0], "kitchen", names, known) == [
        "attic",
        "cellar",
        "pantry",
    ]
    assert renaming.stand_ins(TASKS[0], "north", names, known) == ["east", "south"]


def test_a_name_must_have_been_seen_in_the_place_it_takes():
    some = [t for t in TASKS if not t.instruction.endswith("cellar")]
    names = renaming.entities(some)
    known = renaming.contexts_of(some, names)
    goal = house("x", "kitchen", "pantry", "north", "kitchen")
    other = house("y", "kitchen", "pantry", "north", "pantry")
    assert "cellar" not in renaming.stand_ins(goal, "kitchen", names, known)
    assert "cellar" in renaming.stand_ins(other, "kitchen", names, known)


def test_a_renaming_by_hand_is_an_exchange():
    got = with_renames(TASKS[0], {"kitchen": "pantry", "north": "east"})
    assert got.instruction == "bring the coin to pantry"
    assert got.initial_state == ("pantry east kitchen unseen", "said ok at pantry")
    assert got.split == "generated"
    # A generated tool task says which calls it expects, of its own things.
    assert expected_calls(got) == ((Call("go", {"to": "pantry"}),),)
    assert "seed" not in got.options
    assert got.lineage == ("t0",)
    back = with_renames(got, {"kitchen": "pantry", "north": "east"})
    assert back.initial_state == TASKS[0].initial_state
    assert back.lineage == ("t0", got.id)


def test_variations_are_others_of_the_same_form_and_told_by_the_generator():
    rule = Renaming(TASKS)
    made = [rule.vary(TASKS[0], np.random.default_rng(i)) for i in range(8)]
    again = [rule.vary(TASKS[0], np.random.default_rng(i)) for i in range(8)]
    assert made == again
    assert len({t.id for t in made if t is not None}) > 3
    for task in made:
        assert task is not None
        here, way, other, last = task.initial_state[0].split()
        assert {here, other} < set(ROOMS)
        assert here != other
        assert way in WAYS
        assert last == "unseen"
        assert task.initial_state[1] == f"said ok at {here}"
        assert task.instruction == f"bring the coin to {here}"  # as in the seed
        assert task.initial_state != TASKS[0].initial_state


@pytest.mark.parametrize("tasks", [TASKS[:1], []])
def test_where_nothing_can_be_renamed_there_is_no_variation(tasks):
    assert Renaming(tasks).vary(TASKS[0], np.random.default_rng(0)) is None
