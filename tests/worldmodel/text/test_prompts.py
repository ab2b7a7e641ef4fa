import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests import helpers
from worldmodel.data import outcomes
from worldmodel.text import prompts
from worldmodel.text.tokenizer import MAX_LINES

LINE = st.text(
    st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp", "Zs")), min_size=1
)
STATE = st.lists(st.one_of(LINE, st.sampled_from(["a b", "c"])), max_size=5).map(tuple)


def named(tok, ids) -> list[str]:
    """Control names in <>, text between them: a readable form of ids."""
    out, run = [], []
    for i in [*ids, None]:
        name = tok.name(i) if i is not None else ""
        if name is None:
            run.append(i)
            continue
        if run:
            out.append(tok.decode(run))
        run = []
        if i is not None:
            out.append(f"<{name}>")
    return out


@pytest.mark.parametrize(
    ("terminated", "success", "outcome"),
    [
        (False, False, "go"),
        (False, True, "go"),
        (True, False, "lose"),
        (True, True, "win"),
    ],
)
def test_outcome_of(terminated, success, outcome):
    t = helpers.transition(terminated=terminated, success=success)
    assert outcomes.outcome_of(t) == outcome


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (-0.0001, "-0.0001"),
        (0.00042, "0.00042"),
        (0.0012345, "0.00123"),
        (0.009999, "0.01"),
        (0.0123456, "0.0123"),
        (-0.098765, "-0.0988"),
        (0.0625, "0.0625"),
        (0.1234, "0.123"),
        (2e-6, "0.000002"),
        (9e-7, "0"),
        (-1234.5678, "-1234.568"),
        (1.0, "1"),
        (100.0, "100"),
        (0.5, "0.5"),
        (-0.25, "-0.25"),
        (1 / 3, "0.333"),
        (10.0, "10"),
    ],
)
def test_number_text_by_hand(value, text):
    assert outcomes.number_text(value) == text


def test_query_by_hand(tok):
    e = helpers.lamp_and_door()
    demo = helpers.transition(reward=0.5)
    ids = prompts.query_ids(
        tok, e.task, ("a", "b", "c"), [demo], ("x", "y"), "do", history=2
    )
    assert named(tok, ids) == [
        "<demo>",
        "press lamp",
        "<next>",
        "<line0>",
        "<swap>",
        "is off",
        "<with>",
        "is on",
        "<reward>",
        "0.5",
        "<task>",
        "go through the door",
        "<past>",
        "b",
        "<past>",
        "c",
        "<state>",
        "<line0>",
        "x",
        "<line1>",
        "y",
        "<action>",
        "do",
        "<think>",
    ]
    none = prompts.query_ids(tok, e.task, ("a",), [], ("x",), "do", history=0)
    assert "<past>" not in named(tok, none)


def test_demonstrations_with_their_states_by_hand(tok):
    """Eq. 4 has the state of a demonstration, too."""
    e = helpers.lamp_and_door()
    demo = helpers.transition(reward=0.5)
    assert len(demo.state) >= 1

    def query(budget, demos=(demo,)):
        ids = prompts.query_ids(
            tok,
            e.task,
            ("a",),
            demos,
            ("x",),
            "do",
            history=1,
            context_budget=budget,
            demonstration_states=True,
        )
        return named(tok, ids)

    effect = ["<next>", "<line0>", "<swap>", "is off", "<with>", "is on"]
    lines = [x for i, line in enumerate(demo.state) for x in (f"<line{i}>", line)]
    whole = ["<demo>", "press lamp", "<state>", *lines, *effect, "<reward>", "0.5"]
    assert query(None)[: len(whole)] == whole
    assert query(None)[len(whole)] == "<task>"
    # Where it does not fit with its state, it stands without; else it is left out.
    demonstration = prompts.demonstration_ids(tok, demo, with_state=True)
    short = prompts.demonstration_ids(tok, demo)
    past = len(tok.encode("a")) + 1
    assert query(past + len(demonstration))[: len(whole)] == whole
    less = ["<demo>", "press lamp", *effect, "<reward>", "0.5", "<task>"]
    assert query(past + len(demonstration) - 1)[: len(less)] == less
    assert query(past + len(short) - 1)[0] == "<task>"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (math.inf, "AAA1 BBB2 CCC3"),
        (12, "AAA1 BBB2 CCC3"),
        (11, "1 BBB2 CCC3"),
        (9, "1 BBB2 CCC3"),
        (8, "1 2 CCC3"),
        (5, "1 2 3"),
        (2, "2 3"),
        (1, "3"),
        (0, ""),
    ],
)
def test_the_newest_segments_fit_by_hand(budget, expected):
    whole = [[ord(x) for x in text] for text in ("AAA1", "BBB2", "CCC3")]
    short = [x[-1:] for x in whole]
    ids = prompts.newest_fitting(whole, budget, short)
    assert "".join(map(chr, ids)) == expected.replace(" ", "")
    alone = "".join(map(chr, prompts.newest_fitting(whole, budget)))
    texts = ["AAA1BBB2CCC3", "BBB2CCC3", "CCC3", ""]
    assert alone == texts[3 - int(min(budget, 12)) // 4]


def test_past_actions_with_what_was_seen_by_hand(tok):
    """The pairs of Eq. 4: what was seen and is gone, and the action after it."""
    e = helpers.lamp_and_door()
    steps, state = e.transitions, e.transitions[-1].next_state
    past = [t.action for t in steps]  # press lamp, nothing, pull door
    states = [t.state for t in steps]
    ids = prompts.query_ids(
        tok, e.task, past, [], state, "do", history=2, past_states=states
    )
    assert named(tok, ids) == [
        "<task>",
        "go through the door",
        "<past>",
        "nothing",
        "<demo>",
        "the door is shut",
        "<past>",
        "pull door",
        "<state>",
        "<line0>",
        "the lamp is on",
        "<line1>",
        "the door is open",
        "<action>",
        "do",
        "<think>",
    ]
    policy = {"history": 2, "past_states": states}
    context = prompts.policy_context_ids(tok, e.task, past, state, **policy)
    assert named(tok, context) == named(tok, ids)[:-3]
    # What was seen goes before any action does; then the oldest action goes.
    longest = len(ids) - 1
    core = prompts.query_ids(tok, e.task, (), [], state, "do", history=0)
    less = prompts.query_ids(
        tok,
        e.task,
        past,
        [],
        state,
        "do",
        history=2,
        past_states=states,
        context_budget=longest - len(core),
    )
    assert named(tok, less).count("<past>") == 2
    assert "the door is shut" not in named(tok, less)
    # All of them, and none.
    every = {"history": 99, "past_states": states}
    whole = prompts.query_ids(tok, e.task, past, [], state, "do", **every)
    assert named(tok, whole).count("<past>") == 3
    before = named(tok, whole)[: named(tok, whole).index("<state>")]
    assert before[2:6] == ["<demo>", "the lamp is off", "<past>", "press lamp"]
    none = {"history": 0, "past_states": ()}
    assert prompts.query_ids(tok, e.task, past, [], state, "do", **none) == core


def test_what_has_no_room_is_left_out_whole_and_never_the_state(tok):
    e = helpers.lamp_and_door()
    demos = [helpers.transition(reward=x) for x in (0.25, 0.5)]

    def record(room):
        return prompts.query_ids(
            tok,
            e.task,
            ("a", "b"),
            demos,
            ("x", "y"),
            "do",
            history=2,
            context_budget=room,
        )

    whole = record(None)
    core = record(0)
    assert named(tok, core) == [
        "<task>",
        "go through the door",
        "<state>",
        "<line0>",
        "x",
        "<line1>",
        "y",
        "<action>",
        "do",
        "<think>",
    ]
    extra = len(whole) - len(core)
    assert record(extra) == whole
    one = record(extra - 1)  # the demonstration least like the query stands first
    assert one == whole[len(prompts.demonstration_ids(tok, demos[0])) :]
    past = len(prompts.query_ids(tok, e.task, ("b",), [], ("x", "y"), "do", history=1))
    last = named(tok, record(past - len(core)))
    assert last.count("<past>") == 1
    assert last[last.index("<past>") + 1] == "b"
    for room in range(extra + 1):
        ids = record(room)
        assert len(ids) - len(core) <= room
        assert named(tok, ids)[-6:] == named(tok, core)[-6:]


def test_reply_by_hand(tok):
    t = helpers.transition(
        ("a", "b", "c"),
        "do",
        ("a", "c", "d", "e"),
        -1.0,
        terminated=True,
        reasoning="because",
    )
    assert named(tok, prompts.reply_ids(tok, t)) == [
        "because",
        "<next>",
        "<line1>",
        "<add>",
        "d\ne",
        "<reward>",
        "-1",
        "<outcome>",
        "<lose>",
    ]


def test_a_reply_names_the_lines_that_move(tok):
    before, after = ("a", "b", "c", "d"), ("x", "c", "a", "y", "b")
    ids = prompts.effect_ids(tok, before, after)
    assert named(tok, ids) == [
        "<next>",
        "<line0>",
        "x",
        "<line3>",
        "<same>",
        "a\ny",
        "<same>",
        "b",
    ]
    output = [*ids, tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    reply = prompts.parse_reply(tok, [*output, tok.control("go")], before)
    assert (reply.next_state, reply.error) == (after, None)


def test_new_lines_stand_behind_a_moved_one(tok):
    before, after = (
        ("hall has box", "hall north attic", "b"),
        ("b", "hall north attic", "c"),
    )
    ids = prompts.effect_ids(tok, before, (*after, "hall has box"))
    assert named(tok, ids) == [
        "<next>",
        "<add>",
        "<same>",
        "hall\nc",
        "<same>",
        "hall has",
    ]
    end = [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    reply = prompts.parse_reply(tok, [*ids, *end, tok.control("go")], before)
    assert (reply.next_state, reply.error) == ((*after, "hall has box"), None)


def test_a_moved_line_that_is_not_there_or_has_no_edit(tok):
    end = [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    end += [tok.control("go")]
    start = [tok.control("next"), tok.line(0), tok.control("same")]
    for name, output in (([], ""), (tok.encode("z"), "z")):
        out = prompts.parse_reply(tok, [*start, *name, *end], ("a", "b"))
        assert out.error == f"no line begins with {output!r}"
    # Without an edit to stand in it says nothing.
    loose = [tok.control("next"), tok.control("same"), *tok.encode("b"), *end]
    assert prompts.parse_reply(tok, loose, ("a", "b")).next_state == ("a", "b")


def test_words_are_added_by_a_swap_and_not_without_one(tok):
    end = [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    end += [tok.control("go")]
    before = ("a b", "c d")
    line, swap, new = tok.line(0), tok.control("swap"), tok.control("with")
    added = [tok.control("next"), line, swap, new, *tok.encode("x"), *end]
    got = prompts.parse_reply(tok, added, before)
    assert (got.error, got.next_state) == (None, ("a b x", "c d"))
    for edit in (
        [line, new, *tok.encode("x")],
        [line, *tok.encode("y"), new, *tok.encode("x")],
        # The words of a swap are those of one replacement.
        [line, swap, *tok.encode("b"), new, *tok.encode("x"), tok.line(1), new],
        [line, swap, *tok.encode("b"), tok.line(1), new, *tok.encode("x")],
    ):
        got = prompts.parse_reply(tok, [tok.control("next"), *edit, *end], before)
        assert (got.error or "").startswith("new words without a swap")


@pytest.mark.parametrize("keyed", [True, False])
def test_a_repeated_line_is_looked_for_at_its_prefix(tok, keyed):
    end = [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    edit = [tok.control("next"), tok.line(1), *tok.encode("a b")]
    ids = [*edit, *end, tok.control("go")]
    got = prompts.parse_reply(
        tok, ids, ("a b", "c d"), keyed_by_prefix=keyed, repeats=False
    )
    assert (got.error or "").startswith(prompts.REPEATED) == keyed


def test_turns_by_hand(tok):
    e = helpers.lamp_and_door()
    context = prompts.policy_context_ids(tok, e.task, ("a", "b"), ("x",), history=1)
    assert named(tok, context) == [
        "<task>",
        "go through the door",
        "<past>",
        "b",
        "<state>",
        "<line0>",
        "x",
    ]
    with_thought = prompts.turn_ids(tok, "pull door", "it is shut")
    assert named(tok, with_thought) == [
        "<why>",
        "it is shut",
        "<action>",
        "pull door",
        "<end>",
    ]
    assert named(tok, prompts.turn_ids(tok, "go")) == ["<action>", "go", "<end>"]
    assert prompts.parse_turn(tok, with_thought) == ("pull door", "it is shut")
    assert prompts.parse_turn(tok, prompts.turn_ids(tok, "go")) == ("go", None)
    assert prompts.parse_turn(tok, []) == ("", None)


@given(before=STATE, after=STATE, cents=st.integers(-3000, 3000), end=st.booleans())
@example(before=(), after=("a",), cents=0, end=False)
@example(before=("a",), after=(), cents=1, end=True)
@example(before=("<|dg_reward|>9",), after=("<|dg_win|>",), cents=-1, end=False)
def test_a_written_reply_is_read_back(tok, before, after, cents, end):
    t = helpers.transition(
        before, "do", after, cents / 100, terminated=end, success=end, reasoning="why"
    )
    got = prompts.parse_reply(tok, prompts.reply_ids(tok, t), before)
    assert got == ("why", after, pytest.approx(cents / 100), _outcome(end), None)


def _outcome(end):
    return "win" if end else "go"


@pytest.mark.parametrize("size", [MAX_LINES, MAX_LINES + 1, MAX_LINES + 9])
def test_states_with_more_lines_than_tokens_are_read_back(tok, size):
    before = tuple(f"line {i}" for i in range(size))
    after = (*before[:-2], "new", "last", "added")
    ids = prompts.reply_ids(tok, helpers.transition(before, "do", after))
    assert (tok.control("full") in ids) == (size > MAX_LINES)
    got = prompts.parse_reply(tok, ids, before)
    assert (got.next_state, got.error) == (after, None)


@given(data=st.data())
def test_any_ids_are_a_reply(tok, data):
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size - 1), max_size=30))
    state = data.draw(STATE)
    reply = prompts.parse_reply(tok, ids, state)
    assert reply.outcome in outcomes.OUTCOMES
    assert abs(reply.reward) < float("inf")
    assert all(line.strip() and "\n" not in line for line in reply.next_state)


def test_a_thought_may_be_empty(tok):
    assert prompts.parse_turn(tok, [tok.control("why")]) == ("", None)


@given(data=st.data())
def test_any_ids_are_a_turn(tok, data):
    ids = data.draw(st.lists(st.integers(0, tok.vocab_size - 1), max_size=30))
    action, thought = prompts.parse_turn(tok, ids)
    runs = dict(prompts.control_runs(tok, ids))
    assert thought == (tok.decode(runs.get("why", [])) or None)
    assert action == action.strip()


@pytest.mark.parametrize(
    ("number", "outcome", "reward", "problem"),
    [
        ("0.5", "go", 0.5, None),
        ("-.", "win", 0.0, "reward '-.' is not a number"),
        ("9" * 400, "go", 0.0, "not finite"),
        ("nan", "go", 0.0, "not finite"),
        ("1", "end", 1.0, "no outcome"),
    ],
)
def test_what_is_wrong_with_a_reply(tok, number, outcome, reward, problem):
    ids = [
        tok.control("next"),
        tok.control("reward"),
        *tok.encode(number),
        tok.control("outcome"),
        tok.control(outcome),
    ]
    got = prompts.parse_reply(tok, ids, ("a",))
    assert (got.next_state, got.reward) == (("a",), reward)
    assert got.error is None if problem is None else problem in str(got.error)


def test_an_edit_of_a_line_that_is_not_there_keeps_the_state(tok):
    ids = [tok.control("next"), tok.line(3), *tok.encode("x"), tok.control("go")]
    got = prompts.parse_reply(tok, ids, ("a",))
    assert got.next_state == ("a",)
    assert "line 3 in a state of 1 lines" in str(got.error)


@pytest.mark.slow
def test_ten_thousand_replies_of_any_tokens_are_read(tok):
    # Any ids in any order: half of them control tokens, so that parts nest wrongly.
    rng = np.random.default_rng(0)
    controls = [i for i in range(tok.vocab_size) if tok.name(i) is not None]
    before = ("the lamp is off", "the door is shut")
    problems = 0
    for _ in range(10_000):
        size = int(rng.integers(1, 24))
        free = rng.integers(0, tok.vocab_size, size)
        ids = np.where(rng.random(size) < 0.5, rng.choice(controls, size), free)
        reply = prompts.parse_reply(
            tok,
            ids.tolist(),
            before,
            distinct=bool(rng.integers(2)),
            keyed_by_prefix=bool(rng.integers(2)),
        )
        problems += reply.error is not None
        assert math.isfinite(reply.reward)
        assert reply.outcome in outcomes.OUTCOMES
        assert all(isinstance(x, str) and x.strip() for x in reply.next_state)
    assert 5_000 < problems < 10_000
