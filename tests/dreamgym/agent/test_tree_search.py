"""The tree of a search by hand: priors, scores, returns and what is left out."""

import math

import pytest

from dreamgym.agent.tree_search import EXPLORATION, Tree, reward_of
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from tests import doubles

TASK = doubles.task(3, 6, 6)
HERE = Snapshot(TASK, (), TASK.initial_state)
POLICY = doubles.Scripted(doubles.expert_rule)


def turn(action, logp=0.0):
    result = doubles.turn(POLICY, TASK, (), TASK.initial_state, action)
    return result._replace(logp=(0.0, logp))


def tree(*turns, discount=0.5):
    return Tree(HERE, turns, discount)


def step(reward, *, ended=False, error=None):
    return Step(TASK.initial_state, {"x": reward}, ended, False, False, error)


def visit(search, index, reward, *, value=0.0, error=None):
    """Take an edge of the root once; what follows it is worth a value."""
    edge = search.root.edges[index]
    edge.arrive(step(reward, error=error))
    edge.node.value = value
    search.record([edge])
    return edge


def test_priors_are_the_probabilities_under_the_policy():
    edges = tree(turn("go left", math.log(0.2)), turn("go right", math.log(0.6)))
    assert [e.prior for e in edges.root.edges] == pytest.approx([0.25, 0.75])


def test_a_score_by_hand():
    search = tree(turn("go left", math.log(0.5)), turn("go right", math.log(0.5)))
    left = visit(search, 0, 1.0, value=4.0)
    assert left.mean == 1.0 + 0.5 * 4.0
    right = visit(search, 1, 1.0)
    visit(search, 1, 0.0)
    assert (right.visits, right.mean) == (2, 0.5)
    # Values are scaled to [0.5, 3], the lowest and the highest mean so far.
    explored = EXPLORATION * 0.5 * math.sqrt(3 + 1)
    assert search._score(search.root, left) == pytest.approx(1.0 + explored / 2)
    assert search._score(search.root, right) == pytest.approx(0.0 + explored / 3)


def test_a_return_is_discounted_along_its_path():
    search = tree(turn("go left"), turn("go right"))
    first = search.root.edges[0]
    first.arrive(step(1.0))
    first.node.extend([turn("take coin")])
    second = first.node.edges[0]
    assert search.select(2) == [first, second]
    assert search.select(1) == [first]
    assert second.parent.past == ("go left",)
    second.arrive(step(8.0, ended=True))
    second.node.value = 100.0  # the episode has ended: nothing follows
    search.record([first, second])
    assert (first.mean, second.mean) == (1.0 + 0.5 * 8.0, 8.0)


def test_the_most_visited_is_chosen_and_then_the_better():
    search = tree(turn("go left"), turn("go right"))
    assert search.choice().action == "go left"  # nothing is known: the first
    visit(search, 0, 0.0)
    visit(search, 1, 1.0)
    assert search.choice().action == "go right"
    visit(search, 0, 0.0)
    assert search.choice().action == "go left"


def test_what_the_dream_cannot_answer_is_left_out_however_rewards_are():
    assert math.isnan(reward_of(step(0.0, error="malformed")))
    search = tree(turn("go left"), turn("go right"))
    broken = visit(search, 0, 0.0, error="malformed")
    assert (broken.broken, broken.visits) == (True, 0)
    visit(search, 1, -5.0)
    assert search.select(1) == [search.root.edges[1]]
    assert search.choice().action == "go right"
    search = tree(turn("go left"), turn("go right"))
    for index in (1, 0):
        visit(search, index, 0.0, error="malformed")
    assert search.select(1) == []
    assert search.choice().action == "go left"  # nothing could be answered
