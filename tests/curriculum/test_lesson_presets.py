"""The plans that settings name: their numbers, and what no plan can be."""

import math

import pytest

from curriculum import lesson_presets
from worldmodel.data.records import Task


def test_the_primers_numbers():
    plan = {s.name: s for s in lesson_presets.tool_lessons()}
    assert list(plan) == ["supervised", "when", "which", "how", "pipelines", "open"]
    budgets = [(30e3, 200e3), (1, 5), (3, 10), (5, 20), (10, 30), (1, math.inf)]
    assert [s.budget for s in plan.values()] == budgets
    assert [k.share for k in plan["when"].task_mixture] == [0.5, 0.5]
    assert plan["when"].rewards["tool/when"] > 1 > plan["which"].rewards["tool/when"]
    # The primer reduces penalties in the first and tightens one in the third: what is
    # paid for right syntax stays.
    assert (
        plan["when"].penalties["tool/syntax"] < 1 < plan["how"].penalties["tool/syntax"]
    )
    assert plan["when"].factor("tool/syntax", 0.5) == 1.0
    assert plan["when"].factor("tool/syntax", -1.0) == 0.5
    # Step penalties are added in the fourth.
    steps = [plan[n].factor("cost/step", -1.0) for n in ("when", "how", "pipelines")]
    assert steps == [0.0, 0.0, 1.0]
    # So are penalties for repeated wrong tools in the second.
    repeats = [plan[n].factor("tool/repeat", -1.0) for n in ("when", "which", "open")]
    assert repeats == [0.0, 1.0, 1.0]
    for stage in plan.values():
        assert sum(k.share for k in stage.task_mixture) == pytest.approx(1.0)


def test_typos_begin_in_the_third_lesson():
    calls = [{"tool": "t", "arguments": {"a": 1}}]
    clear = Task(id="clear", instruction="", options={"calls": calls})
    noisy = Task(id="noisy", instruction="", options={"calls": calls, "typos": 2})
    fitting = {
        lesson.name: {
            task.id
            for task in (clear, noisy)
            if any(f.fits(task, steps=None, success=0.0) for f in lesson.task_mixture)
        }
        for lesson in lesson_presets.tool_lessons()
    }
    early = {"supervised", "when", "which"}
    assert {name for name, ids in fitting.items() if ids == {"clear"}} == early
    both = {"clear", "noisy"}
    assert {name for name, ids in fitting.items() if ids == both} == {
        "how",
        "pipelines",
        "open",
    }


def test_games_of_no_order_or_no_success_are_refused():
    with pytest.raises(ValueError, match="plans must be"):
        lesson_presets.game_lessons(plans=(4, 4))
    with pytest.raises(ValueError, match="success must be"):
        lesson_presets.game_lessons(success=0.0)
