"""Skill collapse: each red flag by hand, and what is none."""

import dataclasses

import pytest

from curriculum.config import LessonConfig
from curriculum.lessons import LessonState
from curriculum.skill_collapse import flags, red_flags

FINE = {"valid_json": 0.9, "tool_accuracy": 0.5, "call_rate": 0.5, "due_rate": 0.5}


def test_a_skill_that_falls_while_another_rises_has_collapsed():
    traded = FINE | {"valid_json": 0.6, "tool_accuracy": 0.6}
    assert red_flags([FINE, traded], drop=0.2) == {"valid_json": "syntax collapse"}
    assert red_flags([FINE, traded], drop=0.4) == {}
    config = LessonConfig(collapse_drop=0.2)
    state = LessonState(history=(FINE, traded), counts=({}, {}), lesson_checks=2)
    assert flags(state, config) == red_flags([FINE, traded], drop=0.2)
    # The check before was of another lesson, which plays other tasks.
    assert flags(dataclasses.replace(state, lesson_checks=1), config) == {}
    # The last check of a lesson is one of it, though the state is of the next one.
    over = dataclasses.replace(state, lesson_checks=0)
    assert flags(over, config, checks=2) == flags(state, config)


@pytest.mark.parametrize(("cases", "certain"), [(10, False), (100, True)])
def test_a_fall_is_a_collapse_where_it_is_no_chance(cases, certain):
    # 0.9 and 0.6 of 10 differ by 1.5 standard errors of 0.19, of 100 by 4.9 of 0.061.
    rows = [FINE, FINE | {"valid_json": 0.6}]
    counts = [dict.fromkeys(FINE, float(cases))] * 2
    assert bool(red_flags(rows, drop=0.2, counts=counts)) == certain
    assert red_flags(rows, drop=0.2, counts=[{}, {}])
    with pytest.raises(ValueError, match="1 counts of 2 checks"):
        red_flags(rows, drop=0.2, counts=counts[:1])


def test_what_falls_because_calls_vanish_has_no_flag_of_its_own():
    first = {"call_rate": 0.5, "due_rate": 0.5, "call_recall": 0.9, "success": 0.8}
    first |= {"valid_action": 0.5}
    last = first | {"call_rate": 0.0, "call_recall": 0.0, "success": 0.2}
    last |= {"valid_action": 0.9}
    assert red_flags([first, last], drop=0.2) == {"call_rate": "calls vanish"}


def test_of_a_chain_the_first_fall_is_named():
    # Of calls that cannot be read, none is right.
    worse = FINE | {"valid_json": 0.6, "tool_accuracy": 0.2}
    assert red_flags([FINE, worse], drop=0.2) == {"valid_json": "syntax collapse"}
    worse = FINE | {"tool_accuracy": 0.2}
    assert red_flags([FINE, worse], drop=0.2) == {"tool_accuracy": "which collapse"}


def test_a_fall_of_other_skills_without_a_rise_is_a_worse_policy():
    skills = {"argument_score": 0.9, "call_recall": 0.8}
    worse = {"argument_score": 0.4, "call_recall": 0.8}
    assert red_flags([skills, worse], drop=0.2) == {}
    traded = worse | {"call_recall": 0.9}
    assert red_flags([skills, traded], drop=0.2) == {"argument_score": "skill collapse"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("call_precision", "call collapse"),
        ("tool_accuracy", "which collapse"),
        ("execution", "argument collapse"),
        ("argument_score", "skill collapse"),
    ],
)
def test_falls_have_the_primers_names(name, message):
    rows = [{name: 0.9, "call_recall": 0.1}, {name: 0.4, "call_recall": 0.5}]
    assert red_flags(rows, drop=0.2) == {name: message}


def test_the_best_is_looked_for_in_the_window_alone():
    rows = [{"a": 0.9, "b": 0.1}, *[{"a": 0.5, "b": 0.2}] * 3, {"a": 0.5, "b": 0.3}]
    assert red_flags(rows, drop=0.2, window=4) == {"a": "skill collapse"}
    assert red_flags(rows, drop=0.2, window=3) == {}


def test_more_steps_for_a_success_is_no_skill():
    rows = [{"steps_per_success": 9.0, "a": 0.1}, {"steps_per_success": 3.0, "a": 0.2}]
    assert red_flags(rows, drop=0.2) == {}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (0.0, {"call_rate": "calls vanish"}),
        (0.019, {"call_rate": "calls vanish"}),
        (0.021, {}),
        (0.59, {}),
        (0.61, {"call_rate": "calls explode"}),
    ],
)
def test_calls_vanish_and_explode(made, message):
    assert red_flags([{"call_rate": made, "due_rate": 0.2}], drop=0.2) == message


def test_shaping_without_success_is_a_plateau():
    def row(i, success):
        return {"success": success, "valid_json": 0.2 * i, "tool_accuracy": 0.1 * i}

    flat = [row(i, 0.3) for i in range(5)]
    assert red_flags(flat, drop=0.2) == {"success": "plateau"}
    assert red_flags(flat[:4], drop=0.2) == {}  # too short to say
    assert red_flags([row(i, 0.3 + 0.1 * i) for i in range(5)], drop=0.2) == {}
    assert red_flags([row(0, 0.3)] * 5, drop=0.2) == {}


def test_nothing_measured_raises_no_flag_and_bad_input_does():
    assert red_flags([], drop=0.2) == {}
    assert red_flags([{}], drop=0.2) == {}
    with pytest.raises(ValueError, match="drop must be > 0"):
        red_flags([], drop=0.0)
    with pytest.raises(ValueError, match=r"window >= 1, got 0\.2 and 0"):
        red_flags([], drop=0.2, window=0)
