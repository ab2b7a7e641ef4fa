"""What real transitions never remove, by hand, and that only this is put back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.data.records import Episode, Task
from worldmodel.text.persistence import (
    MIN_STOOD,
    OTHER,
    LastingFacts,
    contradiction,
    lasting_facts,
    with_lasting_facts,
)

ROOMS = ("kitchen", "pantry", "hall", "cellar", "attic")


def house(room, *, seen=ROOMS, coin=True):
    """What is known of a house: rooms in a row, the exits, and where the agent is."""
    exits = tuple(
        f"{name} east {after}{'' if after in seen else ' unseen'}"
        for name, after in itertools.pairwise(ROOMS)
        if name in seen
    )
    return ("found nothing", *exits, f"here {'coin' if coin else 'nothing'} at {room}")


def walks(count=40, family="house"):
    """Walks to the east in which `unseen`, the coin and the place change."""
    out = []
    for number in range(count):
        task = Task(id=f"{family}-{number}", instruction="find the coin", family=family)
        states = [
            house(room, seen=ROOMS[: i + 1], coin=(number + i) % 2 == 0)
            for i, room in enumerate(ROOMS)
        ]
        steps = [
            helpers.transition(a, "go east", b) for a, b in itertools.pairwise(states)
        ]
        out.append(helpers.episode(f"e{number}", task, steps))
    return out


FACTS = lasting_facts(walks())["house"]


def test_what_stays_by_hand():
    assert FACTS.common == {"found", "kitchen", "here"}
    # Every line that is there stays there.
    assert FACTS.kinds == {"found", "kitchen", "here", OTHER}
    assert (OTHER, "hall") in FACTS.words
    assert (OTHER, "unseen") not in FACTS.words
    assert ("here", "coin") not in FACTS.words
    assert ("here", "kitchen") not in FACTS.words


def test_real_steps_contradict_nothing():
    for e in walks():
        for t in e.transitions:
            assert contradiction(t.state, t.next_state, FACTS) is None


BEFORE = house("hall", seen=ROOMS[:3])


@pytest.mark.parametrize(
    ("after", "message", "restored"),
    [
        (  # a line is gone
            tuple(x for x in BEFORE if not x.startswith("pantry")),
            "a line that begins with 'pantry' is gone",
            BEFORE,
        ),
        (  # another one stands in its place
            tuple("wins at last" if x.startswith("hall") else x for x in BEFORE),
            "a line that begins with 'hall' is gone",
            (*BEFORE[:4], "wins at last", BEFORE[4]),
        ),
        (  # an exit leads elsewhere
            (BEFORE[0], "kitchen east attic", *BEFORE[2:]),
            "the line that begins with 'kitchen' has lost 'pantry'",
            BEFORE,
        ),
        (  # words are deleted, and the agent has moved
            (*BEFORE[:3], "hall", "here nothing at cellar"),
            "the line that begins with 'hall' has lost 'cellar'",
            (*BEFORE[:4], "here nothing at cellar"),
        ),
        (  # one of two lines of a kind is gone, the other one has changed
            (BEFORE[0], "kitchen east pantry unseen", *BEFORE[3:]),
            "a line that begins with 'pantry' is gone",
            (BEFORE[0], "kitchen east pantry unseen", *BEFORE[2:]),
        ),
        (  # nothing that stays is gone
            (*BEFORE[:3], "hall east cellar", "here nothing at cellar"),
            None,
            (*BEFORE[:3], "hall east cellar", "here nothing at cellar"),
        ),
    ],
)
def test_what_a_step_forgets_is_put_back(after, message, restored):
    assert contradiction(BEFORE, after, FACTS) == message
    assert with_lasting_facts(BEFORE, after, FACTS) == restored


def test_of_several_lines_of_a_kind_those_are_put_back_that_nothing_replaces():
    facts = LastingFacts(frozenset({"the"}), frozenset({"the"}), frozenset())
    before = ("the lamp is off", "the door is shut", "the cat is in")
    after = ("the lamp is on", "the cat is in")
    assert with_lasting_facts(before, after, facts) == (
        "the lamp is on",
        "the door is shut",
        "the cat is in",
    )


def test_equal_lines_are_put_back_as_often_as_they_are_gone():
    facts = LastingFacts(frozenset({"a"}), frozenset({"a"}), frozenset())
    assert with_lasting_facts(("a b", "a b"), ("a b",), facts) == ("a b", "a b")
    assert with_lasting_facts(("a b", "a b"), ("a c",), facts) == ("a b", "a c")


def test_indented_lines_are_put_back_too():
    facts = LastingFacts(frozenset(), frozenset(), frozenset({(OTHER, "east")}))
    assert with_lasting_facts(("  a east b",), ("  a b",), facts) == ("  a east b",)


def test_a_line_that_is_written_anew_stays_so():
    facts = FACTS._replace(words=FACTS.words | {(OTHER, "lake")})
    before = ("found nothing", "attic near lake", "here nothing at attic")
    after = ("found nothing", "attic west cellar", "here nothing at attic")
    assert contradiction(before, after, facts) is not None
    # `near` may go: the room is described for the first time.
    assert with_lasting_facts(before, after, facts) == after


words = st.sampled_from(["kitchen", "pantry", "hall", "east", "unseen", "found", "x"])
states = st.lists(st.lists(words, min_size=1, max_size=4).map(" ".join), max_size=5)


@given(states, states)
def test_nothing_is_changed_without_a_contradiction_and_no_line_is_lost(a, b):
    before, after = tuple(a), tuple(b)
    result = with_lasting_facts(before, after, FACTS)
    if contradiction(before, after, FACTS) is None:
        assert result == after
    # What is put back is of the state before.
    assert all(
        w in " ".join([*before, *after]).split() for x in result for w in x.split()
    )
    assert len(result) >= len(after)


def orders(count, *, rare=False):
    """Orders that are closed and so vanish; with `rare`, names that are seen once."""
    out = []
    for number in range(count):
        name = f"item{'abcdefghij'[number % 10]}{chr(97 + number // 10)}"
        task = Task(id=f"o{number}", instruction="close", family="orders")
        before = ("list of orders", f"order {name} open", "order z open")
        after = ("list of orders", "order z open")
        if rare:
            before, after = (f"list {name} open",), ("list open",)
        step = helpers.transition(before, "close", after)
        out.append(helpers.episode(f"e{number}", task, [step]))
    return out


def test_lines_that_vanish_now_and_then_may_vanish():
    facts = lasting_facts(orders(60))["orders"]
    assert facts.kinds == {"list"}
    after = ("list of orders",)
    assert contradiction(("list of orders", "order z open"), after, facts) is None


def test_where_new_words_keep_being_deleted_every_word_may_be():
    # `open` stood 60 times and stayed, but each deletion is of a new word.
    facts = lasting_facts(orders(60, rare=True))["orders"]
    assert facts.words == frozenset()


def test_a_half_that_the_other_half_contradicts_says_nothing():
    # In the first half every word stays; in the second `red` goes each time. So that
    # `blue` has not gone yet says little.
    out = []
    for number in range(80):
        task = Task(id=f"h{number}", instruction="wait", family="flags")
        before = ("flags red blue",)
        after = before if number < 40 else ("flags blue",)
        step = helpers.transition(before, "wait", after)
        out.append(helpers.episode(f"e{number}", task, [step]))
    assert lasting_facts(out)["flags"].words == frozenset()
    assert lasting_facts(out[:40])["flags"].words == {
        ("flags", "red"),
        ("flags", "blue"),
    }


def test_too_little_was_seen():
    few: list[Episode] = orders(MIN_STOOD - 1)
    assert lasting_facts(few)["orders"] == LastingFacts(
        frozenset({"list", "order"}), frozenset(), frozenset()
    )


def test_numbers_are_values_that_change():
    out = []
    for number in range(60):
        task = Task(id=f"n{number}", instruction="wait", family="purse")
        state = ("purse 7 coins",)
        out.append(
            helpers.episode(
                f"e{number}", task, [helpers.transition(state, "wait", state)]
            )
        )
    assert lasting_facts(out)["purse"].words == {("purse", "coins")}
