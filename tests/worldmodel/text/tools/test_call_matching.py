"""Made and expected calls: pairs by step, by order, and as an assignment."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.call_matching import OTHER_TOOL, match_calls
from worldmodel.text.tools.tool_calls import MATCHES, Call

A, B, C = (Call(name, {"x": i}) for i, name in enumerate("abc"))
EXTRA = Call("look", {})


def pairs(made, expected, match):
    matching = match_calls([[c] for c in made], [[c] for c in expected], match)
    return [x.expected for x in matching.made], [c for _, c in matching.missed]


def test_one_harmless_extra_call_shifts_all_later_ones_by_step_only():
    made = [A, EXTRA, B, C]
    assert pairs(made, [A, B, C], "step") == ([A, B, C, None], [])  # all but A wrong
    for match in ("order", "assignment"):
        assert pairs(made, [A, B, C], match) == ([A, None, B, C], [])


def test_the_order_matters_unless_calls_are_assigned():
    assert pairs([B, A], [A, B], "assignment") == ([B, A], [])
    got, missed = pairs([B, A], [A, B], "order")
    assert sorted(c is None for c in got) == [False, True]
    assert len(missed) == 1


def test_a_wrong_tool_is_compared_with_what_nothing_else_matches():
    for match in ("order", "assignment"):
        assert pairs([A, EXTRA], [A, B], match) == ([A, B], [])


def test_of_equal_calls_the_first_is_the_expected_one():
    for match in ("order", "assignment"):
        assert pairs([A, A, A], [A], match) == ([A, None, None], [])


def test_of_one_tool_the_better_arguments_match():
    near, far = Call("a", {"x": 1}), Call("a", {"x": 9})
    for match in ("order", "assignment"):
        assert pairs([far, near], [Call("a", {"x": 1})], match)[0] == [
            None,
            Call("a", {"x": 1}),
        ]


def test_calls_at_once_are_matched_within_their_step():
    matching = match_calls([[B, A]], [[A, B]], "step")
    assert [x.expected for x in matching.made] == [B, A]
    assert [x.step for x in matching.made] == [0, 0]


def test_nothing_made_and_nothing_expected():
    for match in MATCHES:
        assert pairs([], [A], match) == ([], [A])
        assert pairs([A], [], match) == ([None], [])
        assert pairs([], [], match) == ([], [])
    with pytest.raises(ValueError, match="'step', 'order', 'assignment'"):
        match_calls([], [], "best")


CALLS = st.lists(
    st.builds(
        Call,
        st.sampled_from("ab"),
        st.fixed_dictionaries({"x": st.integers(0, 3)}),
    ),
    max_size=4,
)


def _value(made, expected):
    if made.tool != expected.tool:
        return OTHER_TOOL
    return 1 + argument_score(made.arguments, expected.arguments)


@settings(max_examples=40, deadline=None)
@given(CALLS, CALLS)
def test_the_matching_is_the_best_of_all(made, expected):
    # Oracle: every way to choose as many calls of both sides and to pair them.
    for match, orders in (
        ("assignment", itertools.permutations),
        ("order", itertools.combinations),
    ):
        best = max(
            sum(
                _value(made[i], expected[j]) for i, j in zip(rows, columns, strict=True)
            )
            for k in range(min(len(made), len(expected)) + 1)
            for rows in itertools.combinations(range(len(made)), k)
            for columns in orders(range(len(expected)), k)
        )
        matching = match_calls([[c] for c in made], [[c] for c in expected], match)
        pairs = [(x.call, x.expected) for x in matching.made if x.expected is not None]
        np.testing.assert_allclose(sum(_value(*p) for p in pairs), best, atol=1e-4)
        assert len(matching.missed) == len(expected) - len(pairs)
