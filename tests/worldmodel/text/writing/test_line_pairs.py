"""Numbers as changes in lines of which another word changes along with them."""

import dataclasses
import json
import random

import pytest

from tests.worldmodel.text.writing.test_number_changes import shop
from worldmodel.text.identifiers import ReferenceRule
from worldmodel.text.references import reference_rule
from worldmodel.text.writing.number_changes import (
    ALL_LINES,
    change_rule,
    read_changes,
    write_changes,
)
from worldmodel.text.writing.states import StateWriting

BY_OPENING = ALL_LINES._replace(by_opening=True)
HOT = ("core temperature 310 rising", "steps left 4")
HAND = [
    (HOT, ("core temperature 340 critical", HOT[1]), "core temperature +30 critical"),
    (HOT, ("core temperature 290 falling", HOT[1]), "core temperature +-20 falling"),
    (
        ("heat 4 up, load 5 low",),
        ("heat 6 off, load 9 low",),
        "heat +2 off, load +4 low",
    ),
    # The second numbers stand behind other words.
    (("tank 5 of 10 full",), ("tank 6 with 2 leaks",), "tank +1 with 2 leaks"),
    # Of lines that begin alike it could not be told which one, or which is new.
    (("gate 1 open", "gate 2 shut"), ("gate 5 ajar",), "gate +5 ajar"),
    (("gate 1 open",), ("gate 5 shut", "gate 7 ajar"), "gate +5 shut"),
    # A line of the old kind is there still.
    (("gate 1 open",), ("gate 5 shut", "gate 1 open"), "gate +5 shut"),
    # Lists are numbered: the number says which thing it is.
    (("3 apples",), ("5 pears",), "+5 pears"),
    (("[1] link",), ("[4] button",), "[4] button"),
    (("# 1 link",), ("# 4 button",), "# +4 button"),
    (("switch 3 off",), ("switch 3 on",), "switch 3 on"),
    # No number that could be added to, and one that was none.
    (("id 007 old",), ("id 9 new",), "id 9 new"),
    (("core temperature unclear",), HOT, "core temperature +310 rising"),
]


@pytest.mark.parametrize(("before", "after", "line"), HAND)
def test_lines_that_begin_alike_are_compared_if_the_rule_says_so(before, after, line):
    written = write_changes(before, after, BY_OPENING)
    assert written[0] == line
    assert read_changes(before, written, BY_OPENING) == after
    # Rules of earlier versions compare lines of one kind alone.
    earlier = write_changes(before, after)
    assert read_changes(before, earlier) == after
    assert not {"+30", "+-20", "+1"} & set(earlier[0].split())


def test_an_answer_is_read_by_the_rule_of_its_run():
    line = "core temperature +30 critical"
    for rule, number in ((ALL_LINES, 30), (BY_OPENING, 340)):
        read = StateWriting(changes=rule).read(HOT, (line, HOT[1]))
        assert read == (f"core temperature {number} critical", HOT[1])
    with pytest.raises(ValueError, match="does not have: 'core"):
        StateWriting(changes=BY_OPENING).read(HOT, (f"{line} or +4",))


@pytest.mark.medium
def test_whatever_is_written_is_read_back():
    rng = random.Random(0)
    pieces = ("ice", "sand", "+4", "+-2", "-1", "0", "7", "12", "A3", "007", "\0")
    pieces += ("$1.50", "2,50 €", "1.5", "-0.5,", "(3)", "3/4", "7:30")

    def line(opening):
        words = [rng.choice(pieces) for _ in range(rng.randint(1, 3))]
        return " ".join([opening, *words])

    def state():
        openings = rng.choices(("ice", "sand", "heat at", "#"), k=rng.randint(0, 3))
        return tuple(map(line, openings))

    paired = 0
    for _ in range(1500):
        before, after, answer = state(), state(), state()
        written = write_changes(before, after, BY_OPENING)
        if written != after:  # a state that holds `+4` itself may be misread
            assert read_changes(before, written, BY_OPENING) == after
        paired += written != write_changes(before, after)
        assert len(read_changes(before, answer, BY_OPENING)) == len(answer)
    assert paired > 50


def heated(count, *, turns=False):
    """Episodes of `shop` in which another word of the line changes with its number."""
    words = ("rising", "high", "critical")

    def line(text, i):
        return text.replace("ice", "heat") + f" {words[i % 3]}"

    out = []
    for e in shop(count, turns=turns):
        steps = [
            dataclasses.replace(
                t,
                state=(t.state[0], line(t.state[1], i)),
                next_state=(t.state[0], line(t.next_state[1], i + 1)),
            )
            for i, t in enumerate(e.transitions)
        ]
        out.append(dataclasses.replace(e, transitions=tuple(steps)))
    return out


def test_lines_that_begin_alike_are_compared_where_their_changes_are_at_hand():
    assert change_rule(heated(5)) == BY_OPENING
    t = heated(5)[0].transitions[1]
    (_, line) = write_changes(t.state, t.next_state, BY_OPENING)
    assert line == f"heat +{t.action.split()[1]} critical"
    # The action says the number: each is another thing, which changes no decision.
    assert change_rule(heated(5, turns=True)) is None
    assert change_rule([*shop(5), *heated(5, turns=True)]) == ALL_LINES


def test_files_of_earlier_versions_compare_lines_of_one_kind_alone():
    rule = reference_rule(heated(5))
    assert rule is not None
    assert ReferenceRule.parse(rule.json()).changes == rule.changes == BY_OPENING
    earlier = json.loads(rule.json())
    del earlier["changes"]["by_opening"]
    assert ReferenceRule.parse(json.dumps(earlier)).changes == ALL_LINES
