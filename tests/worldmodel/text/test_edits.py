import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worldmodel.text import edits
from worldmodel.text.edits import Edit, Swap

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
def test_no_edit_of_real_states_writes_its_line_as_it_was(before, after):
    script = edits.with_swaps(before, edits.diff(before, after))
    assert edits.repeated_line(before, script) is None


@pytest.mark.parametrize(
    ("piece", "repeated"),
    [
        ("lamp on", True),
        ("lamp off", False),
        (0, True),  # the line moves to where it is
        (1, False),
        (Swap("lamp on", "lamp on"), True),
        (Swap("lamp on", "lamp off"), False),
    ],
)
def test_an_edit_that_changes_nothing_is_found(piece, repeated):
    state = ("lamp on", "door shut")
    got = edits.repeated_line(state, (Edit(1, ("door open",)), Edit(0, (piece,))))
    assert got == ("lamp on" if repeated else None)
    # A swap is where its words are, as in `apply`.
    moved = (Edit(0, (Swap("door shut", "door open"),)),)
    assert edits.repeated_line(state, moved) is None
    # A line may be written before others that come behind it.
    assert edits.repeated_line(state, (Edit(0, (piece, "more")),)) is None
    assert edits.repeated_line(state, (Edit(None, ("lamp on",)),)) is None
    # Where lines have their place by their prefix, it is written at that place.
    elsewhere = (Edit(1, ("lamp on",)),)
    assert edits.repeated_line(state, elsewhere) is None
    assert edits.repeated_line(state, elsewhere, keyed_by_prefix=True) == "lamp on"
    changed = (Edit(1, ("lamp off",)),)
    assert edits.repeated_line(state, changed, keyed_by_prefix=True) is None


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
        (("b",), ("a", "b"), (Edit(0, ("a", 0)),)),
        (("a", "b"), ("a", "x", "b"), (Edit(0, (0, "x")),)),
        # What stands after a last line that is still itself is new, and no part of it.
        (("a", "b 1"), ("a", "b 2", "c"), (Edit(1, ("b 2",)), Edit(None, ("c",)))),
        (("a", "b"), ("x", "y", "z"), (Edit(0, ("x",)), Edit(1, ("y", "z")))),
        ((), ("a",), (Edit(None, ("a",)),)),
        # Lines that move are named, not written: c to the front, a to the end.
        (("a", "b", "c"), ("c", "a", "b"), (Edit(0, (2, 0)),)),
        (("a", "b", "c"), ("b", "c", "a"), (Edit(None, (0,)),)),
        # Of two lines that change places it is the upper one that moves.
        (("x", "b", "c"), ("y", "c", "b"), (Edit(0, ("y",)), Edit(None, (1,)))),
        # Of two equal lines only the last has a name to move by.
        (("a", "a", "b"), ("b", "a"), (Edit(0, ()), Edit(None, (1,)))),
        # Lines that change places are not written again, whatever stands between.
        (
            ("hall is dark", "carry a key", "said ok", "attic has a lamp"),
            ("attic has a lamp", "carry a key", "said ok", "hall is dark"),
            (Edit(0, (3,)), Edit(3, (0,))),
        ),
        (
            ("a", "b", "c", "d"),
            ("d", "x", "b", "c", "a"),
            (Edit(0, (3, "x")), Edit(3, (0,))),
        ),
        # A line that stays is no source: a copy of it is written.
        (("a", "b", "c"), ("b", "b", "c"), (Edit(0, ("b",)),)),
    ],
)
def test_diff_by_hand(before, after, script):
    assert edits.diff(before, after) == script


def test_apply_by_hand():
    # Indices are of the state before, whatever the edits ahead of them do.
    script = (Edit(None, ("e",)), Edit(0, ()), Edit(2, ("x", "y")))
    assert edits.apply(("a", "b", "c"), script) == ("b", "x", "y", "e")


def test_a_line_is_named_by_its_first_words():
    state = ("hall has box", "hall north attic", "attic", "hall", "attic")
    names = [edits.line_name(state, i) for i in range(5)]
    assert names == ["hall has", "hall north", None, "hall", "attic"]
    assert edits.find_line(state, "hall n") is None
    assert edits.find_line(state, "hall north attic") == 1


def test_apply_moves_and_copies_by_hand():
    # A line that is named leaves its place, unless an edit of its own says otherwise.
    assert edits.apply(("a", "b", "c"), (Edit(0, ("x", 2)),)) == ("x", "c", "b")
    both = (Edit(0, (2,)), Edit(2, ("y", 2)))
    assert edits.apply(("a", "b", "c"), both) == ("c", "b", "y", "c")
    assert edits.apply(("a", "b"), (Edit(None, (0,)),)) == ("b", "a")


@pytest.mark.parametrize("index", [-1, 2, 31])
def test_an_edit_outside_the_state_is_an_error(index):
    with pytest.raises(IndexError, match=f"line {index} in a state of 2 lines"):
        edits.apply(("a", "b"), (Edit(index, ("x",)),))
    with pytest.raises(IndexError, match=f"line {index} in a state of 2 lines"):
        edits.apply(("a", "b"), (Edit(0, (index,)),))


ROOMS = ("found x", "pantry near hall", "hall east pantry", "at hall")


@pytest.mark.parametrize(
    ("script", "want"),
    [
        # The map said where the pantry is; whoever is in it knows more.
        (
            (Edit(2, ("hall east pantry", "pantry west hall")),),
            ("found x", "hall east pantry", "pantry west hall", "at hall"),
        ),
        # A status written at the wrong place is still the status.
        ((Edit(2, ("at pantry",)),), ("found x", "pantry near hall", "at pantry")),
        ((Edit(None, ("found y",)),), (*ROOMS[1:], "found y")),
        # What is moved is the line itself.
        ((Edit(3, (1, "at pantry")),), ("found x", ROOMS[2], ROOMS[1], "at pantry")),
    ],
)
def test_where_heads_are_distinct_a_written_line_replaces_the_old_one(script, want):
    assert edits.apply(ROOMS, script, distinct=True) == want
    assert len(edits.apply(ROOMS, script)) >= len(want)


@given(before=STATES, after=STATES)
def test_a_script_between_states_of_distinct_heads_is_the_same_either_way(
    before, after
):
    a, b = (tuple(f"{x} {len(s)}" for x in dict.fromkeys(s)) for s in (before, after))
    script = edits.diff(a, b)
    assert edits.apply(a, script, distinct=True) == edits.apply(a, script) == b


HELD = ("craft 1 stick using 2 bamboo", "said ok", "bamboo 4", "oak planks 2")


@pytest.mark.parametrize(
    ("script", "want"),
    [
        # Whatever line is named, a line stands where the one of its stem stood.
        ((Edit(0, ("bamboo 2",)),), (*HELD[:2], "bamboo 2", HELD[3])),
        ((Edit(3, ("bamboo 2",)),), (*HELD[:2], "bamboo 2", HELD[3])),
        ((Edit(None, ("bamboo 2",)),), (*HELD[:2], "bamboo 2", HELD[3])),
        ((Edit(9, ("bamboo 2",)),), (*HELD[:2], "bamboo 2", HELD[3])),
        # Named rightly, nothing is different.
        ((Edit(2, ("bamboo 2",)),), (*HELD[:2], "bamboo 2", HELD[3])),
        ((Edit(1, ()),), (HELD[0], *HELD[2:])),
        # Two lines, one of them new.
        (
            (Edit(2, ("oak planks 1", "oak log 1")),),
            (*HELD[:2], "oak log 1", "oak planks 1"),
        ),
        ((Edit(None, ("stick 1",)),), (*HELD, "stick 1")),
        # What is moved is the line itself.
        ((Edit(3, (1, "bamboo 2")),), (HELD[0], "bamboo 2", "said ok")),
    ],
)
def test_where_lines_change_in_their_last_word_a_line_finds_its_stem(script, want):
    assert edits.apply(HELD, script, keyed_by_prefix=True) == want


def test_a_stem_that_two_lines_share_finds_neither():
    twice = ("bamboo 4", "bamboo 5")
    assert edits.apply(twice, (Edit(1, ("bamboo 6",)),), keyed_by_prefix=True) == (
        "bamboo 4",
        "bamboo 6",
    )


@given(
    script=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.sampled_from([*HELD, "b 1", "c"]))),
        max_size=3,
    )
)
def test_stems_lose_no_line_that_was_written(script):
    edits_ = tuple(Edit(i, tuple(x)) for i, x in dict(script).items())
    result = edits.apply(HELD, edits_, keyed_by_prefix=True)
    assert {x for _, lines in edits_ for x in lines} <= set(result)


HALL = "hall north pantry new hall east vault new"
WORDS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=9).map(" ".join)
LINES = st.lists(WORDS.filter(bool), max_size=4).map(tuple)


@pytest.mark.parametrize(
    ("before", "after", "swap"),
    [
        # The word before what changes belongs to it, and more until it is unique.
        (HALL, "hall north pantry hall east vault new", Swap("pantry new", "pantry")),
        (HALL, "hall north pantry new hall east vault", Swap("vault new", "vault")),
        (
            "said ok here box with map at hall",
            "said ok here box with map at attic",
            Swap("at hall", "at attic"),
        ),
        ("a b c d e f", "a b c d x e f", Swap("d", "d x")),
        ("a b c d e f", "x a b c d e f", Swap("a", "x a")),
        ("a b c d e f", "b c d e f", Swap("a", "")),
        ("a a a a a a a b", "a a a a a a a", Swap("a b", "a")),
        ("a b c d", "a x c d", Swap("a b", "a x")),
        # What is only added at the end of a line needs no word before it.
        ("held a pan", "held a pan and a cup", Swap("", "and a cup")),
        ("a a a", "a a a a", Swap("", "a")),
        # The words on both sides would be longer than the line.
        ("a b c", "a x c", None),
        ("a a a a a a", "a a a a a", None),
        ("bamboo 4", "bamboo 5", None),
        ("a  b c d e f", "a  b c d e g", None),  # words stand between single spaces
    ],
)
def test_swaps_by_hand(before, after, swap):
    script = edits.with_swaps((before,), (Edit(0, (after, "more")),))
    assert script == (Edit(0, (after if swap is None else swap, "more")),)
    assert edits.apply((before,), script) == (after, "more")


@given(before=LINES, after=LINES)
def test_swaps_change_nothing_and_are_no_longer_than_lines(before, after):
    script = edits.diff(before, after)
    shorter = edits.with_swaps(before, script)
    assert edits.apply(before, shorter) == after
    for edit, other in zip(script, shorter, strict=True):
        for piece, new in zip(edit.lines, other.lines, strict=True):
            if isinstance(new, Swap):
                words = len(new.old.split()) + len(new.new.split())
                assert words <= len(str(piece).split())


def test_a_swap_goes_to_the_one_line_that_has_its_words():
    state = ("at hall", HALL, "attic south hall")
    wrong = (Edit(0, (Swap("pantry new", "pantry"),)),)
    want = ("at hall", HALL.replace("pantry new", "pantry"), "attic south hall")
    assert edits.apply(state, wrong) == want
    # Not where that line has an edit of its own, and not where several lines have them.
    both = (*wrong, Edit(1, ("x",)))
    for script in (both, (Edit(1, (Swap("hall", "x"),)),)):
        with pytest.raises(IndexError, match=edits.NO_WORDS):
            edits.apply(state, script)


def test_a_swap_of_no_words_adds_at_the_end_of_its_own_line():
    state = ("held a  pan", "exits north")  # an empty word stands in the first line
    script = (Edit(1, (Swap("", "and east"),)),)
    assert edits.apply(state, script) == ("held a  pan", "exits north and east")
    assert edits.repeated_line(state, script) is None
    with pytest.raises(IndexError, match=edits.NO_WORDS):
        edits.apply(state, (Edit(1, (Swap("", ""),)),))
    with pytest.raises(IndexError, match=edits.NO_WORDS):
        edits.apply(state, (Edit(None, (Swap("", "and east"),)),))


@pytest.mark.parametrize("old", ["hall", "attic", "north vault"])
def test_a_swap_of_words_that_are_not_there_once_is_an_error(old):
    script = (Edit(0, (Swap(old, "x"),)),)
    with pytest.raises(IndexError, match=edits.NO_WORDS):
        edits.apply((HALL,), script)
    with pytest.raises(IndexError, match=edits.NO_WORDS):
        edits.apply((HALL,), (Edit(None, (Swap("pantry", "x"),)),))


@pytest.mark.parametrize(
    ("line", "old", "new", "expected"),
    [
        ("row key - <", "- - <", "- < -", "row key < -"),  # another word before it
        ("row b - v", "- v -", "- < -", "row b - <"),  # and another behind it
        ("a b c", "x b", "x d", "a d c"),
    ],
)
def test_a_swap_may_have_other_words_around_what_changes(line, old, new, expected):
    script = (Edit(0, (Swap(old, new),)),)
    assert edits.apply((line,), script) == (expected,)


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("a b", "x a", "x"),  # a word is taken away behind another one
        ("a box exits here", "room exits", "room north exits"),  # or added
        ("key - <", "- - >", "- > -"),  # what changes is not there
        ("b b", "x b", "x c"),  # or not once
    ],
)
def test_a_swap_whose_change_is_not_in_the_line_is_an_error(line, old, new):
    with pytest.raises(IndexError, match="not once"):
        edits.apply((line,), (Edit(0, (Swap(old, new),)),))
