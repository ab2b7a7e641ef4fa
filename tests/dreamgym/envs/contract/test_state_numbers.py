"""Numbers of the contract checker that say what states are like."""

import dataclasses

import pytest

from dreamgym.envs.contract import checker
from dreamgym.envs.contract.player import Played, Trace
from dreamgym.envs.contract.state_numbers import state_numbers
from tests import doubles
from tests.dreamgym.envs.contract.common import checked
from worldmodel.data.records import Task


def trace(*states, task="t", instruction="find the key", reveals=None):
    """An episode of the action `look` that comes through these states."""
    steps = [Played("" if i == 0 else "look", s) for i, s in enumerate(states)]
    steps = [s._replace(reveals=reveals) for s in steps]
    return Trace(Task(id=task, instruction=""), tuple(steps), instruction=instruction)


def numbers_of(*played, nonsense=()):
    result = state_numbers(played, nonsense)
    assert result is not None
    return result


def test_outcomes_that_were_not_compared_are_not_called_equal():
    text = numbers_of(trace("turns 1", "turns 2", "turns 3")).text()
    assert "different outcomes: not tested" in text
    text = numbers_of(trace(*["at hall"] * 5)).text()
    assert "different outcomes: 0% of 1 states" in text


def test_words_and_lines_by_hand():
    # States of 3, 5 and 4 words. The second keeps one line of two, the third both of
    # its two lines; the empty line and blanks at the end of a line are none.
    got = numbers_of(
        trace("at hall\nlamp", "at hall  \n\nlamp is on", "at hall\nlamp is")
    )
    assert (got.words, got.largest, got.states) == (4.0, 5, 3)
    assert (got.repeated_lines.hits, got.repeated_lines.count) == (2, 4)
    again = numbers_of(trace("at hall\nlamp", "at hall\nlamp"))
    assert again.repeated_lines.json()["mean"] == 1.0


@pytest.mark.parametrize(
    ("states", "options", "expected"),
    [
        (("box", "apple"), {}, 1),  # stood nowhere
        (("box", "key"), {}, 0),  # the instruction holds it
        (("box", "look"), {}, 0),  # the action holds it
        (("turns 1", "turns 2"), {}, 0),  # can be computed
        (("apple", "box", "apple"), {}, 1),  # `box` is new, `apple` was seen
        (("box", "apple"), {"reveals": False}, 0),  # as the environment says
        (("box", "key"), {"reveals": True}, 1),
        (("box", "box"), {"reveals": True}, 0),  # nothing is shown
    ],
)
def test_reveals_show_what_nobody_could_know(states, options, expected):
    got = numbers_of(trace(*states, **options)).reveals
    assert (got.hits, got.count) == (expected, len(states) - 1)


def test_words_of_many_tasks_are_no_reveal():
    plays = [trace("box", f"won{n} taken", task=f"t-{n}") for n in range(10)]
    assert numbers_of(*plays).reveals.hits == 10  # the name of each task is one
    plays = [trace("box", "taken", task=f"t-{n}") for n in range(10)]
    assert numbers_of(*plays[:9]).reveals.hits == 9  # too few to know
    assert numbers_of(*plays).reveals.hits == 0


def test_different_outcomes_are_of_equal_states_and_actions_of_one_task():
    one, other = trace("dark", "cave"), trace("dark", "hall")
    got = numbers_of(one, nonsense=[other]).different_outcomes
    assert (got.hits, got.count) == (1, 1)
    got = numbers_of(one, one).different_outcomes
    assert (got.hits, got.count) == (0, 1)
    elsewhere = dataclasses.replace(other, task=Task(id="u", instruction=""))
    assert numbers_of(one, elsewhere).different_outcomes.count == 0
    # After other actions it is another situation; a reveal is none.
    assert numbers_of(trace("dark", "dark", "cave")).different_outcomes.count == 0
    rolled = trace("dark", "hall", reveals=True)
    assert numbers_of(rolled, rolled).different_outcomes.count == 0


def test_nonsense_counts_for_outcomes_alone_and_without_a_step_there_are_no_numbers():
    got = numbers_of(trace("dark", "cave"), nonsense=[trace("x y z w", "x y z w")])
    assert (got.largest, got.states, got.reveals.count) == (1, 2, 1)
    assert state_numbers([trace("dark")], [trace("dark", "cave")]) is None


class Verbose(doubles.Corridor):
    """A corridor whose states name things that come and go."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        info.pop("reveals", None)
        text = f"{obs}\nthing thing{self.steps}z{self.steps}"
        return text, reward, terminated, truncated, info


def test_a_report_has_the_numbers_as_text_and_as_data():
    report = checked(doubles.Corridor)
    states = report.json()["states"]
    assert states["reveals"]["mean"] == 0.0
    assert states["words"]["mean"] <= states["words"]["largest"] == 9
    assert 0.5 < states["repeated_lines"]["mean"] < 1.0
    assert states["different_outcomes"]["mean"] == 0.0
    assert "  words: 8 on average, 9 at most\n  reveals: 0% of" in report.text("env")
    assert checked(Verbose).json()["states"]["reveals"]["mean"] == 1.0


def test_reveals_of_few_tasks_are_called_too_many():
    class Planless(Verbose):
        expert = None

        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated, truncated, info | {"success": True}

    few, many = (
        checker.check(Planless(), limit=30, tasks=n, make=Planless).text("env")
        for n in (3, 12)
    )
    assert "only 3 tasks were played, and usual words count as new" in few
    assert "were played, and" not in many


def test_a_report_without_play_has_no_numbers():
    class Silent(doubles.Corridor):
        def reset(self, **_):
            raise RuntimeError("no")

    report = checked(Silent)
    assert report.json()["states"] is None
    assert "words:" not in report.text("env")
