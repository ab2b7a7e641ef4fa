"""Stages: promotion and regression with patience, mixes, kinds of tasks."""

import json
import math

import numpy as np
import pytest

from curriculum import lessons
from curriculum.config import LessonConfig
from curriculum.lessons import Lesson, LessonState, TaskFilter, advance, mixture_shares
from tests import doubles
from worldmodel.data.records import Task

MIX = (TaskFilter(share=1.0),)
PLAN = (
    Lesson(name="a", task_mixture=MIX, budget=(2, 6), promote={"x": 0.8}),
    Lesson(name="b", task_mixture=MIX, budget=(1, 4), promote={"y": 0.5}),
    Lesson(name="c", task_mixture=MIX, promote={"y": 0.9}),
)
CONFIG = LessonConfig(consecutive_checks=2, regression_margin=0.1)


def went(rows, *, config=CONFIG, state=None, spent=1):
    """Indices after each check, and the last state."""
    state, out = LessonState() if state is None else state, []
    for row in rows:
        state = advance(state, PLAN, row, config, budget_used=spent)
        out.append(state.index)
    return out, state


GOOD = {"x": 0.9}
HELD = {"x": 0.9, "y": 0.6}


def test_promotion_needs_checks_in_a_row():
    assert went([GOOD, {"x": 0.7}, GOOD, GOOD])[0] == [0, 0, 0, 1]
    assert went([GOOD, GOOD])[0] == [0, 1]
    assert went([GOOD, {}, GOOD])[0] == [0, 0, 0]  # not known is not reached


def test_checks_are_counted_by_lesson_and_survive_json():
    _, state = went([GOOD] * 2)
    assert (state.index, state.lesson_checks) == (1, 0)
    later = advance(state, PLAN, HELD, CONFIG, budget_used=1, counts={"x": 9.0})
    assert later.lesson_checks == 1
    assert later.counts == ({}, {}, {"x": 9.0})
    assert LessonState.of_json(json.loads(json.dumps(later.json()))) == later


def test_promotion_waits_for_the_least_budget():
    assert went([GOOD] * 4, spent=0.5)[0] == [0, 0, 0, 1]


def test_at_the_end_of_its_budget_a_stage_is_passed_or_not_as_told():
    bad = [{"x": 0.1}] * 7
    got, state = went(bad)
    assert got == [0, 0, 0, 0, 0, 1, 1]
    assert state.why == "budget"
    assert went(bad, config=LessonConfig(advance_on_budget=False))[0] == [0] * 7


def test_what_was_never_reached_is_not_lost():
    # Passed by budget at x = 0.1: that is the floor, and 0.05 is within the margin.
    assert went([{"x": 0.1}] * 6 + [{"x": 0.05}] * 3)[0][-3:] == [1, 1, 1]


def test_regression_needs_checks_in_a_row_and_more_than_the_margin():
    _, second = went([GOOD, GOOD])
    assert second.why == "promotion"
    assert went([{"x": 0.71}] * 3, state=second)[0] == [1, 1, 1]  # 0.8 - 0.1
    assert went([{"x": 0.69}, HELD, {"x": 0.69}], state=second)[0] == [1, 1, 1]
    got, state = went([{"x": 0.69}, {"x": 0.69}], state=second)
    assert got == [1, 0]
    assert (state.why, state.budget_used, dict(state.floors)) == ("regression", 0.0, {})


def test_regression_goes_to_the_earliest_stage_that_was_lost():
    _, third = went([GOOD, GOOD, HELD, HELD])
    assert third.index == 2
    lost = {"x": 0.1, "y": 0.1}
    assert went([lost, lost], state=third)[0] == [2, 0]
    got, state = went([{"x": 0.9, "y": 0.1}] * 2, state=third)
    assert got == [2, 1]
    assert set(state.floors) == {"a"}


def test_the_last_stage_stays():
    assert (
        went([GOOD, GOOD, HELD, HELD] + [{"x": 1.0, "y": 1.0}] * 5)[0][-5:] == [2] * 5
    )


def test_a_check_is_a_pure_function_and_history_is_bounded():
    state = LessonState()
    advance(state, PLAN, GOOD, CONFIG, budget_used=1)
    assert state == LessonState()
    _, state = went([{"z": 1.0}] * 100)
    assert len(state.history) == lessons.HISTORY


def test_shares_shift_to_what_is_lacking():
    stage = Lesson(
        name="s",
        task_mixture=(
            TaskFilter(share=0.5, skill="x"),
            TaskFilter(share=0.5, skill="y"),
        ),
    )
    assert mixture_shares(stage, {"x": 1.0, "y": 0.0}, 0.0) == [0.5, 0.5]
    # 0.5 and 0.5 * (1 + 1): a third and two.
    np.testing.assert_allclose(
        mixture_shares(stage, {"x": 1.0, "y": 0.0}, 1.0), [1 / 3, 2 / 3]
    )
    assert mixture_shares(stage, {}, 1.0) == [0.5, 0.5]


def tool_task(name, *calls, **options):
    rows = [{"tool": "t", "arguments": {str(i): 1 for i in range(n)}} for n in calls]
    return Task(
        id=name,
        instruction=name,
        family="tools",
        initial_state=("ask",),
        options={"calls": rows, **options},
    )


SILENT, ONE, RICH = tool_task("no"), tool_task("one", 1), tool_task("rich", 3)
LONG = tool_task("long", 1, 1)


@pytest.mark.parametrize(
    ("kind", "fitting"),
    [
        (TaskFilter(share=1.0), {"no", "one", "rich", "long", "game"}),
        (TaskFilter(share=1.0, calls=(0, 0)), {"no"}),
        (TaskFilter(share=1.0, calls=(1, 1)), {"one", "rich"}),
        (TaskFilter(share=1.0, calls=(2, math.inf)), {"long"}),
        (TaskFilter(share=1.0, arguments=(2, 5)), {"rich"}),
        (TaskFilter(share=1.0, families=("too*",)), {"no", "one", "rich", "long"}),
        (TaskFilter(share=1.0, steps=(3, 4)), {"long"}),  # of the game none is known
        (TaskFilter(share=1.0, steps=(3, math.inf)), {"long", "game"}),
        (TaskFilter(share=1.0, success=(0.5, 1.0)), {"one", "long"}),
    ],
)
def test_kinds_by_hand(kind, fitting):
    game = doubles.task(0, 2, 3)
    steps = {"no": 1, "one": 2, "rich": 2, "long": 4}
    success = {"one": 0.5, "long": 1.0}
    result = {
        name
        for name, task in [
            ("no", SILENT),
            ("one", ONE),
            ("rich", RICH),
            ("long", LONG),
            ("game", game),
        ]
        if kind.fits(task, steps=steps.get(name), success=success.get(name, 0.2))
    }
    assert result == fitting


def test_typos_by_hand():
    tasks = [ONE, tool_task("two", 1, typos=2), tool_task("unsaid", 1, typos=None)]
    for limits, fitting in (
        ((0, 0), ["one", "unsaid"]),
        ((2, 2), ["two"]),
        ((1, math.inf), ["two"]),
        ((3, 4), []),
    ):
        noise = TaskFilter(share=1.0, typos=limits)
        ids = [t.id for t in tasks if noise.fits(t, steps=None, success=0.0)]
        assert ids == fitting


def test_a_unit_that_nobody_counts_is_refused():
    with pytest.raises(ValueError, match="unit must be one of"):
        Lesson(name="x", task_mixture=(TaskFilter(share=1.0),), unit="hours")


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="share must be > 0"):
        TaskFilter(share=0.0)
    with pytest.raises(ValueError, match=r"calls must be .*\(2, 1\)"):
        TaskFilter(share=1.0, calls=(2, 1))
    with pytest.raises(ValueError, match="a task mixture"):
        Lesson(name="x", task_mixture=())
    with pytest.raises(ValueError, match="budget"):
        Lesson(name="x", task_mixture=MIX, budget=(3, 2))
    with pytest.raises(ValueError, match=r"rewards.*-1"):
        Lesson(name="x", task_mixture=MIX, rewards={"call": -1.0})
    with pytest.raises(ValueError, match="max_steps must be >= 0, got -1"):
        Lesson(name="x", task_mixture=MIX, max_steps=-1)
    for bad in (
        {"consecutive_checks": 0},
        {"regression_margin": -1.0},
        {"weakness_boost": -1.0},
        {"collapse_drop": 0.0},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            LessonConfig(**bad)
    with pytest.raises(ValueError, match="number 3 and 1"):
        advance(LessonState(index=3), PLAN, {}, CONFIG, budget_used=1)
    with pytest.raises(ValueError, match="budget_used >= 0"):
        advance(LessonState(), PLAN, {}, CONFIG, budget_used=-1)
