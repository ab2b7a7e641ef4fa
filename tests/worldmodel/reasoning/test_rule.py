import dataclasses

import pytest

from tests import helpers
from worldmodel import reasoning
from worldmodel.data.records import Task
from worldmodel.reasoning import rule

DARK = ("lamp is off", "door is shut")


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"next_state": DARK}, "nothing changes"),
        ({"next_state": ("lamp is lit", "door is shut")}, "lamp change"),
        (
            {"next_state": ("lamp is red", "door is shut")},
            "red as lamp change",
        ),
        (
            {"next_state": ("lamp is shut", "door is off"), "reward": 0.5},
            "lamp door change earns 0.5",
        ),
        ({"next_state": (*DARK, "lit lamp")}, "new change"),
        (
            {"next_state": DARK, "reward": -1, "terminated": True, "success": False},
            "nothing changes earns -1 and loses",
        ),
        ({"next_state": DARK, "terminated": True}, "nothing changes and ends"),
        (
            {"next_state": ("lamp is off",), "terminated": True, "success": True},
            "door change and wins",
        ),
        ({"next_state": DARK, "truncated": True}, "nothing changes"),
    ],
)
def test_what_changes_what_is_new_and_what_it_earns(changes, ending):
    t = helpers.transition(DARK, "press it", **changes)
    assert reasoning.explain(t).endswith(ending)


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({"next_state": DARK}, "so nothing changes"),
        (
            {"next_state": ("lamp is red", "door is shut")},
            "so red is new where lamp changes",
        ),
        (
            {"next_state": ("lamp is shut", "door is off"), "reward": 0.5},
            "so off is new where lamp and door change and this earns 0.5",
        ),
        (
            {"next_state": (*DARK, "lit lamp"), "terminated": True, "success": True},
            "so lamp and lit are new where a new line changes and the task is won",
        ),
        (
            {"next_state": DARK, "reward": -1, "terminated": True, "success": False},
            "so nothing changes and this earns -1 and the task is lost",
        ),
        (
            {"next_state": ("lamp is off",), "terminated": True},
            "so nothing is new where door changes and the episode ends",
        ),
    ],
)
def test_a_sentence_says_what_the_words_say(changes, ending):
    t = helpers.transition(DARK, "press it", **changes)
    start = "the state ends with door is shut and the action is press it "
    assert reasoning.explain(t, style="sentences") == start + ending
    without = reasoning.explain(t, status=False, style="sentences")
    assert without == "the action is press it " + ending


def test_a_sentence_quotes_the_lines_that_the_action_names():
    t = helpers.transition(("bamboo 4", "said ok"), "take 2 bamboo", ("bamboo 2", "x"))
    words, sentence = (reasoning.explain(t, style=s) for s in ("words", "sentences"))
    assert " take 2 bamboo bamboo 4 " in words
    assert " take 2 bamboo about bamboo 4 so " in sentence


def test_only_missing_traces_get_the_style():
    steps = [helpers.transition(DARK, "wait", DARK, reasoning="as before")]
    steps.append(helpers.transition(DARK, "wait", DARK))
    episode = helpers.episode(
        "e", Task(id="t", instruction="", initial_state=DARK), steps
    )
    traced = reasoning.set_rule_traces(episode, enabled=True, style="sentences")
    first, second = (t.reasoning for t in traced.transitions)
    assert first == "as before"
    assert second == "the action is wait so nothing changes"


def test_a_line_word_is_named_once():
    t = helpers.transition(("lamp a", "lamp b"), "do", ("lamp b x", "lamp a x", "do"))
    assert reasoning.explain(t) == "lamp b do lamp a lamp b do as lamp new change"


def test_rows_of_a_grid_are_quoted_where_several_change():
    """What stands in the row below decides what a step down does."""
    rows = ("row 0 S F A", "row 1 H F F", "row 2 F F G", "said ok row 0 col 2")
    down = ("row 0 S F F", "row 1 H F A", "row 2 F F G", "said ok row 1 col 2")
    left = ("row 0 S A F", *rows[1:3], "said ok row 0 col 1")
    traces = [
        reasoning.explain(helpers.transition(rows, action, after))
        for action, after in (("down", down), ("left", left))
    ]
    assert traces == [
        "row 0 col 2 down row 0 S F A row 1 H F F 1 as row said change",
        "row 0 col 2 left row 0 S F A 1 as row said change",
    ]


@pytest.mark.parametrize(("count", "words"), [(rule.MAX_ROWS + 1, 1), (2, 12)])
def test_many_and_long_rows_are_not_quoted(count, words):
    before = tuple(f"row {i}{' x' * words}" for i in range(count))
    after = tuple(line.replace("x", "y", 1) for line in before)
    trace = reasoning.explain(helpers.transition(before, "do", after))
    assert "row 1" not in trace


@pytest.mark.parametrize(
    ("after", "want"),
    [
        (("lamp is lit", "door is open"), "open as lamp door change"),
        (("lamp is off and it is lit", *DARK[1:]), "lit it as lamp change"),
        (("lamp off", "door is shut"), "nothing as lamp change"),
        (("door is shut",), "nothing as lamp change"),
        # A line that moves is named too, and its words are not new.
        (("door is shut", "lamp is off"), "nothing as new lamp change"),
        (("lamp is off", "it", "door is shut"), "it as lamp change"),
        ((*DARK, "lamp two"), "two lamp as new change"),
    ],
)
def test_the_last_new_words_of_the_last_changed_line_come_first(after, want):
    t = helpers.transition(DARK, "press it", after)
    assert reasoning.explain(t) == f"door is shut press it {want}"


def test_a_long_line_and_action_are_said_in_part():
    long = ("x", "one two three four five six")
    t = helpers.transition(long, "a b c d e f g h", long)
    assert reasoning.explain(t) == "three four five six a b c d e f nothing changes"
    empty = helpers.transition((), "go", ("x",))
    assert reasoning.explain(empty) == "go x as new change"


@pytest.mark.parametrize(
    ("action", "want"),
    [
        ("craft 1 rod using 2 bamboo", ["bamboo 4"]),
        ("craft  4 oaken planks using 1 log", []),  # `logs` is another word
        ("burn oak logs", ["oak logs 2"]),
        ("say", []),
    ],
)
def test_lines_that_the_action_names_are_said_again(action, want):
    state = ("sand 0", "bamboo 4", "oak logs 2", "stick 0")
    trace = reasoning.explain(helpers.transition(state, action, state))
    start = " ".join([state[-1], *action.split()[:6]])
    assert trace == " ".join([start, *want, "nothing changes"])


@pytest.mark.parametrize(
    ("table", "after", "want"),
    [
        ("table: bowl, cup", "table: cup", "table: bowl, cup bowl as table: hand:"),
        # A refused action changes nothing that holds the bowl.
        ("table: bowl, cup", "table: bowl, cup", "bowl as hand:"),
        (f"table:{' bowl' * 12}", "table: bowl", "bowl as table: hand:"),
    ],
)
def test_the_changed_line_that_holds_what_the_action_names_is_said_again(
    table, after, want
):
    before = ("sink: cup", table, "hand: empty")
    t = helpers.transition(before, "take bowl", ("sink: cup", after, "hand: bowl"))
    trace = reasoning.explain(t, status=False)
    assert trace == f"take bowl {want} change"


def test_a_changed_line_that_the_place_names_is_not_said_again():
    before = ("hall north cellar unseen", "here nothing at hall")
    after = ("hall north cellar", "cellar south hall", "here nothing at cellar")
    t = helpers.transition(before, "move north", after)
    start = "here nothing at hall move north"
    assert reasoning.explain(t).startswith(f"{start} cellar")
    nowhere = ("hall north cellar unseen", "here nothing at all")
    t = helpers.transition(nowhere, "move north", after)
    assert reasoning.explain(t).startswith(
        f"here nothing at all move north {before[0]}"
    )


@pytest.mark.parametrize(
    ("said", "quoted"),
    [
        ("You take it", False),  # the first word of a sentence is no name
        ("it is for You", True),
    ],
)
def test_a_capital_at_the_beginning_of_a_line_makes_no_name(said, quoted):
    before = ("You are here", "nothing said")
    t = helpers.transition(before, "wait", (before[0], said))
    assert (before[0] in reasoning.explain(t, status=False)) == quoted


def test_json_is_not_cut_in_the_middle():
    state = ("flight T25 free", 'result {"price": 42, "from": "Ulm", "to": "Bonn"}')
    action = '{"tool": "book", "args": {"id": "T25", "amount": 27, "deep": [1, 2]}}'
    after = ("flight T25 sold", *state[1:])
    got = reasoning.explain(helpers.transition(state, action, after))
    # The call's name and plain values, the line it names, what changes; no half brace.
    assert got == "book T25 27 flight T25 free sold as flight change"
    got = reasoning.explain(
        helpers.transition(("T25 3", "ok"), action, ("T25 4", "ok"))
    )
    assert got == "ok book T25 27 T25 3 4 as T25 change"


@pytest.mark.parametrize(
    ("action", "quoted"),
    [
        ("book T25", "trip T25 to Rome"),
        ('{"tool": "book", "args": {"id": "T25"}}', "trip T25 to Rome"),
        ("book T2", ""),  # no trip has this name
        ("book 9", ""),  # a number is no name, unless a line begins with it
        ("click 5", "5 button Submit"),
    ],
)
def test_lines_that_hold_a_name_of_the_action_are_quoted(action, quoted):
    """Whether it is the right trip stands there, and not in the line that changes."""
    state = ("trip T25 to Rome", "trip T68 for 9 euros", "5 button Submit", "idle")
    step = helpers.transition(state, action, (*state[:-1], "done"))
    trace = reasoning.explain(step, status=False)
    lines = [line for line in state[:-1] if line in trace]
    assert lines == [quoted] * bool(quoted)


@pytest.mark.parametrize("label", ["2", "[2]", "2.", "2)", "(2)", "#2"])
def test_the_line_with_a_number_of_the_action_as_its_label_is_quoted(label):
    """Pages number their elements in several ways."""
    state = (label.replace("2", "1") + " link Home", f"{label} link Kiwi", "-2 degrees")
    step = helpers.transition(state, "click 2", ("page Kiwi",))
    trace = reasoning.explain(step, status=False)
    assert trace.startswith(f"click 2 {label} link Kiwi ")
    assert "degrees" not in trace.partition(" as ")[0]


@pytest.mark.parametrize(
    ("action", "quoted"),
    [
        ("flip 4", "switch 4 red"),
        ("flip switch 4", "switch 4 red"),
        ("press 1 3", "cell 1 3 lit"),
        ("press cell 1 3", "cell 1 3 lit"),
        ("flip 9", ""),  # there is no such switch
        ("flip lamp 4", ""),  # of a lamp nothing is enumerated
        ("get 4 stick", ""),  # it counts
        ("4 3", ""),  # there is no verb
        ("turn 12", ""),  # `turn 12` is one line, not one of several
    ],
)
def test_the_line_of_an_enumeration_is_quoted(action, quoted):
    """What the switch is wired to stands there, and it does not change."""
    state = (
        *("switch 3 blue", "switch 4 red", "cell 1 2 out", "cell 1 3 lit"),
        *("turn 12", "idle"),
    )
    step = helpers.transition(state, action, (*state[:-1], "done"))
    trace = reasoning.explain(step, status=False)
    lines = [line for line in state[:-2] if line in trace]
    assert lines == [quoted] * bool(quoted)


@pytest.mark.parametrize(
    ("action", "quoted"),
    [
        ("move 3 1", ["bay 3 | A1 B2", "bay 1: 50 litres"]),  # in the action's order
        ("move 1 3", ["bay 1: 50 litres", "bay 3 | A1 B2"]),
        ("move bay 1 to bay 3", ["bay 1: 50 litres", "bay 3 | A1 B2"]),
        ("move 1 1", ["bay 1: 50 litres"]),
        ("move 1 4", []),  # there is no bay 4
        ("move 1 2 to 3", []),
        ("move 1 2 3", []),  # three numbers are values, such as of a place in a grid
    ],
)
def test_each_number_of_an_action_names_a_line(action, quoted):
    state = ("bay 1: 50 litres", "bay 2 = empty", "bay 3 | A1 B2", "idle")
    refused = helpers.transition(state, action, (*state[:-1], "no room"))
    trace = reasoning.explain(refused, status=False)
    lines = [line for line in state[:-1] if line in trace]
    assert sorted(lines, key=trace.index) == quoted
    # A second enumeration has the numbers as well: which is meant is not known.
    other = (*state[:-1], "tank 1: 7", "tank 3: 9", "idle")
    refused = helpers.transition(other, action, (*other[:-1], "no room"))
    trace = reasoning.explain(refused, status=False)
    assert ("bay" in trace.removeprefix(action)) == ("bay" in action)


@pytest.mark.parametrize(
    ("state", "action", "quoted"),
    [
        # A time is a number of its own, and what stands before a colon is no value.
        (("slot 7:00 free", "slot 7:30 free", "slot 8:00 taken"), "book 7:30", 1),
        (("exit: room 3 dark", "exit: room 4 lit"), "enter 4", 1),
        # Lines that are no enumeration change nothing.
        (("turn 1", "bay 1 | A", "bay 2 | B"), "move 2 2", 2),
        (("day 4 1", "bay 1 | A", "bay 4 | B"), "move 4 4", 2),
    ],
)
def test_what_ends_the_number_of_an_enumerated_line(state, action, quoted):
    refused = helpers.transition((*state, "idle"), action, (*state, "no room"))
    trace = reasoning.explain(refused, status=False)
    assert [i for i, line in enumerate(state) if line in trace] == [quoted]


def test_enumerated_lines_and_lines_with_names_are_limited_apart():
    state = (
        *("shelf 4 dusty", "shelf 4 holds books", "shelf 5 empty"),
        *("T25 is red", "T25 is heavy", "idle"),
    )
    step = helpers.transition(state, "put T25 on shelf 4", (*state[:-1], "done"))
    trace = reasoning.explain(step, status=False)
    for line in ("T25 is red", "T25 is heavy"):
        assert line in trace


def test_no_line_is_quoted_for_a_change_of_a_number():
    state, after = ("switch 1 off", "tries 8", "ok"), ("switch 1 off", "tries +-1")
    step = helpers.transition(state, "wait", after)
    assert "switch" not in reasoning.explain(step, status=False)
    step = helpers.transition(state, "wait", ("switch 1 off", "tries 1"))
    assert "switch 1 off" in reasoning.explain(step, status=False)


def test_many_or_long_lines_are_not_quoted_for_a_name():
    many = tuple(f"{name} bought T25" for name in ("ann", "bob", "cid", "dan"))
    for lines, count in ((many, 0), (many[1:], 3), (("T25 " * 13,), 0)):
        state = (*lines, "T25 is chosen")
        step = helpers.transition(state, "sell T25", (*lines, "sold"))
        trace = reasoning.explain(step)
        assert sum(line in trace for line in lines) == count
        assert trace.startswith("T25 is chosen sell T25")


def test_a_lamp_and_a_door_are_explained():
    e = helpers.lamp_and_door()
    got = [reasoning.explain(t) for t in e.transitions]
    assert got == [
        "the door is shut press lamp the lamp is off on as the change earns 0.5",
        "the door is shut nothing nothing changes",
        "the door is shut pull door open as the change earns 1 and wins",
    ]


def test_annotate_fills_only_what_is_missing():
    first, *rest = helpers.lamp_and_door().transitions
    given = dataclasses.replace(first, reasoning="because I say so")
    e = dataclasses.replace(helpers.lamp_and_door(), transitions=(given, *rest))
    got = [t.reasoning for t in reasoning.annotate(e).transitions]
    by_rule = [reasoning.explain(t) for t in rest]
    assert got == ["because I say so", *by_rule]


def booking(*steps):
    """Steps (action, next state) from a list of two trains."""
    state, out = ("T25 to Lyon costs 42", "T68 to Lyon costs 17"), []
    task = Task(id="t", instruction="go", initial_state=state)
    for action, after in steps:
        out.append(helpers.transition(state, action, after))
        state = after
    return helpers.episode("e", task, out)


TRAINS = ("T25 to Lyon costs 42", "T68 to Lyon costs 17")


def test_the_last_item_of_a_list_is_no_status():
    e = booking(("book T25", (*TRAINS, "held T25 due 42")), ("wait", TRAINS))
    assert not rule.has_status_line(e)
    traces = [t.reasoning for t in reasoning.annotate(e).transitions]
    # The line from which the price is copied is quoted, and nothing of T68.
    assert traces == [
        "book T25 T25 to Lyon costs 42 42 due as new change",
        "wait nothing as held change",
    ]


def test_a_last_line_that_says_where_the_agent_is_is_a_status():
    there = (*TRAINS[:1], "at Lyon")
    e = booking(("go", there), ("go", (*TRAINS[:1], "at Rome")))
    assert not rule.has_status_line(e)  # the first state ends with a train
    steps = e.transitions[1:]
    assert rule.has_status_line(dataclasses.replace(e, transitions=steps))
    same = helpers.transition(there, "wait", there)
    assert not rule.has_status_line(dataclasses.replace(e, transitions=(same,)))
