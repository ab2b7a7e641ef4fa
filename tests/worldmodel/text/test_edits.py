import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldmodel.text import edits
from worldmodel.text.edits import Edit

# Few distinct lines, so that repeats, moves and partial matches are common.
STATES = st.lists(st.sampled_from(["a", "b", "c", "d", "the end"]), max_size=7).map(
    tuple
)


@given(before=STATES, after=STATES)
@example(before=(), after=())
@example(before=(), after=("a", "b"))
@example(before=("a", "b"), after=())
@example(before=("b",), after=("a", "b"))
@example(before=("a", "b"), after=("a", "c", "b"))
@example(before=("a", "a", "b"), after=("b", "a", "a"))
def test_apply_undoes_diff(before, after):
    assert edits.apply(before, edits.diff(before, after)) == after


@given(state=STATES)
def test_no_change_costs_nothing(state):
    assert edits.diff(state, state) == ()


@given(before=STATES, after=STATES)
def test_each_line_is_edited_once_in_order(before, after):
    # apply() keeps one edit a line, so a script naming a line twice would lose one.
    named = [e.index for e in edits.diff(before, after) if e.index is not None]
    assert named == sorted(set(named))


@pytest.mark.parametrize(
    ("before", "after", "script"),
    [
        (("a", "b", "c"), ("a", "x", "c"), (Edit(1, ("x",)),)),
        (("a", "b", "c"), ("a", "c"), (Edit(1, ()),)),
        (("a", "b"), ("a", "b", "c", "d"), (Edit(None, ("c", "d")),)),
        (("b",), ("a", "b"), (Edit(0, ("a", "b")),)),
        (("a", "b"), ("a", "x", "b"), (Edit(0, ("a", "x")),)),
        (("a", "b"), ("x", "y", "z"), (Edit(0, ("x",)), Edit(1, ("y", "z")))),
        ((), ("a",), (Edit(None, ("a",)),)),
    ],
)
def test_diff_by_hand(before, after, script):
    assert edits.diff(before, after) == script


def test_apply_by_hand():
    # Indices are of the state before, whatever the edits ahead of them do.
    script = (Edit(None, ("e",)), Edit(0, ()), Edit(2, ("x", "y")))
    assert edits.apply(("a", "b", "c"), script) == ("b", "x", "y", "e")


@pytest.mark.parametrize("index", [-1, 2, 31])
def test_an_edit_outside_the_state_is_an_error(index):
    with pytest.raises(IndexError, match=f"line {index} in a state of 2 lines"):
        edits.apply(("a", "b"), (Edit(index, ("x",)),))
