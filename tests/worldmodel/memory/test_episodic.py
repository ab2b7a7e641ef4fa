"""Episodic memory: which steps it finds, whose it never shows, and how they read."""

import dataclasses
import itertools

import numpy as np
import pytest

from worldmodel.data.records import Episode, Task, Transition
from worldmodel.memory.encoders import Lexical
from worldmodel.memory.episodic import (
    EpisodicMemory,
    RememberedStep,
    remembered_ids,
    remembered_steps,
)
from worldmodel.text.tokenizer import TextTokenizer

AT_DOORS = ("at two doors", "guard 1")


def task(name, house, **fields):
    return Task(id=name, instruction=f"leave {house}", **fields)


def opened(name, house, door, *, won, guard=1, error=None, **fields):
    """Return an episode of one step, which opens a door."""
    step = Transition(
        state=("at two doors", f"guard {guard}"),
        action=f"open {door}",
        next_state=("outside",) if won else ("in the pit",),
        rewards={"task": float(won)},
        terminated=True,
        success=won,
    )
    return Episode(
        id=f"{name}-{door}",
        task=task(name, house, **fields),
        transitions=(step,),
        source="random",
        success=None if error else won,
        error=error,
    )


def actions(memory, query, state=AT_DOORS, k=8):
    (steps,) = memory.search([(query, state)], k)
    return [s.action for s in steps]


def test_the_steps_of_the_same_house_come_last():
    memory = EpisodicMemory(
        [
            opened("a", "aria", "left", won=True),
            opened("b", "bronte", "middle", won=False),
            opened("c", "aria", "right", won=False, guard=7),
        ]
    )
    assert len(memory) == 3
    # The most similar last: the same house and state, the same house, another one.
    assert actions(memory, task("x", "aria")) == [
        "open middle",
        "open right",
        "open left",
    ]
    assert actions(memory, task("x", "aria"), k=1) == ["open left"]
    assert actions(memory, task("x", "bronte"), k=1) == ["open middle"]


def test_a_task_never_meets_itself_nor_what_it_varies():
    memory = EpisodicMemory(
        [
            opened("a", "aria", "left", won=True),
            opened("a", "aria", "right", won=False),
            opened("b", "aria", "middle", won=False),
        ]
    )
    assert actions(memory, task("a", "aria")) == ["open middle"]
    varied = task("a-2", "aria", lineage=("a", "a-1"))
    assert actions(memory, varied) == ["open middle"]
    assert set(actions(memory, task("b", "aria"))) == {"open left", "open right"}
    assert len(actions(memory, task("new", "aria"))) == 3
    # Nor does it meet what varies it: both descend from one task.
    varied_episode = opened("a-2", "aria", "middle", won=False, lineage=("a", "a-1"))
    assert actions(EpisodicMemory([varied_episode]), task("a", "aria")) == []


def test_a_step_that_many_tasks_share_is_found_once_and_from_each_of_them():
    shared = [opened(f"t{i}", "aria", "left", won=True) for i in range(9)]
    memory = EpisodicMemory([*shared, opened("u", "bronte", "right", won=False)])
    assert len(memory) == 3  # two copies of the shared step
    for name in ("t0", "t8", "other"):
        found = actions(memory, task(name, "aria"), k=2)
        assert found == ["open right", "open left"]


def test_of_equally_similar_steps_the_newest_come_last_and_are_kept():
    doors = ("left", "middle", "right")
    episodes = [opened(d, "aria", d, won=False) for d in doors]
    assert actions(EpisodicMemory(episodes), task("x", "aria")) == [
        f"open {d}" for d in doors
    ]
    few = EpisodicMemory(episodes, capacity=2)
    assert actions(few, task("x", "aria")) == ["open middle", "open right"]
    with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
        EpisodicMemory(episodes, capacity=0)


def test_a_search_finds_what_a_full_comparison_finds():
    rng = np.random.default_rng(0)
    houses = ("aria", "bronte", "cobble", "dune")
    episodes = [
        opened(
            f"t{i}",
            houses[rng.integers(4)],
            ("left", "right")[rng.integers(2)],
            won=bool(rng.integers(2)),
            guard=int(rng.integers(30)),
        )
        for i in range(60)
    ]
    memory, encoder = EpisodicMemory(episodes), Lexical()
    queries = [
        (episodes[i].task, episodes[j].transitions[0].state)
        for i, j in rng.integers(60, size=(20, 2))
    ]
    for (query, state), steps in zip(queries, memory.search(queries, 3), strict=True):
        (vector,) = encoder.encode([(state, query.instruction)])
        others = {
            step
            for e in episodes
            if e.task.id != query.id
            for step in remembered_steps(e)
        }
        scores = {
            s: float(vector @ encoder.encode([(s.state, s.instruction)])[0])
            for s in others
        }
        best = sorted(scores.values())[-3:]
        np.testing.assert_allclose([scores[s] for s in steps], best, rtol=1e-5)
        assert len(set(steps)) == 3
    assert memory.search(queries, 3) == [memory.search([q], 3)[0] for q in queries]


def test_nothing_is_remembered_of_no_episodes_and_of_failures():
    assert actions(EpisodicMemory([]), task("x", "aria")) == []
    broken = opened("a", "aria", "left", won=False, error="crashed")
    assert len(EpisodicMemory([broken])) == 0
    two = dataclasses.replace(broken, transitions=broken.transitions * 2)
    (step,) = remembered_steps(two)
    assert step.success is None


TOK = TextTokenizer.train(
    ["leave aria", "leave bronte", "open left", "at two doors", "guard 0123456789"] * 4,
    340,
)


def read(ids):
    """Return ids as text, with the names of control tokens in angle brackets."""
    out = ""
    for name, group in itertools.groupby(ids, TOK.name):
        run = list(group)
        out += f"<{name}>" * len(run) if name else TOK.decode(run)
    return out


def test_a_step_reads_as_its_action_what_differs_and_what_came_of_it():
    here = task("x", "aria")

    def text(**fields):
        step = RememberedStep("leave aria", AT_DOORS, "open left", False, 0.0, None)
        step = step._replace(**fields)
        return read(remembered_ids(TOK, [step], here, AT_DOORS, budget=99))

    assert text() == "<demo>open left"
    assert text(invalid=True) == "<demo>open left<same>"
    assert text(reward=0.5, success=True) == "<demo>open left<reward>0.5<win>"
    assert text(reward=-1.0, success=False) == "<demo>open left<reward>-1<lose>"
    assert text(reward=1e-9) == "<demo>open left"
    other = text(instruction="leave bronte", state=("guard 2", "at two doors"))
    assert other == "<demo>open left<state>guard 2<task>leave bronte"


def test_the_least_similar_steps_are_left_out_whole():
    steps = [
        RememberedStep("leave aria", AT_DOORS, f"open {d}", False, 0.0, True)
        for d in ("left", "right")
    ]
    here = task("x", "aria")
    both = remembered_ids(TOK, steps, here, AT_DOORS, budget=99)
    last = remembered_ids(TOK, steps[1:], here, AT_DOORS, budget=99)
    assert both[-len(last) :] == last
    for budget in range(len(last), len(both)):
        assert remembered_ids(TOK, steps, here, AT_DOORS, budget=budget) == last
    assert remembered_ids(TOK, steps, here, AT_DOORS, budget=len(both)) == both
    assert remembered_ids(TOK, steps, here, AT_DOORS, budget=len(last) - 1) == []
