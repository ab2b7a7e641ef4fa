"""What is known of a house, by hand: facts and texts -> lines (needs no package)."""

from typing import NamedTuple

import pytest

from dreamgym.envs.suites.twgames.text import House, Ingredient, first_sentence


class Fact(NamedTuple):
    name: str
    names: tuple[str, ...]
    types: tuple[str, ...]


def facts(*texts):
    """Facts of texts such as `on knife:o table:s`; _ is a blank in a name."""
    out = []
    for text in texts:
        name, *arguments = text.split()
        pairs = [argument.replace("_", " ").split(":") for argument in arguments]
        out.append(Fact(name, *map(tuple, zip(*pairs, strict=True))))
    return out


HOUSE = (
    "east_of pantry:r kitchen:r",
    "west_of kitchen:r pantry:r",
    "south_of yard:r kitchen:r",
    "north_of kitchen:r yard:r",
    "link kitchen:r plain_door:d pantry:r",
    "link pantry:r plain_door:d kitchen:r",
    "free kitchen:r yard:r",
    "free yard:r kitchen:r",
    "at fridge:c kitchen:r",
    "at table:s kitchen:r",
    "at shelf:s pantry:r",
    "on salt:f shelf:s",
    "raw salt:f",
)
START = facts(
    *HOUSE,
    "at P:P kitchen:r",
    "closed plain_door:d",
    "closed fridge:c",
    "in red_onion:f fridge:c",
    "raw red_onion:f",
    "on pork_chop:f table:s",
    "needs_cooking pork_chop:f",
    "in knife:o I:I",
)
PAGE = """
You open the copy of "Cooking: A Modern Approach (3rd Ed.)" and start reading:

Ingredients:
pork chop
  salt

Directions:
chop the pork chop
  fry the pork chop
  prepare meal

>          -= Kitchen =-0/4"""


def test_states_by_hand():
    house = House()
    assert house.read(START, "")
    assert house.lines() == [
        "exits kitchen: east by closed plain door, south",
        "furniture in kitchen: table",
        "fridge in kitchen closed, not looked into",
        "knife carried",
        "pork chop on table, raw",
        "score 0",
        "at kitchen",
        "said welcome",
    ]
    assert house.read(START, PAGE)
    assert not house.read(START, PAGE)
    assert house.recipe == (
        Ingredient("pork chop", ("chop", "fry")),
        Ingredient("salt", ()),
    )
    opened = facts(
        *HOUSE,
        "at P:P kitchen:r",
        "open plain_door:d",
        "open fridge:c",
        "in red_onion:f fridge:c",
        "diced red_onion:f",
        "raw red_onion:f",
        "in pork_chop:f I:I",
        "fried pork_chop:f",
        "chopped pork_chop:f",
        "at knife:o kitchen:r",
    )
    assert house.read(opened, "\nYou open the fridge, revealing a red onion.\n\n>", 2)
    assert house.lines() == [
        "exits kitchen: east by open plain door, south",
        "furniture in kitchen: table",
        "fridge in kitchen open",
        "knife on floor of kitchen",
        "pork chop carried, chopped fried",
        "red onion in fridge, diced",
        "recipe pork chop: chop, fry",
        "recipe salt: as it is",
        "score 2",
        "at kitchen",
        "said You open the fridge",
    ]
    away = facts(
        *HOUSE,
        "at P:P pantry:r",
        "open plain_door:d",
        "closed fridge:c",  # nobody saw that, so the state does not show it
        "in pork_chop:f I:I",
        "burned pork_chop:f",
        "fried pork_chop:f",
    )
    assert house.read(away, "\n\n-= Pantry =-\nYou are in a pantry. It smells.\n\n>", 2)
    assert house.lines() == [
        "exits kitchen: east by open plain door to pantry, south",
        "exits pantry: west by open plain door to kitchen",
        "furniture in kitchen: table",
        "fridge in kitchen open",
        "furniture in pantry: shelf",
        "knife on floor of kitchen",
        "pork chop carried, burned",
        "red onion in fridge, diced",
        "salt on shelf",
        "recipe pork chop: chop, fry",
        "recipe salt: as it is",
        "score 2",
        "at pantry",
        "said Pantry",
    ]
    assert not house.read(away, "\nYou can't go that way.\n\n>", 2)


def test_a_house_of_one_room_leaves_out_its_name():
    house = House()
    true = "at P:P kitchen:r", "at oven:oven kitchen:r", "at milk:f kitchen:r"
    house.read(facts(*true, "closed oven:oven"), "")
    assert house.lines()[:2] == ["oven closed, not looked into", "milk on floor"]
    house.read(facts(*true, "open oven:oven"), "")
    assert house.lines()[:2] == ["oven open", "milk on floor"]
    house.read(facts(*true, "closed oven:oven"), "")
    assert house.lines()[:2] == ["oven closed", "milk on floor"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ""),
        ("\nThat's fixed in place.\n\n>   -= Kitchen =-0/4", "That's fixed in place"),
        ("(the purple potato)\nYou pick up it. Not bad.", "You pick up it"),
        (
            "\nYou take the egg.\n\n\nYour score has just gone up by one point.\n\n>",
            "You take the egg",
        ),
        ('You open "It (3rd Ed.)" and start reading:\nmilk', 'You open "It (3rd Ed.)" '
         "and start reading"),
        ("You burned the egg!\n\n *** You lost! ***", "You burned the egg"),
        ("-= Living Room =-\nA room.", "Living Room"),
    ],
)  # fmt: skip
def test_the_first_sentence_of_an_answer(text, sentence):
    assert first_sentence(text) == sentence
