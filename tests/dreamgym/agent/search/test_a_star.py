"""A* on small graphs: costs by hand, the known shortest path, and what is left out."""

import heapq
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from dreamgym.agent.search.a_star import AStar, WonPlans, extend_lcs
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from tests import doubles

TASK = doubles.task(3, 6, 6)
POLICY = doubles.Scripted(doubles.expert_rule)
GOAL = "goal"

# Two ways from a to the goal: over d in two steps, over b and c in three.
GRAPH = {
    "a": {"b": 1.0, "d": 1.0},
    "b": {"a": 1.0, "c": 1.0},
    "c": {GOAL: 1.0},
    "d": {GOAL: 1.0},
}


def to(place):
    """The action that leads to a place; its verb is the name of the place."""
    return f"{place} door"


def turns(graph, place):
    """The policy's candidates: a step to each neighbour, by relative probability."""
    out = []
    for name, p in graph[place].items():
        made = doubles.turn(POLICY, TASK, (), TASK.initial_state, to(name))
        out.append(made._replace(logp=(0.0, math.log(p))))
    return out


def search(
    graph,
    *,
    past=(),
    depth=9,
    plans=(),
    weight=1.0,
    limit=99,
    lost=(),
    bad=(),
    doubtful=(),
):
    """Return the search, and the steps that it took in the dream, in order.

    The dream answers with confidence 0.5 where a step leads to a `doubtful` place.
    """
    at = Snapshot(TASK, tuple(past), ("a",))
    won = WonPlans([[to(place) for place in plan] for plan in plans])
    result = AStar(at, turns(graph, "a"), depth=depth, plans=won, weight=weight)
    taken = []
    while len(taken) < limit and (edge := result.pop()) is not None:
        name = edge.turn.action.split()[0]
        taken.append(f"{edge.parent.state[0]}-{name}")
        error = "malformed" if name in bad else None
        ended = name == GOAL or name in lost or error is not None
        step = Step((name,), {}, ended, False, name == GOAL, error)
        if name in doubtful:
            step = step._replace(confidence=0.5)
        node = result.record(step)
        if node is not None:
            result.extend(turns(graph, name))
    return result, taken


def chosen(graph, **settings):
    return search(graph, **settings)[0].choice().action


def test_the_shortest_path_is_found_and_nothing_dearer_is_dreamed():
    result, taken = search(GRAPH)
    assert result.choice().action == to("d")
    # Both actions of a cost 1 + log 2 = 1.69, the goal behind d 1 more: 2.69. Those of
    # b cost 1.69 more, 3.39: they are never dreamed.
    assert taken == ["a-b", "a-d", f"d-{GOAL}"]


def test_a_path_of_which_the_dream_is_sure_may_be_longer():
    # A doubtful answer costs log 2 = 0.69 more. Over d 1.69 + 1 = 2.69, over b and c
    # 1.69 + 1 + 1 = 3.69: one answer in doubt is less than a step.
    graph = GRAPH | {"b": {"c": 1.0}}
    assert chosen(graph, doubtful=["d"]) == to("d")
    result, _ = search(graph, doubtful=["d"])
    assert result._win.cost == pytest.approx(2 + 2 * math.log(2))
    assert chosen(graph, doubtful=["d", GOAL]) == to("d")
    longer = graph | {"d": {"e": 1.0}, "e": {"f": 1.0}, "f": {GOAL: 1.0}}
    # Over d, e and f 4.69, over b and c 3.69; with b and c in doubt 5.08.
    assert chosen(longer) == to("b")
    assert chosen(longer, doubtful=["b", "c"]) == to("d")


def test_the_search_goes_on_past_a_win_that_an_open_action_may_undercut():
    graph = {"a": {"b": 1.0, "d": 1.0}, "b": {"c": 1.0}, "c": {GOAL: 1.0}}
    graph |= {"d": {"win": 1.0}, "win": {}}
    at = Snapshot(TASK, (), ("a",))
    result = AStar(at, turns(graph, "a"), depth=9, plans=WonPlans())
    taken = []
    while (edge := result.pop()) is not None:
        name = edge.turn.action.split()[0]
        taken.append(name)
        won = name in ("win", GOAL)
        confidence = 0.1 if name == "win" else 1.0
        step = Step((name,), {}, won, False, won, confidence=confidence)
        if (node := result.record(step)) is not None:
            assert node.at.state == (name,)
            result.extend(turns(graph, name))
    # Over d 1.69 + 1 + log 10 = 4.99, over b and c 1.69 + 1 + 1 = 3.69.
    assert taken == ["b", "d", "c", "win", GOAL]
    assert [e.turn.action for e in result.path()] == [to("b"), to("c"), to(GOAL)]


def test_the_path_of_a_win_is_complete_and_empty_without_one():
    result, _ = search(GRAPH)
    assert [e.turn.action for e in result.path()] == [to("d"), to(GOAL)]
    assert [e.parent.state for e in result.path()] == [("a",), ("d",)]
    assert search(GRAPH, depth=1)[0].path() == []


@pytest.mark.parametrize(("likely", "first"), [(99.0, "b"), (9.0, "b"), (4.0, "d")])
def test_a_likely_path_may_be_longer(likely, first):
    # With b at 0.99: over d 1 - log 0.01 + 1 = 6.61, over b and c 1 - log 0.99 + 1 +
    # log 2 + 1 = 3.70. At 0.9 4.30 and 3.80, at 0.8 3.61 and 3.92.
    graph = GRAPH | {"a": {"b": likely, "d": 1.0}}
    assert chosen(graph) == to(first)


def test_a_state_is_gone_on_from_once():
    # c is reached over b in two steps, over e and f in three; h leads back to a.
    graph = {
        "a": {"b": 1.0, "e": 1.0},
        "b": {"c": 1.0},
        "e": {"f": 1.0},
        "f": {"c": 1.0},
        "c": {"g": 1.0},
        "g": {"h": 1.0},
        "h": {"a": 1.0, GOAL: 1.0},
    }
    _, taken = search(graph)
    assert taken.count("b-c") == taken.count("f-c") == taken.count("c-g") == 1
    assert taken.count("a-b") == 1


def test_a_state_at_the_depth_does_not_close_it_to_a_shorter_path():
    # e is reached in three steps of 1.11 + 1 + 1, and over d in two of 3.30 + 1: only
    # from the latter one step is left to the goal.
    graph = {"a": {"b": 9.0, "d": 1.0}, "b": {"c": 1.0}, "c": {"e": 1.0}}
    graph |= {"d": {"e": 1.0}, "e": {GOAL: 1.0}}
    result, taken = search(graph, depth=3)
    assert taken == ["a-b", "b-c", "c-e", "a-d", "d-e", f"e-{GOAL}"]
    assert result.choice().action == to("d")
    assert chosen(graph, depth=4) == to("b")


LONG = {
    "a": {"x": 1.0, "b": 1.0},
    "b": {"y": 1.0, "c": 1.0},
    "c": {"z": 1.0, GOAL: 1.0},
    "x": {"x1": 1.0},
    "x1": {"x2": 1.0},
    "x2": {"x3": 1.0},
    "x3": {"x3": 1.0},
    "y": {"y1": 1.0},
    "y1": {"y1": 1.0},
    "z": {"z": 1.0},
}
PLAN = ["b", "c", GOAL]


def test_an_estimate_from_won_episodes_saves_dreamed_steps():
    blind, without = search(LONG)
    guided, taken = search(LONG, plans=[PLAN])
    assert blind.choice().action == guided.choice().action == to("b")
    # Cost and estimate: b 1.69 + 2, c 3.39 + 1, the goal 5.08 + 0. After x, which the
    # plan does not have, its three steps are left: 1.69 + 3, and x1 2.69 + 3. Without
    # the plan all that costs less than 5.08 is dreamed.
    assert taken == ["a-b", "b-c", "a-x", f"c-{GOAL}"]
    assert set(without) >= {"a-x", "x-x1", "x1-x2", "x2-x3", "b-y", "y-y1"}
    assert search(LONG, plans=[PLAN], weight=0.0)[1] == without
    # What was done before counts, too: the plan has one step after c.
    assert search(LONG, plans=[["e", *PLAN], ["f"]], past=[to("e")])[1] == taken


def test_without_a_win_the_policy_keeps_its_own_action_as_long_as_it_goes_on():
    hopeless = {"a": {"b": 1.0, "d": 9.0}, "b": {"b1": 1.0}, "d": {"d1": 1.0}}
    hopeless |= {"b1": {"b1": 1.0}, "d1": {"d1": 1.0}}
    assert chosen(hopeless, depth=2) == to("b")
    assert chosen(hopeless, depth=2, limit=1) == to("b")
    # It ends, or leads back, and the other one does not.
    assert chosen(hopeless, depth=2, lost=["b"]) == to("d")
    assert chosen(hopeless, depth=2, lost=["b1"]) == to("d")
    assert chosen(hopeless | {"b": {"a": 1.0}}, depth=3) == to("b")  # d1 does, too
    assert chosen(hopeless | {"b": {"a": 1.0}}, depth=2) == to("d")
    assert chosen(hopeless, depth=1, bad=["b"]) == to("d")
    assert chosen(hopeless, depth=2, lost=["b", "d"]) == to("b")


def test_no_path_is_longer_than_the_depth():
    assert chosen(GRAPH, depth=2) == to("d")
    result, taken = search(GRAPH, depth=1)
    assert taken == ["a-b", "a-d"]
    assert result.choice().action == to("b")


PLACES = "abcdef"
GRAPHS = st.fixed_dictionaries(
    {
        place: st.dictionaries(
            st.sampled_from([*PLACES, GOAL]),
            st.sampled_from([1.0, 2.0, 7.0]),
            min_size=1,
        )
        for place in PLACES
    }
)


def cheapest(graph):
    """Dijkstra's algorithm: the cost of the cheapest way to the goal."""
    queue, done = [(0.0, "a")], set()
    while queue:
        cost, place = heapq.heappop(queue)
        if place == GOAL:
            return cost
        if place in done:
            continue
        done.add(place)
        total = sum(graph[place].values())
        for name, p in graph[place].items():
            heapq.heappush(queue, (cost + 1.0 - math.log(p / total), name))
    return None


@hypothesis.given(GRAPHS)
@hypothesis.settings(max_examples=40, deadline=None)
def test_the_cheapest_way_is_found_as_by_dijkstra(graph):
    result, taken = search(graph, depth=99)
    assert len(taken) <= sum(map(len, graph.values()))
    cost = cheapest(graph)
    assert (result._win is None) == (cost is None)
    if cost is not None:
        assert result._win.cost == pytest.approx(cost)


WORDS = st.lists(st.sampled_from("xyz"), max_size=6)


@hypothesis.given(WORDS, st.lists(WORDS, min_size=1, max_size=3))
@hypothesis.settings(max_examples=40, deadline=None)
def test_common_subsequences_are_those_of_the_usual_table(done, plans):
    width = max(map(len, plans))
    names = np.array([[*p, *"-" * (width - len(p))] for p in plans])
    names = names.reshape(len(plans), width)
    lengths = np.zeros((len(plans), width + 1), int)
    for word in done:
        lengths = extend_lcs(lengths, names == word)
    for row, plan in zip(lengths, plans, strict=True):
        table = np.zeros((len(done) + 1, len(plan) + 1), int)
        for i, a in enumerate(done):
            for j, b in enumerate(plan):
                best = max(table[i, j + 1], table[i + 1, j])
                table[i + 1, j + 1] = table[i, j] + 1 if a == b else best
        np.testing.assert_array_equal(row[: len(plan) + 1], table[-1])


def steps_left(plans, *done):
    won = WonPlans(plans)
    lengths = won.begin()
    for action in done:
        lengths = won.extend(lengths, action)
    return won.steps_left(lengths)


def test_what_is_left_is_what_the_most_similar_plan_has_more():
    plans = [["go east", "take key", "go west", "open box"], ["eat apple", "go home"]]
    assert steps_left(plans) == 2  # the shorter one
    assert steps_left(plans, "take lamp") == 3  # go, go and open
    assert steps_left(plans, "go north", "take lamp") == 2
    assert steps_left(plans, "go north", "sing", "take lamp", "go on") == 1
    assert steps_left(plans, "eat pie") == 1
    assert steps_left(plans, "sing") == 2  # nothing in common with either
    assert steps_left([], "go east") == 0
    assert steps_left([[]], "go east") == 0
