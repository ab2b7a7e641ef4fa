"""Reveals that follow from the instruction, by hand, in a house of eight rooms."""

import dataclasses
import itertools

import pytest

from tests import helpers
from worldmodel.data.records import Task
from worldmodel.experience.base import Prediction
from worldmodel.fidelity.instruction import (
    Dependence,
    dependences,
    instruction_agreement,
    mentions,
)

ROOMS = ("attic", "barn", "cellar", "den", "foyer", "garage", "hall", "kitchen")


def arrival(room: str, content: str, number: int = 0) -> tuple[tuple, str, tuple]:
    """The state, the action and the next state of entering a room."""
    state = (f"door 1 {room} unseen", "said ok at porch")
    return (
        state,
        "enter door 1",
        (
            f"door 1 {room}",
            f"paint {number}",
            f"see {content}\
 at {room}",
        ),
    )


def episode(instruction, room, content, number=0):
    state, action, after = arrival(room, content, number)
    task = Task(
        id=f"{instruction}-{number}",
        instruction=instruction,
        family="house",
        initial_state=state,
    )
    step = helpers.transition(state, action, after, reveals=True)
    return helpers.episode(f"{instruction}-{room}-{number}", task, [step])


def fetching():
    """The coin is in the room that it is to be brought from, and nowhere else."""
    return [
        episode(f"bring the coin from {start} to {goal}", room, content)
        for start, goal, room in itertools.product(ROOMS, ROOMS, ROOMS)
        if start != goal
        for content in ["coin" if room == start else "dust"]
    ]


def finding():
    """The coin is anywhere: the instruction is the same for all tasks."""
    return [
        episode("find the coin", room, "coin" if number % 2 else "dust", number)
        for number, room in enumerate(ROOMS * 8)
    ]


class Answers:
    """A model that shows what `content(instruction, room)` says."""

    def __init__(self, content, error=None):
        self.content, self.error, self.queries = content, error, []

    def predict(self, queries):
        self.queries += queries
        out = []
        for q in queries:
            room = q.state[0].split()[2]
            after = arrival(room, self.content(q.task.instruction, room))[2]
            out.append(Prediction(after, 0.0, "go", "", 1.0, self.error))
        return out

    def vary(self, groups, *, key):
        del key
        return [None] * len(groups)


def true_content(instruction, room):
    return "coin" if f"from {room} " in instruction else "dust"


def brief(result):
    return {
        k: (v["mean"], v["count"]) if isinstance(v, dict) else v
        for k, v in result.items()
    }


def test_the_coin_depends_on_the_room_that_stands_after_from():
    rows = mentions(fetching())
    # 8 * 7 tasks, 8 arrivals each; in the new part `at ROOM` names the present one.
    assert sum(r.word == "coin" for r in rows) == 448
    found = dependences(rows)
    assert set(found) == {("house", "coin")}
    # Several neighbours tell the same: `from ROOM to` here, `at ROOM` there.
    dependence = found["house", "coin"]
    assert dependence.neighbor in ("from _", "_ to")
    coins = [r for r in rows if r.word == "coin"]
    assert all(dependence.expects(r) == r.present for r in coins)
    assert sum(r.present for r in coins) == 56


@pytest.mark.medium
def test_a_dream_that_reads_the_instruction_and_one_that_shows_its_mean():
    episodes = fetching()
    right = Answers(true_content)
    assert brief(instruction_agreement(right, episodes, limit=40)) == {
        "agree": (1.0, 40),
        "shown": (1.0, 20),
        "elsewhere": (0.0, 20),
        "words": ["coin"],
    }
    never = Answers(lambda *_: "dust")
    assert brief(instruction_agreement(never, episodes, limit=40)) == {
        "agree": (0.5, 40),
        "shown": (0.0, 20),
        "elsewhere": (0.0, 20),
        "words": ["coin"],
    }
    opposite = Answers(lambda text, room: "dust" if f"{room} to" in text else "coin")
    result = brief(instruction_agreement(opposite, episodes, limit=40))
    assert result["agree"] == (0.0, 40)


def test_balanced_accuracy_weighs_both_sides_alike():
    # 56 appearances and 392 absences: with a limit of 400 they are 56 and 200.
    result = instruction_agreement(Answers(lambda *_: "dust"), fetching(), limit=400)
    assert (result["shown"]["count"], result["elsewhere"]["count"]) == (56, 200)
    assert result["agree"]["mean"] == 0.5  # and not 200 of 256
    # Weights 200 and 56: (2 * 56 * 200)^2 / (56 * 200^2 + 200 * 56^2) = 175.
    assert result["agree"]["effective"] == 175


def test_an_answer_with_an_error_agrees_with_nothing():
    result = instruction_agreement(
        Answers(true_content, error="cut"), fetching(), limit=40
    )
    assert brief(result)["agree"] == (0.0, 40)


def test_what_the_instruction_does_not_say_is_not_asked():
    model = Answers(true_content)
    result = instruction_agreement(model, finding(), limit=40)
    assert brief(result) == {
        "agree": (None, 0),
        "shown": (None, 0),
        "elsewhere": (None, 0),
        "words": [],
    }
    assert model.queries == []
    # Nor where the coin lies anywhere, whatever the instruction names.
    episodes = [
        episode(f"bring the coin from {a} to {b}", c, "coin" if n % 2 else "dust", n)
        for n, (a, b, c) in enumerate(itertools.product(ROOMS, ROOMS, ROOMS))
        if a != b
    ]
    assert instruction_agreement(model, episodes, limit=40)["words"] == []


def test_a_word_in_sight_and_a_room_out_of_sight_are_no_cases():
    """What is in sight is copied; a room that nobody could expect cannot be known."""
    seen = fetching()[0]
    t = seen.transitions[0]
    step = dataclasses.replace(t, state=(*t.state, "map shows coin"))
    rows = mentions([dataclasses.replace(seen, transitions=(step,))])
    assert "bring" in {r.word for r in rows}
    assert "coin" not in {r.word for r in rows}
    hidden = []
    for e in fetching():
        t = e.transitions[0]
        step = dataclasses.replace(t, state=("door 1 unseen", "said ok at porch"))
        hidden.append(dataclasses.replace(e, transitions=(step,)))
    assert dependences(mentions(hidden)) == {}


def test_steps_that_reveal_nothing_are_predictable_and_not_asked():
    plain = []
    for e in fetching():
        step = dataclasses.replace(e.transitions[0], reveals=False)
        plain.append(dataclasses.replace(e, transitions=(step,)))
    assert mentions(plain) == []


def test_a_dependence_expects_nothing_without_its_slot():
    row = mentions(fetching())[0]
    assert Dependence("behind _", "from _").expects(row) is None
