import pytest

from worldmodel.fidelity import facts as module
from worldmodel.fidelity.facts import known_facts, preserves

HALL = "hall west kitchen hall north pantry unseen"
BEFORE = ("kitchen east hall unseen", "carry coin at kitchen")
AFTER = ("kitchen east hall", HALL, "carry coin at hall")


def test_known_facts_by_hand():
    facts = known_facts(BEFORE, AFTER)
    assert not facts.lines  # each line changed
    # "unseen" and the second "kitchen" went; the hall's own line is new.
    assert sorted(facts.fragments) == [
        ("carry", "coin", "at"),
        ("kitchen", "east", "hall"),
    ]
    same = known_facts(("a", "a", "b"), ("a", "a", "c"))
    assert (same.lines["a"], same.fragments) == (2, ())


@pytest.mark.parametrize(
    ("predicted", "kept"),
    [
        (AFTER, True),
        (("kitchen east hall", "hall south bath", "carry coin at hall"), True),
        (("kitchen east hall", "carry coin at hall"), True),  # what is new is missing
        (("kitchen east bath", HALL, "carry coin at hall"), False),  # a changed exit
        (("kitchen", HALL, "carry coin at hall"), False),  # a lost one
        (("kitchen east hall", HALL, "carry nothing at hall"), False),
        ((), False),
    ],
)
def test_a_prediction_keeps_what_was_known_or_loses_it(predicted, kept):
    assert preserves(known_facts(BEFORE, AFTER), predicted) is kept


def test_a_line_that_stays_must_stay_as_often():
    facts = known_facts(("a", "a", "b"), ("a", "a", "c"))
    assert preserves(facts, ("a", "d", "a"))
    assert not preserves(facts, ("a", "c"))


def test_two_fragments_need_two_lines():
    facts = known_facts(("lamp off", "lamp red off"), ("lamp on", "lamp red on"))
    assert not preserves(facts, ("lamp red on",))
    assert preserves(facts, ("lamp red on", "lamp x"))


def test_long_tables_are_compared_line_by_line(monkeypatch):
    """Each pair would be compared else, and a scorecard would take minutes."""
    before = tuple(f"sensor {i} reads 1" for i in range(9))
    after = tuple(f"sensor {i} reads 2" for i in range(9))
    whole = known_facts(before, after)
    monkeypatch.setattr(module, "MAX_PAIRS", 80)
    assert sorted(known_facts(before, after).fragments) == sorted(whole.fragments)
    assert ("sensor", "8", "reads") in whole.fragments
