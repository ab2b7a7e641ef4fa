"""The share of steps about which no model can be right, by hand."""

import dataclasses

import pytest

from tests import helpers
from worldmodel.data.records import Task
from worldmodel.fidelity.hidden_state import hidden_state

TASK = Task(id="safe", instruction="open the safe", initial_state=("the dial",))
DIAL = ("the dial",)
OPEN = ("the door",)


def turns(*actions, task=TASK, ends=("open",)):
    """A safe that opens if it was turned left before, which no state shows."""
    steps = []
    for i, action in enumerate(actions):
        opens = action in ends and "left" in actions[:i]
        steps.append(helpers.transition(DIAL, action, OPEN if opens else DIAL))
    return helpers.episode("-".join((task.id, *actions)), task, steps)


EPISODES = [turns("left", "wait", "open"), turns("wait", "open"), turns("open")]


@pytest.mark.parametrize(
    ("history", "contradicting", "repeated"),
    [
        # `open` three times, once with another result; `wait` twice, always the same.
        (0, 1, 5),
        # After `wait`: it opened once and stayed shut once. At the start, and after
        # `left`, nothing was taken twice.
        (1, 1, 2),
        # What was done before is read: nothing is repeated.
        (2, 0, 0),
    ],
)
def test_what_past_actions_decide_is_hidden_where_they_are_not_read(
    history, contradicting, repeated
):
    rate = hidden_state(EPISODES, history=history)
    assert (rate.hits, rate.count) == (contradicting, repeated)


def test_other_tasks_rewards_and_ends_count():
    other = dataclasses.replace(TASK, id="other")
    episodes = [turns("open"), turns("open", task=other)]
    assert hidden_state(episodes, history=0).count == 0  # another task, another safe
    (step,) = turns("open").transitions
    paid = helpers.transition(DIAL, "open", DIAL, reward=1.0)
    ended = dataclasses.replace(step, terminated=True, success=True)
    for result in (paid, ended):
        again = helpers.episode("again", TASK, [result])
        assert hidden_state([turns("open"), again], history=0).hits == 1
    assert hidden_state([turns("open"), turns("open")], history=0).hits == 0
