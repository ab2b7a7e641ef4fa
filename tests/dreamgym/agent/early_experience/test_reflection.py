"""Reflections: moments, the rule, and detectors of what the agent cannot know."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.agent.early_experience.reflection import (
    LEAK_KINDS,
    RuleWriter,
    Writer,
    count_leaks,
    leaks,
    reflect,
    reflection_cases,
    reflections,
)
from tests import doubles
from worldmodel.data.records import Branch, Task, Transition
from worldmodel.reasoning.annotator import Report

TASK = doubles.task(0, 2, 3)
EPISODE = doubles.expert(TASK)  # go right, go right, take coin
BRANCHES = [
    Branch(episode=EPISODE.id, step=1, transition=t)
    for action in ("go left", "fly")
    for t in doubles.episode(TASK, ["go right", action]).transitions[1:]
]


# --- moments and the rule ----------------------------------------------------


def test_moments_are_the_states_that_have_branches_as_many_as_told():
    def of(per_state, branches=BRANCHES):
        return reflection_cases([EPISODE], branches, per_state=per_state, seed=0)

    assert [len(of(n)) for n in (0, 1, 2, 9)] == [0, 1, 2, 2]
    assert of(3, []) == []
    for m in of(2):
        assert m.task == TASK
        assert m.past == ("go right",)
        assert m.expert == EPISODE.transitions[1]
    others = [o.action for m in of(2) for o in m.others]
    assert sorted(others) == ["fly", "go left"]
    drawn = {
        reflection_cases([EPISODE], BRANCHES, per_state=1, seed=seed)[0]
        .others[0]
        .action
        for seed in range(8)
    }
    assert drawn == {"fly", "go left"}


@pytest.mark.parametrize(
    ("per_state", "alternatives", "sizes"),
    [(1, 1, [1]), (1, 2, [2]), (2, 2, [2]), (1, 5, [2]), (4, 1, [1, 1])],
)
def test_a_reflection_may_weigh_several_alternatives(per_state, alternatives, sizes):
    cases = reflection_cases(
        [EPISODE], BRANCHES, per_state=per_state, alternatives=alternatives, seed=3
    )
    assert [len(c.others) for c in cases] == sizes
    actions = [t.action for c in cases for t in c.others]
    assert len(set(actions)) == len(actions)


def test_a_reflection_on_several_names_those_that_are_worse():
    expert = step(("a", "b"), "go", ("c", "b"))
    nothing = step(("a", "b"), "wait", ("a", "b"))
    good = step(("a", "b"), "walk", ("d", "b"))
    dead = step(("a", "b"), "jump", ("a",), terminated=True)
    assert reflect(expert, [nothing, good, dead]) == (
        "wait would change nothing and jump would fail so go would lead on"
    )
    assert reflect(expert, [good]) is None
    # One alone is worded as ever.
    assert reflect(expert, [dead]) == "jump would fail so go would lead on"


def step(before, action, after, **message):
    t = doubles.episode(TASK, ["go right"]).transitions[0]
    return dataclasses.replace(
        t, state=before, action=action, next_state=after, **({"rewards": {}} | message)
    )


@pytest.mark.parametrize(
    ("after", "message", "words"),
    [
        (("a", "b"), {"success": True, "terminated": True}, "would finish the task"),
        (("a", "b"), {"rewards": {"r": 0.5}}, "would make progress"),
        (("a", "b"), {"terminated": True}, "would fail"),
        (("a",), {}, "would change nothing"),
        (("a", "b"), {}, "would show something new"),
        (("c",), {}, "would lead on"),
        (("c",), {"rewards": {"r": -0.5}}, "would lead on"),
    ],
)
def test_a_reflection_names_the_real_outcome(after, message, words):
    good = step(("a",), "win", ("z",), success=True, terminated=True)
    other = step(("a",), "try", after, **message)
    known = f"try {words} so win would finish the task"
    assert reflect(good, [other]) == (None if "finish" in words else known)
    assert reflect(other, []) == f"try {words}"


def test_what_does_as_well_or_better_is_no_reason():
    """Worse, as good, better: only the first speaks for the expert's action."""
    expert = step(("a", "b"), "go", ("c", "b"))
    nothing = step(("a", "b"), "wait", ("a", "b"))
    assert reflect(expert, [nothing]) == "wait would change nothing so go would lead on"
    assert reflect(expert, [step(("a", "b"), "walk", ("d", "b"))]) is None
    assert reflect(expert, [step(("a", "b"), "look", ("a", "b", "c"))]) is None
    assert reflect(nothing, [expert]) is None


# --- leaks -------------------------------------------------------------------

KITCHEN = Task(id="k", instruction="eat the golden apple", initial_state=("a garden",))
TAKEN = Transition(
    state=("you are in the kitchen", "a drawer is shut", "option 3 is off"),
    action="open drawer",
    next_state=("you are in the kitchen", "a drawer is open", "a rusty spoon"),
)
UNDONE = dataclasses.replace(
    TAKEN, action="go north", next_state=("you are in the Library", "12 books")
)


@pytest.mark.parametrize(
    ("thought", "result"),
    [
        # By hand: what an agent may say.
        ("the drawer is shut, so opening it may show something", []),
        ("go north would lead on so open drawer would show something new", []),
        ("the golden apple is not in the garden, I open drawer", []),
        ("Option 3 is off, and the actions I have are few", []),
        ("it has 12 of them", []),  # numbers name nothing
        # Whoever showed it.
        ("the expert opens it", ["expert: expert"]),
        ("As in the demonstration, open it", ["expert: demonstration"]),
        ("a gold answer", ["expert: gold"]),
        ("this is the optimal action", ["expert: optimal action"]),
        ("the Correct Action is clear", ["expert: correct action"]),
        ("the optimal trajectory opens it", ["expert: trajectory"]),
        (
            "experts expertly demonstrated it",
            ["expert: experts", "expert: demonstrated"],
        ),
        # Which of a list.
        ("action 2 is worse", ["numbering: action 2"]),
        ("Option B is worse", ["numbering: option b"]),
        ("candidate #3 is", ["numbering: candidate #3"]),
        ("alternative (1) fails", ["numbering: alternative (1"]),
        ("ACTION two fails", ["numbering: action two"]),
        ("the second option fails", ["numbering: second option"]),
        ("option 33 is", ["numbering: option 33"]),  # not the option 3 of the state
        # What came of it.
        ("there will be a rusty spoon", ["outcome: rusty", "outcome: spoon"]),
        ("going north shows the library.", ["outcome: library"]),
        ("it turned out well", ["outcome: turned out"]),
        (
            "the SPOON, the expert's option B",
            ["expert: expert", "numbering: option b", "outcome: spoon"],
        ),
    ],
)
def test_what_leaks(thought, result):
    assert leaks(thought, TAKEN, [UNDONE], task=KITCHEN) == result


def test_what_the_agent_did_and_read_before_is_known():
    text = "the spoon again"
    assert leaks(text, TAKEN, [], task=KITCHEN) == ["outcome: spoon"]
    assert leaks(text, TAKEN, [], task=KITCHEN, past=["drop spoon"]) == []
    queries = dataclasses.replace(KITCHEN, instruction="find a spoon")
    assert leaks(text, TAKEN, [], task=queries) == []
    assert leaks("the library", TAKEN, [], task=KITCHEN) == []  # nobody went there


def test_leaks_are_counted_by_kind():
    result = leaks("expert expert: option B, the spoon", TAKEN, [], task=KITCHEN)
    assert count_leaks(result) == {
        "leak_expert": 1,
        "leak_numbering": 1,
        "leak_outcome": 1,
    }


WORDS = st.sampled_from(
    "expert gold option action 2 B demonstration lamp state # alternative one first "
    "would so correct turned out Σ İ ' - trajectory I the".split()
)
TEXT = st.one_of(st.lists(WORDS, min_size=1, max_size=4).map(" ".join), st.text())
STATE = st.lists(TEXT, min_size=1, max_size=3).map(tuple)


@st.composite
def acted(draw, state):
    return Transition(
        state=state,
        action=draw(TEXT),
        next_state=draw(st.one_of(st.just(state), STATE)),
        rewards={"r": draw(st.sampled_from([0.0, 1.0]))},
        terminated=draw(st.booleans()),
        success=draw(st.booleans()),
    )


@given(data=st.data())
def test_the_rule_never_leaks(data):
    state = data.draw(STATE)
    some = [data.draw(acted(state)) for _ in range(data.draw(st.integers(1, 3)))]
    task = Task(id="t", instruction=data.draw(TEXT))
    result = reflect(some[0], some[1:]) or reflect(some[0], [])
    assert result is not None
    assert leaks(result, some[0], some[1:], task=task) == []


# --- writers -----------------------------------------------------------------

MOMENTS = reflection_cases([EPISODE], BRANCHES, per_state=2, seed=0)


class Says:
    def __init__(self, *thoughts):
        self.thoughts, self.report = thoughts, Report({"written": 2, "leak_outcome": 3})

    def write(self, cases):
        del cases
        return list(self.thoughts)


def test_a_leaking_or_missing_thought_is_the_rules():
    rule = [reflect(m.expert, m.others) for m in MOMENTS]
    good = "to the coin"
    for text, expected, counts in (
        ((good, None), [good, rule[1]], (rule[1] is not None, 0)),
        (("as the expert", good), [rule[0], good], (rule[0] is not None, 1)),
        ((None, None), rule, (1, 0)),  # of one of the two the rule knows no reason
        ((good, good), [good, good], (0, 0)),
    ):
        writer = Says(*text)
        assert isinstance(writer, Writer)
        result, output = reflections(writer, MOMENTS)
        assert result == expected
        assert (output["rewritten"], output["leak_expert"]) == counts
        # What a writer found out by itself is counted too.
        assert (output["written"], output["leak_outcome"]) == (2, 3)


def test_the_rule_as_a_writer_is_never_rewritten():
    result, counts = reflections(RuleWriter(), MOMENTS)
    assert result == [reflect(m.expert, m.others) for m in MOMENTS]
    without = result.count(None)
    none = {"rewritten": 0, **{f"leak_{k}": 0 for k in LEAK_KINDS}}
    assert counts == none | {"unexplained": without}
    assert reflections(RuleWriter(), []) == ([], none | {"unexplained": 0})
