"""Skills: each measure by hand, sums that add in any order, episodes with tools."""

import itertools
import json

import pytest

from tests import doubles
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tools import skills
from worldmodel.text.tools.skills import Skills, of_episode

TOOLS = [
    {"name": name, "parameters": {"properties": {"city": {"type": "string"}}}}
    for name in ("weather", "news")
]
WEATHER = {"tool": "weather", "arguments": {"city": "Paris"}}


def answered(actions, calls, *, success, invalid=None, tools=TOOLS):
    task = Task(id="t", instruction="ask", options={"calls": calls, "tools": tools})
    state = ("s",)
    return Episode(
        id="e",
        task=task,
        source="policy",
        success=success,
        transitions=tuple(
            Transition(state=state, action=a, next_state=state, invalid=invalid)
            for a in actions
        ),
    )


EPISODES = [
    answered(['weather(city="Paris")', "rain"], [WEATHER, None], success=True),
    # The wrong tool, twice; the second time nothing else is expected.
    answered(["news()", "news()"], [WEATHER], success=False, invalid=False),
    # Missed, and a turn that is neither.
    answered(["rain", "weather("], [WEATHER, WEATHER], success=False, invalid=True),
    # Not needed, of no such tool, and after that an argument of the wrong type.
    answered(["maps()\nweather(city=3)"], [None], success=None, invalid=True),
    answered(["Hello."], [], success=True),
]


def test_measures_by_hand():
    got = skills.total(map(of_episode, EPISODES)).measures()
    assert got == {
        "call_precision": 3 / 6,  # weather, news, weather( of 6 calls
        "call_recall": 3 / 4,  # expected 1 + 1 + 2, of which one was missed
        "unnecessary_calls": 3 / 6,
        "missed_calls": 1 / 4,
        "repeated_calls": 1 / 6,  # the second news()
        # The second news(), maps and weather(city=3), where nothing (more) was needed.
        "redundant_calls": 3 / 6,
        "call_rate": 6 / 8,
        "due_rate": 4 / 8,
        "tool_accuracy": 2 / 3,
        "repeated_wrong_tool": 0.0,
        "argument_score": 1 / 2,  # 1 and 0; the wrong tool's are not compared
        "valid_json": 5 / 6,
        "valid_schema": 3 / 6,  # weather(city=Paris), news() twice
        "execution": 2 / 5,
        "void_turns": 1 / 8,
        "valid_action": 2 / 5,
        "success": 2 / 4,
        "calls_per_success": 1 / 2,
        "steps_per_success": 3 / 2,
    }


def test_a_wrong_tool_that_is_tried_again():
    e = answered(["news()", 'news(city="x")'], [WEATHER, WEATHER], success=False)
    measures = of_episode(e).measures()
    assert measures["repeated_wrong_tool"] == 1 / 2
    assert measures["repeated_calls"] == 0.0  # with other arguments


def test_the_rule_of_matching_changes_what_is_expected():
    calls = ["weather(city=Rome)", 'weather(city="Paris")']
    e = answered(calls, [WEATHER], success=True)
    assert of_episode(e, "assignment").measures()["argument_score"] == 1.0
    assert of_episode(e, "step").measures()["argument_score"] < 1.0


def test_confusion_by_hand():
    got = skills.total(map(of_episode, EPISODES)).confusion
    assert got == {
        "weather": {"weather": 2, "news": 1, "none": 1},
        "none": {"maps": 1, "news": 1, "weather": 1},
    }


def test_what_was_not_seen_has_no_measure():
    assert Skills().measures() == {}
    quiet = of_episode(answered(["hello"], [], success=None))
    assert set(quiet.measures()) == {"call_rate", "due_rate", "void_turns"}


def test_batches_add_in_any_order_and_go_through_json():
    parts = list(map(of_episode, EPISODES))
    whole = skills.total(parts)
    for order in itertools.islice(itertools.permutations(parts), 20):
        assert skills.total(order) == whole
    assert skills.total(parts[:2]).plus(skills.total(parts[2:])) == whole
    assert Skills.of_state(json.loads(json.dumps(whole.state()))) == whole


DUE = [{"tool": "weather", "arguments": {"city": "Paris"}}, None]


def test_an_episode_with_tools_by_hand():
    won = answered(['weather(city="Paris")', "rain"], DUE, success=True, invalid=False)
    got = of_episode(won).measures()
    assert got["call_precision"] == got["call_recall"] == got["execution"] == 1.0
    assert got["argument_score"] == got["success"] == got["valid_action"] == 1.0
    assert (got["calls_per_success"], got["steps_per_success"]) == (1.0, 2.0)
    lost = of_episode(answered(["rain"], DUE, success=False, invalid=True))
    assert lost.measures()["call_recall"] == 0.0
    both = of_episode(won).plus(lost).measures()
    assert both["calls_per_success"] == 1.0  # of the won ones
    assert both["success"] == 0.5
    assert both["valid_action"] == 2 / 3


def test_an_episode_that_was_not_scored_counts_for_its_turns_alone():
    got = of_episode(answered(["rain"], DUE, success=None)).measures()
    assert "success" not in got
    assert "valid_action" not in got  # the environment did not say
    assert got["call_recall"] == 0.0


def test_a_text_game_has_no_tools():
    task = doubles.task(0, 2, 3)
    got = of_episode(
        doubles.episode(task, ["fly", "go right", "go right", "take coin"])
    )
    assert got.measures() == {
        "valid_action": 3 / 4,
        "success": 1.0,
        "steps_per_success": 4.0,
    }


def test_malformed_gold_is_refused():
    with pytest.raises(ValueError, match="'t'"):
        of_episode(answered(["x"], [7], success=True))
