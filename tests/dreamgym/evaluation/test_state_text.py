"""States as people read them."""

import gymnasium

from dreamgym.envs.failures import EnvironmentDown
from dreamgym.evaluation.state_text import as_lines, readable_states
from tests import doubles


class Rendering(doubles.Corridor):
    def render_state(self, state):
        if state == ("broken",):
            raise KeyError("no such place")
        if state == ("odd",):
            return None
        if state == ("deadly",):
            raise EnvironmentDown("the worker ended three times")
        return f"You stand at {state[0]}.\nIt is \x1b[31mdark."


def test_an_environment_shows_its_states_in_its_own_way():
    read = readable_states(gymnasium.Wrapper(Rendering()))
    assert read(("the door",)) == ["You stand at the door.", "It is \ufffd[31mdark."]


def test_without_a_way_of_its_own_lines_are_shown():
    assert readable_states(None)(("a", "b\x1b")) == ["a", "b\ufffd"]
    assert readable_states(doubles.Corridor()) is as_lines


def test_a_state_that_cannot_be_rendered_is_shown_in_lines():
    read = readable_states(Rendering())
    assert read(("broken",)) == ["broken"]
    assert read(("odd",)) == ["odd"]
    assert read(("deadly",)) == ["deadly"]
