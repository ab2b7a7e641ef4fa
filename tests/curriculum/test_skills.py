"""Skills: each measure by hand, sums that add in any order, episodes with tools."""

import itertools
import json

import pytest

from curriculum import skills
from curriculum.skills import Skills, Turn, of_episode, of_turn
from tests import doubles
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.text.tool_calls import Call

WEATHER = Call("weather", {"city": "Paris"})
TURNS = [
    Turn(WEATHER, WEATHER, True),
    Turn(Call("news", {}), WEATHER, True),  # the wrong tool
    Turn(None, WEATHER),  # missed
    Turn(WEATHER, None, False),  # not needed
    Turn(Call("weather", {}, False), WEATHER, False),  # malformed, the right tool
    Turn(None, None),
]


def test_measures_by_hand():
    got = skills.total(map(of_turn, TURNS)).measures()
    assert got == {
        "call_precision": 3 / 4,  # 4 calls, 3 where one was due
        "call_recall": 3 / 4,  # due 4 times, called 3 times
        "call_rate": 4 / 6,
        "due_rate": 4 / 6,
        "valid_json": 3 / 4,
        "execution": 2 / 4,
        "tool_accuracy": 2 / 3,
        "argument_score": 1 / 2,  # 1 and 0; the wrong tool's are not compared
    }


def test_confusion_by_hand():
    got = skills.total(map(of_turn, TURNS)).confusion
    assert got == {"weather": {"weather": 2, "news": 1}}


def test_what_was_not_seen_has_no_measure():
    assert Skills().measures() == {}
    assert set(of_turn(Turn(None, None)).measures()) == {"call_rate", "due_rate"}


def test_batches_add_in_any_order_and_go_through_json():
    parts = [of_turn(t) for t in TURNS]
    whole = skills.total(parts)
    for order in itertools.islice(itertools.permutations(parts), 20):
        assert skills.total(order) == whole
    assert skills.total(parts[:2]).plus(skills.total(parts[2:])) == whole
    assert Skills.of_state(json.loads(json.dumps(whole.state()))) == whole


def answered(actions, calls, *, success, invalid=None):
    task = Task(id="t", instruction="ask", options={"calls": calls})
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
