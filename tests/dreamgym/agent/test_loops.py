"""Actions that led back to the present state are drawn again, and none is forbidden."""

import dataclasses

import jax
import pytest

from dreamgym.agent import rollout as rollouts
from dreamgym.agent.rollout import rollout
from dreamgym.envs.vector import RealVectorEnv
from tests import doubles
from tests.dreamgym.agent.test_planning import InOrder, chosen, planner
from tests.dreamgym.agent.test_planning import situation as planned
from worldmodel.data.records import Transition

A, B, C = ("at a",), ("at b",), ("at c",)


@pytest.mark.parametrize(
    ("past", "states", "state", "expected"),
    [
        ((), (), A, {}),
        (("right", "left"), (A, B), A, {"right": 1}),
        (("right", "left"), (A, B), C, {}),  # another state
        (("right", "left", "right", "left"), (A, B, A, B), A, {"right": 2}),
        (("right", "left", "up", "down"), (A, B, A, C), A, {"right": 1, "up": 1}),
        (("wait", "wait"), (A, A), A, {}),  # it has not left
        (("right", "wait", "left"), (A, B, B), A, {"right": 1}),
        (("right",), (), A, {}),  # the states of a start are not known
    ],
)
def test_what_left_the_state_and_led_back_is_counted(past, states, state, expected):
    assert rollouts._return_counts(past, states, state) == expected


class Pacing(doubles.Scripted):
    """Walks to and fro at its first draw, and `others` are its redraws, in turn."""

    def __init__(self, others, **settings):
        super().__init__(doubles.expert_rule)
        self.config = dataclasses.replace(self.config, **settings)
        self.others, self.draws = others, {}

    def act(self, situations, keys, *, temperature):
        del keys, temperature
        turns = []
        for task, past, state, *_ in situations:
            number = self.draws[past] = self.draws.get(past, 0) + 1
            action = "go right" if len(past) % 2 == 0 else "go left"
            if number > 1 and len(past) % 2 == 0:
                action = self.others[min(number - 2, len(self.others) - 1)]
            turns.append(doubles.turn(self, task, past, state, action))
        return turns


def play(policy):
    """Return the actions in a corridor whose coin lies two cells to the left."""
    (trajectory,) = rollout(
        policy,
        RealVectorEnv([doubles.Corridor()], max_steps=8),
        [doubles.task(3, 1, 6)],
        key=jax.random.key(0),
        temperature=0.5,
    )
    return [t.action for t in trajectory.episode.transitions]


def test_the_first_redraw_that_did_not_lead_back_counts():
    actions = play(Pacing(["go right", "go left", "go right"]))
    assert actions[:3] == ["go right", "go left", "go left"]


def test_without_the_rule_it_walks_to_and_fro():
    for settings in ({"avoid_loops": False}, {"max_redraws": 0}):
        actions = play(Pacing(["go left"], **settings))
        assert actions == ["go right", "go left"] * 4


def test_a_policy_that_is_sure_goes_back_again():
    actions = play(Pacing(["go right"]))
    assert actions == ["go right", "go left"] * 4


def test_a_way_back_is_better_than_what_is_refused():
    task = doubles.task(3, 1, 6)
    start = task.initial_state
    there = doubles.walk(start, "go right").state
    past, states = ("go right", "go left"), (start, there)
    slot = rollouts._Slot(0, task, start, past, states, [], [])
    slot.refused.record(Transition(state=start, action="fly", next_state=start))
    (turn,) = rollouts._act(Pacing(["fly"]), [slot], jax.random.key(0), 0.5, 1.0)
    assert turn.action == "go right"


def test_the_draw_that_was_taken_least_often_counts():
    # Twice to the right and once to the left: the left is drawn last.
    past = ("go right", "go left", "go right", "go left", "go left", "go right")
    task = doubles.task(3, 1, 6)
    start = task.initial_state
    right, left = (doubles.walk(start, f"go {w}").state for w in ("right", "left"))
    states = (start, right, start, right, start, left)
    counts = rollouts._return_counts(past, states, start)
    assert counts == {"go right": 2, "go left": 1}
    policy = Pacing(["go right", "go left"])
    slot = rollouts._Slot(0, task, start, past, states, [], [])
    (turn,) = rollouts._act(policy, [slot], jax.random.key(0), 0.5, 1.0)
    assert turn.action == "go left"


@pytest.mark.parametrize("method", ["best-of-n", "mpc"])
def test_a_planner_leaves_out_its_own_action_if_it_led_back(method):
    policy = InOrder("go right", "go left")
    task = doubles.task(3, 6, 6)  # the coin lies to the right
    there = doubles.walk(task.initial_state, "go right").state
    where = planned(3, 6)._replace(
        task=task,
        state=task.initial_state,
        past=("go right", "go left"),
        past_states=(task.initial_state, there),
        return_counts={"go right": 1},
    )
    assert chosen(planner(policy, method=method, depth=4), where) == ["go left"]
    policy = InOrder("go right", "go left")
    policy.config = dataclasses.replace(policy.config, avoid_loops=False)
    assert chosen(planner(policy, method=method, depth=4), where) == ["go right"]
    # Where there is nothing else it keeps its own.
    policy = InOrder("go right", "go right")
    assert chosen(planner(policy, method=method, depth=4), where) == ["go right"]
    # An action that stayed is not one that led back.
    stayed = where._replace(
        past=("go right",), past_states=(task.initial_state,), return_counts={}
    )
    policy = InOrder("go right", "go left")
    assert chosen(planner(policy, method=method, depth=4), stayed) == ["go right"]


def test_a_redraw_that_is_no_action_is_not_better_than_a_way_back():
    class Cut(Pacing):
        def act(self, situations, keys, *, temperature):
            turns = super().act(situations, keys, temperature=temperature)
            return [
                t if t.action == "go right" else t._replace(action="") for t in turns
            ]

    task = doubles.task(3, 1, 6)
    there = doubles.walk(task.initial_state, "go right").state
    past, states = ("go right", "go left"), (task.initial_state, there)
    slot = rollouts._Slot(0, task, task.initial_state, past, states, [], [])
    (turn,) = rollouts._act(Cut(["fly"]), [slot], jax.random.key(0), 0.5, 1.0)
    assert turn.action == "go right"
