"""The tree of a search by hand: priors, scores, returns and what is left out."""

import math

import pytest

from dreamgym.agent.search.tree_search import (
    EXPLORATION,
    Tree,
    candidate_priors,
    reward_of,
    sibling_pairs,
)
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from tests import doubles

TASK = doubles.task(3, 6, 6)
HERE = Snapshot(TASK, (), TASK.initial_state)
POLICY = doubles.Scripted(doubles.expert_rule)


def turn(action, logp=0.0):
    result = doubles.turn(POLICY, TASK, (), TASK.initial_state, action)
    return result._replace(logp=(0.0, logp))


def tree(*turns, discount=0.5, backup_rate=0.0):
    return Tree(HERE, turns, discount, backup_rate)


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


def test_priors_of_what_the_policy_did_not_draw_are_those_of_half_a_draw_of_eight():
    given = turn("dance")._replace(given=True, logp=())
    drawn = turn("go left", math.log(0.2)), turn("go right", math.log(0.6))
    # 0.25, 0.75 and 1/16, over their sum 17/16.
    assert candidate_priors([*drawn, given]) == pytest.approx(
        [0.25 * 16 / 17, 0.75 * 16 / 17, 1 / 17]
    )
    assert candidate_priors([given, given]) == pytest.approx([0.5, 0.5])


def test_a_score_by_hand():
    search = tree(turn("go left", math.log(0.5)), turn("go right", math.log(0.5)))
    left = visit(search, 0, 1.0, value=4.0)
    assert left.value == 1.0 + 0.5 * 4.0
    right = visit(search, 1, 1.0)
    visit(search, 1, 0.0)
    assert (right.visits, right.value) == (2, 0.5)
    # Values are scaled to [0.5, 3], the lowest and the highest value so far.
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
    assert (first.value, second.value) == (1.0 + 0.5 * 8.0, 8.0)


@pytest.mark.parametrize(
    ("rate", "values"),
    [
        (0.0, [1.0, 0.5, 2 / 3]),  # the mean
        (0.25, [1.0, 0.75, 0.75 * 0.75 + 0.25]),  # the first return is no step from 0
        (1.0, [1.0, 0.0, 1.0]),  # the last one
    ],
)
def test_values_are_backed_up_with_a_rate(rate, values):
    search = tree(turn("go left"), turn("go right"), backup_rate=rate)
    got = [visit(search, 0, reward).value for reward in (1.0, 0.0, 1.0)]
    assert got == pytest.approx(values)


def test_a_rate_backs_up_discounted_rewards_along_the_path():
    search = tree(turn("go left"), backup_rate=0.5)
    first = search.root.edges[0]
    first.arrive(step(1.0))
    first.node.extend([turn("take coin")])
    second = first.node.edges[0]
    second.arrive(step(8.0, ended=True))
    search.record([first])
    assert first.value == 1.0
    search.record([first, second])  # 1 + 0.5 * 8 = 5
    assert (first.value, second.value) == (0.5 * 1.0 + 0.5 * 5.0, 8.0)


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


def with_values():
    """A tree: three actions worth 3 (twice), 1 (twice) and 0 (once), and below the
    first one two worth 4 and 2, each visited once."""
    search = tree(turn("go left"), turn("go right"), turn("take coin"), discount=1.0)
    left, right, coin = search.root.edges
    left.arrive(step(0.0))
    left.node.extend([turn("go left"), turn("take coin")])
    for edge, reward in zip(left.node.edges, (4.0, 2.0), strict=True):
        edge.arrive(step(reward, ended=True))
        search.record([left, edge])
    for edge, reward, visits in ((right, 1.0, 2), (coin, 0.0, 1)):
        edge.arrive(step(reward, ended=True))
        for _ in range(visits):
            search.record([edge])
    return search


def pairs(search, **settings):
    return {
        (len(p.path), p.better.turn.action, p.worse.turn.action)
        for p in sibling_pairs(search, **settings)
    }


@pytest.mark.parametrize(
    ("margin", "min_visits", "expected"),
    [
        (2.0, 2, {(0, "go left", "go right")}),
        (2.5, 2, set()),
        (
            1.0,
            1,
            {
                (0, "go left", "go right"),
                (0, "go left", "take coin"),
                (1, "go left", "take coin"),
            },
        ),
        (3.0, 1, {(0, "go left", "take coin")}),
    ],
)
def test_siblings_whose_values_differ_by_a_margin_are_pairs(
    margin, min_visits, expected
):
    assert pairs(with_values(), margin=margin, min_visits=min_visits) == expected


def test_what_could_not_be_answered_is_in_no_pair():
    search = with_values()
    search.root.edges[0].broken = True
    # Neither itself, nor does it hide the others: those of value 1 and 0 are compared.
    assert (0, "go right", "take coin") in pairs(search, margin=1.0, min_visits=1)
    assert not any(
        p.better is search.root.edges[0]
        for p in sibling_pairs(search, margin=1.0, min_visits=1)
    )
