"""Dreamed steps next to the real ones."""

import dataclasses
import math

from dreamgym.evaluation.comparisons.episode_comparison import (
    ComparedStep,
    compare_episode,
    compare_step,
    episode_view,
)
from dreamgym.evaluation.state_text import as_lines
from tests import helpers
from worldmodel.experience.base import Prediction

EPISODE = helpers.lamp_and_door()


def steps():
    one, two, three = EPISODE.transitions
    right = Prediction(one.next_state, one.reward, "go", "so <it> is", 0.75, None)
    wrong = Prediction(("fog",), 1.0, "win", "", math.nan, None)
    return [
        ComparedStep(one, one.state, right, ((0.5, two),)),
        ComparedStep(two, one.next_state, wrong, ()),
        ComparedStep(three, ("fog",), None, ()),
    ]


def view():
    return episode_view(EPISODE, steps(), as_lines)


def test_lines_that_only_one_side_has_are_marked():
    first, second, third = view()["steps"]
    assert first["dream"]["same_state"]
    assert first["dream"]["same_end"]
    assert all(same for _, same in first["real"] + first["dream"]["lines"])
    assert not any(same for _, same in second["real"] + second["dream"]["lines"])
    assert second["dream"]["lines"] == [["fog", False]]
    assert second["real_end"] == "reward 0, the episode goes on"
    assert second["dream"]["end"] == "reward 1, the episode is won"
    assert not second["dream"]["same_end"]
    assert third["dream"] is None  # it has ended: only reality goes on
    assert third["real_end"] == "reward 1, the episode is won"


def test_a_line_that_occurs_twice_matches_once():
    real = helpers.transition(("a",), "x", ("lamp", "lamp", "door"))
    answer = Prediction(("lamp", "door"), 0.0, "go", "", 0.5, None)
    step = ComparedStep(real, real.state, answer, ())
    (result,) = episode_view(EPISODE, [step], as_lines)["steps"]
    assert result["real"] == [["lamp", True], ["lamp", False], ["door", True]]
    assert all(same for _, same in result["dream"]["lines"])
    assert not result["dream"]["same_state"]
    assert not result["hidden_difference"]


def test_what_the_answer_was_made_of_is_there():
    first, second, _ = view()["steps"]
    assert first["dream"]["reasoning"] == "so <it> is"
    assert first["dream"]["confidence"] == 0.75
    assert second["dream"]["confidence"] is None  # unknown
    (memory,) = first["dream"]["recalled"]
    assert memory["similarity"] == 0.5
    assert memory["action"] == "nothing"
    assert memory["effect"] == ["nothing changes"]


def test_how_both_ended_is_said():
    assert view()["real_outcome"] == "really won"
    unscored = dataclasses.replace(EPISODE, success=None)
    outcome = episode_view(unscored, steps(), as_lines)["real_outcome"]
    assert outcome == "not scored in reality"
    assert view()["dreamed_outcome"] == "won in the dream"
    broken = steps()[1]._replace(
        dreamed=steps()[1].dreamed._replace(error="no reward", outcome="go")
    )
    result = episode_view(EPISODE, [steps()[0], broken], as_lines)
    assert result["dreamed_outcome"] == "the dream breaks off at step 2"
    assert result["steps"][1]["dream"]["error"] == "no reward"
    assert not result["steps"][1]["dream"]["same_end"]


def test_a_difference_that_people_do_not_see_is_said():
    results = episode_view(EPISODE, steps(), lambda _: ["a room"])["steps"]
    assert not results[0]["hidden_difference"]
    assert results[1]["hidden_difference"]
    assert results[1]["dream"]["raw"] == ["fog"]


class Fog:
    """Every action leads into fog; pulling there ends the dream."""

    def __init__(self):
        self.queries = []

    def predict(self, queries):
        self.queries += queries
        return [
            Prediction(
                ("fog",), 0.0, "lose" if q.state == ("fog",) else "go", "", 0.5, None
            )
            for q in queries
        ]

    def vary(self, groups, *, key):
        raise AssertionError(f"no task is varied, got {groups} and {key}")


def test_an_episode_goes_on_from_the_states_of_the_dream():
    model, one = Fog(), EPISODE.transitions[0]
    results = compare_episode(model, lambda _: [(1.0, one)], EPISODE)
    assert [s.state for s in results] == [one.state, ("fog",), ("fog",)]
    assert [s.dreamed is None for s in results] == [False, False, True]
    assert [q.past for q in model.queries] == [(), ("press lamp",)]
    assert results[0].recalled == ((1.0, one),)


def test_a_single_step_begins_at_the_real_state():
    model = Fog()
    result = compare_step(model, lambda _: [], EPISODE, 2)
    assert result.state == EPISODE.transitions[2].state
    assert model.queries[0].past == ("press lamp", "nothing")
    assert result.dreamed.outcome == "go"
