"""Whether recorded states have the form of an environment's."""

import pytest

from dreamgym import Task, TextEnv
from dreamgym.build.real.state_forms import form_warning
from tests import helpers


class GivenStates(TextEnv):
    """An environment whose first states are those of the tasks' options."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {})["task"]
        if task.options["state"] == "broken":
            raise RuntimeError("broken")
        return task.options["state"], {}

    def step(self, action):
        raise AssertionError(f"no step may be taken: {action}")


def warning(recording, *states):
    step = helpers.transition(recording, "look", recording)
    task = Task(id="r", instruction="look")
    tasks = [
        Task(id=str(i), instruction="look", options={"state": state})
        for i, state in enumerate(states)
    ]
    return form_warning([helpers.episode("e", task, [step])], GivenStates(), tasks)


PROSE = ("You are in the middle of a room. You see a bed 1, a shelf 2.",)
FACTS = "unseen bed 1, shelf 2\ncarry nothing\nat middle of the room\nsaid welcome"


@pytest.mark.parametrize(
    ("recording", "states", "warned"),
    [
        (PROSE, [FACTS], True),
        (PROSE, [FACTS, "broken", FACTS], True),
        (PROSE, ["broken"], False),
        (("carry a spoon", "at shelf 2"), [FACTS], False),
        # One of the tasks has the form.
        (PROSE, [FACTS, "You are in a kitchen."], False),
        # States of fewer lines are compared by their words, and those without are not.
        (PROSE, ["you see a bed"], False),
        (PROSE, ["alpha beta gamma delta"], True),
        (PROSE, ["###\n#@#\n###"], False),
        (("###", "#@#"), [FACTS], False),
    ],
)
def test_states_that_begin_otherwise_are_warned_of(recording, states, warned):
    text = warning(recording, *states)
    assert bool(text) == warned
    if warned:
        assert "You are in the middle of a room." in text
