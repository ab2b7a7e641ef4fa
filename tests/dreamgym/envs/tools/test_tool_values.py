"""Values in sight: which are taken for arguments, and in which order."""

import random
from typing import Literal

import pytest

from dreamgym.envs.tools.signatures import MAX_COMBINATIONS, Argument, Signature
from dreamgym.envs.tools.values import Sight, fair_shares


def texts(instruction, *lines, unlikely=()):
    return list(Sight(instruction, lines, unlikely=unlikely).values(str))


def test_names_come_first_then_words_of_the_instruction_numbers_and_other_words():
    listed = texts(
        "book a trip to Rome for at most 500 euros",
        "trip T12 to Oslo",
        "the price 49 is low",
        unlikely=("book",),
    )
    assert listed == [
        "Rome",
        "T12",
        "Oslo",
        "trip",
        "euros",
        "500",
        "49",
        "price",
        "low",
    ]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"city": "New York", "name": "joe"}', "New York"),
        ("a file called 'old notes'", "old notes"),
        (r'said "a \"b\" c"', 'a "b" c'),
        ("mail to ann@mail.org", "ann@mail.org"),
        ("open src/main.py now", "src/main.py"),
        ("meet at 10:30", "10:30"),
        ("the iPhone", "iPhone"),
    ],
)
def test_quoted_texts_and_names_are_values(line, value):
    assert texts("look around", line)[0] == value


def test_a_capital_that_begins_a_sentence_is_no_name():
    listed = texts('Find Ann. Otherwise ask Bob! "Why?" Say no')
    assert listed == ["Why?", "Ann", "Bob", "Find", "Otherwise", "ask", "Why", "Say"]


def test_a_word_that_a_line_names_like_the_argument_comes_before_others():
    sight = Sight(
        "assign the ticket to Ann, whose topic it is", ("ticket T766 topic printer",)
    )
    topics = list(sight.values(str, "topic"))
    assert topics[0] == "printer"
    assert {"Ann", "T766"} <= set(topics)  # nothing is left out for it
    # In a sentence any word may follow, and a word of the state that no line names so
    # comes as before.
    assert next(iter(sight.values(str, "agent"))) == "Ann"
    plain = Sight("say which topic it is", ("ticket T766",))
    assert next(iter(plain.values(str, "topic"))) == "T766"
    # Where a value with a digit is called like the argument, it comes first.
    assert next(iter(sight.values(str, "ticket_id"))) == "T766"


def test_what_is_called_like_the_argument_comes_first_with_few_others():
    sight = Sight(
        "settle ticket T16 about order R46 of ann@mail.org",
        ("customer C79 region eu", '"customer_id": "C80"', "price 20 days 5"),
    )
    assert list(sight.values(str, "order_id")) == ["R46", "T16", "ann@mail.org", "C80"]
    # Next to the label first: `of` stands between `order R46` and the address.
    assert list(sight.values(str, "customer_id"))[:2] == ["C79", "C80"]
    assert list(sight.values(str, "customerId"))[:2] == ["C79", "C80"]
    assert next(iter(sight.values(int, "days"))) == 5
    assert list(sight.values(int, "days")) == [5, 20]
    # `id` alone says nothing, and neither does a name that stands nowhere.
    for name in ("id", "key", "branch", ""):
        assert list(sight.values(str, name)) == list(sight.values(str))


def test_a_key_of_json_is_no_name_and_an_apostrophe_no_quote():
    assert texts("", '{"price": "high"}') == ["high", "price"]
    assert not any(" " in x for x in texts("", "it isn't ann's or bob's"))
    assert texts("", "Trips go") == ["Trips", "go"]  # a capital that begins a line


def test_words_without_content_stand_in_where_there_is_nothing_else():
    assert texts("to the") == ["to", "the"]
    assert texts("book", unlikely=("book",)) == ["book"]
    assert texts("to the cat") == ["cat"]


@pytest.mark.parametrize(
    ("hint", "values"),
    [
        (int, [7, 2]),
        (float, [7.0, 2.5, 2.0]),
        (bool, [False, True]),
        (Literal["a", 2], ["a", 2]),
        (int | None, [7, 2, None]),
        (dict, []),
    ],
)
def test_values_of_other_types(hint, values):
    sight = Sight("put 7 apples", ("2.5 kilos", "2 boxes", "7 apples"))
    assert list(sight.values(hint)) == values


def test_likely_combinations_come_first_and_many_arguments_stay_few():
    def two(self, a: str, b: int): ...

    sight = Sight("move X1 Y2 by 3 or 4")
    found = Signature.of_method(two).candidates(sight)
    assert found[0] == {"a": "X1", "b": 3}
    assert {"a": "Y2", "b": 3} in found[:3]
    assert {"a": "X1", "b": 4} in found[:3]

    def six(self, a: str, b: str, c: str, d: str, e: str, f: str, g: int = 1): ...

    many = Signature.of_method(six).candidates(
        Sight(" ".join(f"N{i}" for i in range(20)))
    )
    assert 1 < len(many) <= MAX_COMBINATIONS
    assert len({tuple(row.values()) for row in many}) == len(many)
    assert {row["a"] for row in many} == {row["f"] for row in many}


def test_shares_are_equal_and_what_a_short_list_leaves_goes_to_the_others():
    lists = [list("abc"), list(range(50)), list(range(100, 200)), []]
    chosen = fair_shares(lists, 23, random.Random(0))
    assert chosen[:3] == list("abc")
    small, large = chosen[3:13], chosen[13:]
    assert len(set(small)) == len(set(large)) == 10
    assert small[:5] == [0, 1, 2, 3, 4]  # the best half, and others by chance
    assert set(small) < set(range(50))
    assert set(large) < set(range(100, 200))
    assert fair_shares(lists, 23, random.Random(0)) == chosen
    assert fair_shares([], 5, random.Random(0)) == []


def test_lists_have_one_or_two_values_in_sight():
    sight = Sight("pack T1 and T2", ("weights 3 and 5",))
    assert list(sight.values(list[str]))[:3] == [["T1"], ["T2"], ["pack"]]
    assert ["T1", "T2"] in sight.values(list[str])
    assert list(sight.values(list[int])) == [[3], [5], [3, 5]]
    assert list(sight.values(list)) == list(sight.values(list[str]))
    assert list(sight.values(list[dict])) == []


def test_arguments_with_a_default_are_tried_one_at_a_time_behind_the_others():
    arguments = {
        "item": Argument(),
        "count": Argument(required=False, default=3),
        "wrap": Argument(required=False, default=False),
    }
    signature = Signature(
        "send", "", arguments, {"item": str, "count": int, "wrap": bool}
    )
    calls = signature.candidates(Sight("send T1", ("left 3 of 7",)))
    alone = [c for c in calls if c.keys() == {"item"}]
    assert calls[: len(alone)] == alone
    assert {"item": "T1", "count": 7} in calls
    assert {"item": "T1", "wrap": True} in calls
    assert all(len(c) <= 2 for c in calls)
    assert not any(c.get("count") == 3 or c.get("wrap") is False for c in calls)


@pytest.mark.parametrize(
    ("hint", "never"),
    [(dict, True), (list[dict], True), (str | dict, False), (list, False)],
)
def test_an_object_that_must_be_given_is_never_tried(hint, never):
    signature = Signature("put", "", {"thing": Argument()}, {"thing": hint})
    assert signature.never_tried() == ["thing"] * never
    assert (list(signature.candidates(Sight("put T1"))) == []) == never
