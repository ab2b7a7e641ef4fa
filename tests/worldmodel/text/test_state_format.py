"""The form of states: by hand, and on the states it was taken from."""

import dataclasses

import pytest

from tests import doubles, helpers
from worldmodel.text.state_format import (
    MIN_LINES,
    MIN_STATES,
    REPEATED_WORDS,
    format_error,
    keyed_by_prefix,
    repeated_words,
    state_format,
    state_formats,
)

HALL = ("carry nothing", "here box", "hall has box", "hall north attic", "at hall")
ATTIC = ("carry map", "here nothing", "attic south hall", "at attic")


def test_a_form_is_what_all_states_share():
    assert state_format([HALL, ATTIC]) == (
        ("carry", "here"),
        ("at",),
        4,
        False,
        False,
        False,
        frozenset(),
    )
    assert state_format([ATTIC]) == (
        ("carry", "here", "attic", "at"),
        (),
        4,
        True,
        False,
        False,
        frozenset(),
    )
    # A line is not counted from both ends.
    assert state_format([("a", "b"), ("a", "c", "b")]) == (
        ("a",),
        ("b",),
        2,
        True,
        False,
        False,
        frozenset(),
    )
    assert state_format([("a", "b"), ("a", "b")]) == (
        ("a", "b"),
        (),
        2,
        True,
        False,
        False,
        frozenset(),
    )
    with pytest.raises(ValueError, match="at least one state"):
        state_format([])


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (("found x", "said ok"), None),
        (("found y", "hall north attic", "said no"), None),
        (("found x",), "1 lines of text, at least 2 expected"),
        (("found x", " ", "said ok"), "2 lines of text"),
        (("hall x", "said ok"), "first lines must begin with 'found'"),
        (("found x", "said ok", "hall x"), "last lines must begin with 'said'"),
        (("found x", "said a", "said ok"), "more than one line begins with 'said'"),
    ],
)
def test_a_state_is_held_to_the_form(state, message):
    form = state_format([("found a", "said b"), ("found c", "d e", "said f")])
    result = format_error(state, form)
    assert result == message if message is None else message in result


def test_repeated_heads_are_allowed_where_real_states_repeat_them():
    assert format_error(HALL, state_format([HALL, ATTIC])) is None


def test_real_states_have_the_form_they_gave():
    states = [
        t.state
        for task in doubles.tasks("train")[:20]
        for t in doubles.expert(task).transitions
    ]
    form = state_format(states)
    assert [format_error(s, form) for s in states] == [None] * len(states)


@pytest.mark.parametrize(
    ("pairs", "want"),
    [
        ([(("said ok", "bamboo 4"), ("said ok", "bamboo 2"))], True),
        # Lines that come and go do not tell, and do not speak against it.
        ([(("said ok",), ("said ok", "bamboo 2"))], False),
        ([(("a 1",), ("a 1", "b 2")), (("a 1", "b 2"), ("a 1", "b 3"))], True),
        # Elsewhere it is only a line that begins alike: it stays where it was.
        (
            [(("a 1", "b 2"), ("a 1", "b 3")), (("b 1", "a 1"), ("b 1", "c", "b 2"))],
            False,
        ),
        ([(("a 1", "b 2"), ("a 1", "b 2"))], False),
        ([], False),
    ],
)
def test_what_changes_by_its_stem(pairs, want):
    assert keyed_by_prefix(pairs) is want


def test_an_empty_state_does_not_undo_the_form_of_the_others():
    text = [("found a", "said b"), ("found c", "d e", "said f")]
    form = state_format([*text, ()])
    assert form == state_format(text)._replace(empty=True)
    assert format_error((), form) is None
    assert "at least 2 expected" in format_error((), state_format(text))
    assert "first lines must begin" in format_error(("hall x", "said ok"), form)
    assert format_error((), state_format([()])) is None


def test_the_words_of_a_single_task_are_no_format():
    """Other tasks of its family need not have them."""
    e = helpers.lamp_and_door()
    assert state_formats([e, dataclasses.replace(e, id="again")]) == {}
    task = dataclasses.replace(e.task, id="room-2")
    two = [e, dataclasses.replace(e, id="two", task=task)]
    form = state_formats(two)["room"]
    assert form.first == ("the", "the")
    # Six transitions are too few to say how lines change.
    assert not form.keyed_by_prefix
    many = [dataclasses.replace(e, id=f"{i}", task=two[i % 2].task) for i in range(8)]
    assert state_formats(many)["room"].keyed_by_prefix
    # Of a single task many states are enough: an environment may have one only.
    step = e.transitions[0]
    steps = tuple(
        dataclasses.replace(step, state=(f"at {i}",), next_state=(f"at {i + 1}",))
        for i in range(MIN_STATES - 1)
    )
    alone = dataclasses.replace(e, transitions=steps)
    assert state_formats([alone])["room"].first == ("at",)
    short = dataclasses.replace(e, transitions=steps[:-1])
    assert state_formats([short]) == {}


def test_each_family_has_a_form_of_all_its_states():
    one, other = helpers.lamp_and_door(), helpers.lamp_and_door("hall-1", "hall")
    after = ("a lamp", "a door", "the end")
    last = dataclasses.replace(other.transitions[-1], next_state=after)
    other = dataclasses.replace(other, transitions=(*other.transitions[:-1], last))
    episodes = [
        dataclasses.replace(
            e, id=f"{e.id}-{i}", task=dataclasses.replace(e.task, id=f"{e.task.id}-{i}")
        )
        for e in (one, other)
        for i in range(8)
    ]
    result = state_formats(episodes)
    rest = (2, False, True, False, frozenset())
    assert result["room"] == (("the", "the"), (), *rest)
    assert result["hall"] == ((), ("the",), *rest)  # the last state too


# --- words that a line holds once --------------------------------------------


def exits(*rooms, hall="hall"):
    """A line with exits to rooms that nobody has seen: `hall north attic unseen`."""
    ways = ("north", "south", "east")
    return " ".join(
        f"{hall} {way} {room} unseen" for way, room in zip(ways, rooms, strict=False)
    )


def rooms_of(count):
    """Episodes whose states hold so many different lines with two exits or more."""
    lines = [exits(f"room{i}", f"room{i + 1}") for i in range(count)]
    base = helpers.lamp_and_door()
    step = base.transitions[0]
    return [
        dataclasses.replace(
            base,
            id=f"{i}",
            task=dataclasses.replace(base.task, id=f"{i}"),
            transitions=(dataclasses.replace(step, state=(x,), next_state=(x,)),),
        )
        for i, x in enumerate(lines)
    ]


def test_two_ways_lead_to_two_unseen_rooms():
    """`unseen hall` stands twice in many real lines, `attic unseen` in none."""
    episodes = rooms_of(MIN_LINES)
    third = (exits("attic", "study", "den"),)
    step = dataclasses.replace(episodes[0].transitions[0], next_state=third)
    episodes[0] = dataclasses.replace(episodes[0], transitions=(step,))
    form = state_formats(episodes)["room"]
    assert form.distinct_before == {"unseen"}
    assert repeated_words((), third, form) is None
    twice = (exits("attic", "study", "attic"),)
    message = repeated_words((), twice, form)
    assert message.startswith(f"{REPEATED_WORDS}: 'attic unseen'")
    assert repeated_words(twice, twice, form) is None  # it was so before
    assert format_error(twice, form) is None


def test_too_few_lines_say_nothing_of_words_that_repeat():
    form = state_formats(rooms_of(MIN_LINES - 1))["room"]
    assert form.distinct_before == frozenset()
    assert repeated_words((), (exits("attic", "attic"),), form) is None
