import itertools

import pytest

from tests import helpers
from worldmodel.data.records import Task
from worldmodel.text import identifiers


def test_words_keep_their_spelling_and_lose_punctuation():
    text = 'T25, "Mira" leaves at 7:00; costs 3.50 (row_3).'
    assert identifiers.words(text) == [
        "T25",
        "Mira",
        "leaves",
        "at",
        "7:00",
        "costs",
        "3.50",
        "row_3",
    ]


@pytest.mark.parametrize(
    ("word", "share", "want"),
    [
        # One of 20 tasks is the limit of plain words, half of them that of names.
        ("kettle", 0.04, True),
        ("kettle", 0.05, False),
        ("T25", 0.49, True),
        ("T25", 0.5, False),
        ("Mira", 0.49, True),
    ],
)
def test_what_few_tasks_hold_is_an_identifier(word, share, want):
    assert identifiers.is_identifier(word, share) is want


def episode(name: str, family: str, line: str):
    task = Task(id=name, instruction="go", family=family, initial_state=(line,))
    step = helpers.transition((line,), "go", (line,))
    return helpers.episode(f"e-{name}", task, [step])


def test_shares_are_those_of_a_familys_tasks():
    episodes = [
        episode("a", "one", "x y"),
        episode("b", "one", "x"),
        episode("c", "two", "y"),
    ]
    assert identifiers.task_shares([*episodes, *episodes]) == {
        "one": {"go": 1.0, "x": 1.0, "y": 0.5},
        "two": {"go": 1.0, "y": 1.0},
    }


def test_copied_by_hand():
    # To be copied: T25 twice and 42 (a number, though every task holds it). 99 stands
    # in no source, and `held` is no identifier.
    wanted, hits = identifiers.copied(
        ["book T25", "costs 42"],
        ["held T25 due 42", "T25 99"],
        ["held T25 due 99"],
        {"held": 1.0, "due": 1.0, "42": 1.0, "99": 1.0, "T25": 0.1},
    )
    assert wanted == {"T25": 2, "42": 1}
    assert hits == {"T25": 1}


def counted(*lines: str, action: str = "next", reward: float = 0.0, **rest):
    """An episode of one task whose state is a line that changes at each step."""
    task = Task(id=f"{lines}", instruction=action, family="x", initial_state=lines[:1])
    return helpers.episode(
        "e",
        task,
        [
            helpers.transition((a,), action, (b,), reward, **rest)
            for a, b in itertools.pairwise(lines)
        ],
    )


def test_a_family_that_counts_computes_its_numbers():
    assert identifiers.computes_numbers([counted("at 17", "at 18", "at 19")])
    # What is revealed is no sum of what was seen, and what is repeated is no result.
    assert not identifiers.computes_numbers([counted("at 17", "at 803", "at 17")])


@pytest.mark.parametrize("unit", [1.0, 1000.0, 1e-5])
def test_rewards_of_many_values_are_computed_from_numbers(unit):
    prices = [counted("a", "b", reward=unit * i) for i in range(5)]
    assert identifiers.computes_numbers(prices)
    assert not identifiers.computes_numbers(prices[:4])


def test_a_winning_answer_that_stood_nowhere_is_computed():
    won = {"terminated": True, "success": True}
    task = Task(id="a", instruction="add", family="x", initial_state=("30 and 40",))
    answers = [
        helpers.episode(
            "e",
            task,
            [helpers.transition(task.initial_state, action, ("right",), **won)],
        )
        for action in ("say 70", "say 30")
    ]
    assert identifiers.computes_numbers(answers[:1])
    assert not identifiers.computes_numbers(answers[1:])


def test_words_of_many_tasks_are_the_vocabulary_of_a_large_family():
    many = [episode(f"t{n}", "many", f"taken 7 key{n}") for n in range(10)]
    few = [episode(f"t{n}", "few", "taken") for n in range(9)]
    vocabulary = identifiers.common_words([*many, *few])
    assert list(vocabulary) == ["many"]
    assert "taken" in vocabulary["many"].split()
    assert not {"7", "key1"} & set(vocabulary["many"].split())  # values


def test_numbers_of_many_parts_have_a_value():
    """Text from outside may hold as many colons as it likes."""
    number, _ = identifiers.value("1:" * 300 + "1")
    assert number == pytest.approx(60 / 59)
    assert identifiers.value("7:30")[0] == 7.5
