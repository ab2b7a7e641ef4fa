"""Counts by hand, leaks and duplicates that are there or are not, and memory."""

import dataclasses
import itertools
import json
import random
import tracemalloc

import pytest

from tests import helpers
from worldmodel.data import summary
from worldmodel.data.records import Episode, Task, Transition
from worldmodel.data.summary import summarise, table


def step(state, action, then, reward=0.0, **more):
    rewards = {"reward": reward} if reward else {}
    return Transition(
        state=(state,), action=action, next_state=(then,), rewards=rewards, **more
    )


def episode(name, task, *steps, split="train", success=None, **about):
    of = Task(
        id=task,
        instruction=about.pop("instruction", f"do {task}"),
        split=split,
        initial_state=steps[0].state,
        **about,
    )
    return Episode(id=name, task=of, transitions=steps, source="s", success=success)


WON = step("b", "y", "c", 1.0, terminated=True, success=True)
GOOD = [  # two of train, one of dev, nothing wrong
    episode("e1", "t1", step("a", "x", "b"), WON, success=True, family="f"),
    episode("e2", "t2", step("p", "x", "p", truncated=True), success=False),
    episode("e3", "t3", step("q", "x", "r", invalid=True), split="dev", success=False),
]


def test_counts_by_hand():
    s = summarise(GOOD)
    assert (s["episodes"], s["tasks"], s["transitions"]) == (3, 3, 4)
    assert s["by_split"] == {
        "dev": {"episodes": 1, "tasks": 1, "transitions": 1},
        "train": {"episodes": 2, "tasks": 2, "transitions": 3},
    }
    assert s["by_family"] == {
        "": {"episodes": 2, "tasks": 2, "transitions": 2},
        "f": {"episodes": 1, "tasks": 1, "transitions": 2},
    }
    assert list(s["by_source"]) == ["s"]
    assert s["success"] == {"true": 1, "false": 2, "none": 0}
    assert s["ends"] == {"terminated": 1, "truncated": 1, "both": 0, "neither": 1}
    assert s["rewarded"] == {"transitions": 1, "share": 0.25}
    assert s["invalid"] == {"transitions": 1, "share": 0.25, "recorded": 1}
    assert "1 transitions (25.0%); not recorded in 3" in table(s)
    assert s["unchanged"] == {"transitions": 1, "share": 0.25}
    assert s["duplicates"] == {"transitions": 0, "episodes": 0, "ids": 0}
    assert s["contradictions"] == {"asked": 4, "several_answers": 0}
    assert s["leaks"] == {
        "tasks": {"shared": [], "examples": []},
        "starts": {"shared": [], "examples": []},
        "seen_in_train": {"dev": {"transitions": 0, "share": 0.0}},
    }
    assert s["warnings"] == []
    assert json.loads(json.dumps(s)) == s


def test_quantiles_by_hand():
    # Ranks ceil(q * 10): the 1st, 5th, 9th and 10th of 1 1 1 1 1 2 2 2 7 30.
    assert summary._quantiles({1: 5, 2: 3, 30: 1, 7: 1}) == {
        "min": 1,
        "median": 1,
        "p90": 7,
        "max": 30,
    }
    assert summary._quantiles({4: 1}) == dict.fromkeys(
        ("min", "median", "p90", "max"), 4
    )
    # Half of three is a rank of 1.5, so the 2nd; nine tenths are 2.7, so the 3rd.
    assert summary._quantiles({1: 1, 2: 1, 3: 1}) == {
        "min": 1,
        "median": 2,
        "p90": 3,
        "max": 3,
    }
    assert summary._quantiles({}) is None


def test_sizes_are_of_states_and_actions():
    two = Transition(state=("ab", "c"), action="wxyz", next_state=())
    sizes = summarise([episode("e", "t", two)])["sizes"]
    assert {k: v["max"] for k, v in sizes.items()} == {
        "episode_length": 1,
        "state_lines": 2,
        "state_chars": 3,
        "action_chars": 4,
    }


def test_duplicates_by_hand():
    a, b = step("a", "x", "b"), step("b", "y", "c")
    s = summarise(
        [
            episode("e1", "t", a, b),
            episode("e2", "t", a, b),  # all again: 2 transitions, 1 episode
            episode("e3", "t", a),  # 1 transition again
            episode("e4", "u", a, b),  # another task
            episode("e4", "v", b),  # an id again
        ]
    )
    assert s["duplicates"] == {"transitions": 3, "episodes": 1, "ids": 1}
    assert s["contradictions"] == {"asked": 5, "several_answers": 0}
    output = "\n".join(s["warnings"])
    assert "1 episode ids are used again" in output
    assert "1 episodes repeat another step for step" in output


def test_contradictions_by_hand():
    s = summarise(
        [
            episode("e1", "t", step("a", "x", "b")),
            episode("e2", "t", step("a", "x", "c")),  # another next state
            episode("e3", "t", step("a", "x", "c")),
            episode("e4", "u", step("a", "x", "d")),  # another task may differ
            episode("e5", "t", step("a", "z", "d")),
        ]
    )
    assert s["contradictions"] == {"asked": 3, "several_answers": 1}
    assert any("1 of 3 distinct" in w for w in s["warnings"])


def test_leaks_by_hand():
    same = {"instruction": "go"}
    s = summarise(
        [
            episode("e1", "t1", step("b", "y", "c"), split="test", **same),
            episode("e2", "t1", step("a", "x", "b"), step("b", "y", "c"), **same),
            episode("e3", "t2", step("a", "x", "b"), split="dev", **same),
            episode("e4", "t3", step("a", "x", "z"), split="dev", instruction="no"),
            episode("e5", "t4", step("a", "x", "z"), split="test"),
        ]
    )
    # t1 lies in train and test; "go" from a in train and dev.
    assert s["leaks"]["tasks"] == {
        "shared": [{"splits": ["train", "test"], "count": 1}],
        "examples": ["t1"],
    }
    assert s["leaks"]["starts"] == {
        "shared": [{"splits": ["train", "dev"], "count": 1}],
        "examples": ["t2"],
    }
    # dev: (a, x, b) of 2; test: (b, y, c) of 2, though train came later.
    half = {"transitions": 1, "share": 0.5}
    assert s["leaks"]["seen_in_train"] == {"dev": half, "test": half}
    output = "\n".join(s["warnings"])
    assert "leak: the same task id in train and test: 1 (such as t1)" in output
    assert "first state in train and dev: 1 (such as t2)" in output


def test_a_mostly_copied_split_is_warned_of():
    twin = dataclasses.replace(
        GOOD[2].task, id="t9", split="train", instruction="other"
    )
    both = [*GOOD, dataclasses.replace(GOOD[2], id="e9", task=twin)]
    s = summarise(both)
    assert s["leaks"]["tasks"]["shared"] == s["leaks"]["starts"]["shared"] == []
    assert s["leaks"]["seen_in_train"]["dev"] == {"transitions": 1, "share": 1.0}
    assert any("100% of the dev transitions are in train" in w for w in s["warnings"])


def test_the_order_of_the_episodes_does_not_matter():
    episodes = [helpers.lamp_and_door(f"r{i % 3}") for i in range(5)] + GOOD
    forward, back = summarise(episodes), summarise(episodes[::-1])
    assert forward == back


def changed(**changes):
    return [dataclasses.replace(e, **changes) for e in GOOD]


def tasks(**changes):
    return [
        dataclasses.replace(e, task=dataclasses.replace(e.task, **changes))
        for e in GOOD
    ]


def steps(**changes):
    return [
        dataclasses.replace(
            e,
            transitions=tuple(dataclasses.replace(t, **changes) for t in e.transitions),
        )
        for e in GOOD
    ]


@pytest.mark.parametrize(
    ("episodes", "warning"),
    [
        (steps(rewards={}), "no rewarded transition: updates in the dream have"),
        (steps(terminated=False), "no episode terminates"),
        (
            [
                GOOD[0],
                dataclasses.replace(
                    GOOD[0],
                    id="e4",
                    transitions=(dataclasses.replace(WON, terminated=False),),
                ),
                *GOOD[1:],
            ],
            "episodes that were won and do not terminate: 1; a dream",
        ),
        (changed(success=None), "no episode says whether it succeeded"),
        (changed(success=False), "no episode succeeded"),
        (changed(success=True), "no episode failed"),
        (tasks(instruction=" "), "3 of 3 episodes have no instruction"),
        (tasks(split="valid"), "split 'valid' is none of train, dev, test"),
        (tasks(split="dev"), "no episode of split 'train'"),
        (GOOD[:1], "one task alone"),
        (steps(success=None), "ends of which nobody says whether they were won: 1"),
    ],
)
def test_what_would_hurt_is_warned_of(episodes, warning):
    assert any(w.startswith(warning) for w in summarise(episodes)["warnings"])
    assert not any(w.startswith(warning) for w in summarise(GOOD)["warnings"])


def test_the_table_tells_what_the_summary_holds():
    output = table(summarise([*GOOD, dataclasses.replace(GOOD[0], id="again")]))
    for row in (
        r"all 4 3 6",
        "split train 3 2 5",
        "family (none) 2 2 2",
        "source s 4 3 6",
        "episode length 1 1 2 2",
        "success 2 yes, 2 no, 0 not told",
        "ends 2 terminated, 1 truncated, 0 both, 1 neither",
        "rewarded 2 transitions (33.3%)",
        "dev in train 0 transitions (0.0%)",
        "warning: 1 episodes repeat another step for step",
    ):
        assert row in "\n".join(" ".join(line.split()) for line in output.splitlines())


def test_a_table_of_many_families_is_cut():
    many = [
        episode(f"e{i}", "t", step("a", "x", "b"), family=f"f{i}") for i in range(25)
    ]
    output = table(summarise(many))
    assert output.count("family f") == 10
    assert "... and 15 more: family" in output


def test_nothing_at_all_is_no_crash():
    s = summarise([])
    assert (s["episodes"], s["rewarded"]["share"]) == (0, 0.0)
    assert "episodes" in table(s)


def many(count):
    """Episodes of ten steps, a tenth of them repeated."""
    rng = random.Random(0)
    for i in range(count):
        n = i if i % 10 else rng.randrange(max(i, 1))
        states = [f"task {n} place {k} of a long enough text" for k in range(11)]
        run = (step(a, "go on", b) for a, b in itertools.pairwise(states))
        yield episode(f"e{i}", f"t{n}", *run)


def peak_of(work):
    """(result, bytes at the highest)."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.medium
def test_a_long_stream_takes_little_memory():
    s, peak = peak_of(lambda: summarise(many(750)))
    _, held = peak_of(lambda: list(many(750)))
    assert s["transitions"] == 7500
    assert s["duplicates"]["transitions"] == 10 * s["duplicates"]["episodes"] > 0
    assert peak < 200 * s["transitions"], peak / s["transitions"]
    assert held > 3 * peak, held / peak  # what it would take to keep the episodes
