"""The generator: which seeds are varied, and which variations are taken in."""

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from curriculum import generator
from curriculum.generator import FunctionProposer
from curriculum.pool import TaskPool
from tests import doubles, helpers
from worldmodel.data.seed_tasks import MAX_SEEDS, SeedTask

SEED = doubles.task(0, 2, 3)


def variant(**changes):
    changes.setdefault("initial_state", doubles.start_state(1, 0, 3))
    return dataclasses.replace(SEED, id="new", split="generated", **changes)


def test_seeds_are_the_most_valuable_then_the_untried_then_the_settled():
    tasks = list(doubles.tasks("train")[:4])
    pool = TaskPool(tasks)
    helpers.record(pool, tasks[0].id, [True, True], 0)  # 0
    helpers.record(pool, tasks[1].id, [True, False, False, False], 0)  # 3/16
    helpers.record(pool, tasks[3].id, [True, False], 0)  # 1/4; tasks[2] is untried
    for seed in range(3):
        got = generator.seeds(pool, 4, np.random.default_rng(seed))
        assert [t.id for t in got] == [tasks[i].id for i in (3, 1, 2, 0)]


def test_seeds_are_never_generated_tasks_and_ties_fall_at_random():
    pool = TaskPool(doubles.tasks("train")[:6])
    pool.add_generated(variant())
    first = {
        generator.seeds(pool, 1, np.random.default_rng(seed))[0].id
        for seed in range(20)
    }
    assert 2 <= len(first) <= 6
    assert "new" not in first


def test_a_valuable_task_stands_before_similar_ones_with_their_success():
    near = [
        dataclasses.replace(SEED, id=f"near{i}", instruction=f"take coin {i}")
        for i in range(6)
    ]
    far = [
        dataclasses.replace(SEED, id=f"far{i}", instruction=f"count sheep, {i} a day")
        for i in range(20)
    ]
    other = dataclasses.replace(SEED, id="other", family="another")
    pool = TaskPool([*far, *near, other])
    helpers.record(pool, "near2", [True, False], 0)
    helpers.record(pool, "near4", [True, False, False, False], 0)
    drawn = set()
    for seed in range(20):
        (group,) = generator.seed_groups(pool, 1, np.random.default_rng(seed))
        assert group[0] == SeedTask(near[2], 0.5)
        assert len(group) == MAX_SEEDS
        assert len({s.task.id for s in group}) == MAX_SEEDS
        successes = {s.task.id: s.success for s in group}
        assert successes.pop("near4", 0.25) == 0.25
        assert set(successes.values()) <= {0.5, None}
        drawn |= {s.task.id for s in group}
    # Five are as near, and three more make up the eight nearest.
    assert {t.id for t in near} <= drawn
    assert len(drawn) <= 1 + 8
    assert "other" not in drawn


def test_a_task_that_is_alone_in_its_family_is_its_only_seed():
    other = dataclasses.replace(SEED, id="other", family="another")
    groups = generator.seed_groups(TaskPool([SEED, other]), 2, np.random.default_rng(0))
    assert sorted([s.task.id for s in group] for group in groups) == [
        [SEED.id],
        ["other"],
    ]


SEED_GROUPS = """
import dataclasses, numpy as np
from curriculum import generator
from curriculum.pool import TaskPool
from tests import doubles
tasks = [
    dataclasses.replace(t, family=f"family {i % 3}")
    for i, t in enumerate(doubles.tasks("train")[:30])
]
groups = generator.seed_groups(TaskPool(tasks), 9, np.random.default_rng(0))
print([[s.task.id for s in group] for group in groups])
"""


@pytest.mark.medium
def test_seeds_are_the_same_in_every_process():
    """Families are sets of texts, whose order differs from process to process."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", SEED_GROUPS],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (0, 1, 3)
    }
    assert len(printed) == 1


def test_a_proposer_of_single_tasks_gets_them_alone():
    pool = TaskPool(doubles.tasks("train")[:6])
    asked = []

    def propose(groups):
        asked.extend(groups)
        return [None for _ in groups]

    proposer = FunctionProposer(propose, group_size=1)
    generator.extend(pool, proposer, 3, np.random.default_rng(0))
    assert [len(group) for group in asked] == [1, 1, 1]
    assert [g[0].task.id for g in asked] == [
        t.id for t in generator.seeds(pool, 3, np.random.default_rng(0))
    ]


def test_a_first_task_beyond_the_candidates_has_seeds(monkeypatch):
    monkeypatch.setattr(generator, "CANDIDATES", 2)
    tasks = [dataclasses.replace(SEED, id=f"{i}", instruction=f"{i}") for i in range(6)]
    groups = generator.seed_groups(TaskPool(tasks), 6, np.random.default_rng(0))
    assert len({group[0].task.id for group in groups}) == 6
    assert all(len(group) == MAX_SEEDS for group in groups)


KIND = generator.task_format([SEED, doubles.task(3, 1, 3)])


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (("carry map", "attic north hall", "at attic"), None),
        (("carry map", "attic north hall", "hall has box", "at attic"), None),
        (("carry map", "attic north hall", "at attic", "hall has box"), "form"),
        (("carry map", "at attic"), "form"),
    ],
)
def test_a_variation_opens_and_closes_as_its_family_does(state, fault):
    states = [("carry map", "hall north attic", "at hall"), ("carry x", "b c", "at d")]
    kind = generator.task_format([variant(initial_state=s) for s in states])
    assert generator.proposal_error(variant(initial_state=state), kind, set()) == fault


def test_a_good_variation_has_no_fault():
    assert generator.proposal_error(variant(), KIND, set()) is None


LINES = doubles.start_state(1, 0, 3)


@pytest.mark.parametrize(
    "state",
    [
        (),
        (LINES[0], LINES[0], *LINES[1:]),
        (LINES[1], LINES[0], *LINES[2:]),
        ("room 1", *LINES[1:]),
        LINES[:1],
        LINES[:2],
    ],
    ids=["empty", "a line twice", "order", "another word", "one line", "cut short"],
)
def test_a_state_of_another_form_is_refused(state):
    assert generator.proposal_error(variant(initial_state=state), KIND, set()) == "form"


def test_a_variation_may_have_more_lines_than_its_seed():
    longer = variant(initial_state=(*LINES, "lamp on"))
    assert generator.proposal_error(longer, KIND, set()) is None


def test_no_task_and_no_instruction_are_refused():
    assert generator.proposal_error(None, KIND, set()) == "form"
    assert generator.proposal_error(variant(instruction=""), KIND, set()) == "form"


GRIDS = [
    ("#####", "#@.$#", "#...#", "#...#", "#####"),
    ("#####", "#@..#", "#.$.#", "#...#", "#####"),
]


def verdicts(seeds, made, *, real=False):
    """What becomes of one proposal, where the seed tasks differ from SEED in this."""
    tasks = [dataclasses.replace(SEED, id=f"s{i}", **x) for i, x in enumerate(seeds)]

    def propose(chosen):
        assert len(chosen) == 1
        return [variant(**made)]

    proposer = FunctionProposer(propose, starts_in_environment=real)
    return generator.extend(TaskPool(tasks), proposer, 1, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("seeds", "made", "verdict"),
    [
        # Lines may come twice where they do in a seed, and only there.
        (
            [{"initial_state": s} for s in GRIDS],
            {"initial_state": ("#####", "#.@.#", "#..$#", "#...#", "#####")},
            "accepted",
        ),
        (
            [{"initial_state": (f"at {i}", "wind", "rain")} for i in "ab"],
            {"initial_state": ("at c", "wind", "wind", "rain")},
            "form",
        ),
        # No instruction is missed where a seed has none.
        (
            [{"instruction": "", "initial_state": (f"at {i}",)} for i in "ab"],
            {"instruction": "", "initial_state": ("at c",)},
            "accepted",
        ),
        (
            [{"initial_state": (f"at {i}",)} for i in "ab"],
            {"instruction": "", "initial_state": ("at c",)},
            "form",
        ),
        # One start does not tell which of its heads are form, however often it is told.
        (
            [{"initial_state": ("north door", "at hall")}],
            {"initial_state": ("south door", "west door", "at hall")},
            "accepted",
        ),
        (
            [
                {"initial_state": ("north door", "at hall")},
                {"initial_state": ("north door", "at hall"), "instruction": "go"},
            ],
            {"initial_state": ("south door", "at hall")},
            "accepted",
        ),
        (
            [
                {"initial_state": ("north door", "at hall")},
                {"initial_state": ("north gate", "at hall")},
            ],
            {"initial_state": ("south door", "at hall")},
            "form",
        ),
        # A single start can be copied, and nothing is no start.
        (
            [{"initial_state": ("north door", "at hall")}],
            {"initial_state": ("north door", "at hall")},
            "duplicate",
        ),
        ([{"initial_state": ("north door", "at hall")}], {"initial_state": ()}, "form"),
    ],
    ids=[
        "grid",
        "a line twice",
        "untold",
        "not told",
        "one start",
        "one start twice",
        "two starts",
        "copy",
        "empty",
    ],
)
def test_a_proposal_is_held_to_what_all_seeds_of_its_family_have(seeds, made, verdict):
    assert verdicts(seeds, made) == {verdict: 1}


def test_what_a_real_environment_has_begun_is_of_good_form():
    seeds = [{"initial_state": (f"north {i}", "at hall")} for i in "ab"]
    other = {"instruction": "", "initial_state": ("south a", "south a")}
    assert verdicts(seeds, other) == {"form": 1}
    assert verdicts(seeds, other, real=True) == {"accepted": 1}
    assert verdicts(seeds, {"initial_state": ()}, real=True) == {"form": 1}
    assert verdicts(seeds, seeds[0], real=True) == {"duplicate": 1}


def test_a_copy_is_refused_by_its_text_not_its_name():
    known = {(SEED.instruction, SEED.initial_state)}
    copy = variant(initial_state=SEED.initial_state)
    assert generator.proposal_error(copy, KIND, known) == "duplicate"
    other = dataclasses.replace(copy, instruction="drop the coin")
    assert generator.proposal_error(other, KIND, known) is None


def test_extend_takes_in_the_good_and_counts_the_rest():
    tasks = [doubles.task(0, 1, 3), doubles.task(0, 2, 3), doubles.task(3, 1, 3)]
    pool = TaskPool(tasks)
    answers = {
        tasks[0].id: variant(lineage=(tasks[0].id,)),
        tasks[1].id: None,
        tasks[2].id: variant(),
    }
    queries = []

    @FunctionProposer
    def propose(groups):
        firsts = [group[0].task.id for group in groups]
        queries.extend(firsts)
        return [answers[first] for first in firsts]

    got = generator.extend(pool, propose, 3, np.random.default_rng(0))
    assert sorted(queries) == sorted(answers)
    assert got == {"accepted": 1, "form": 1, "duplicate": 1}
    (made,) = pool.active(generated=True)
    assert made.generated
    assert made.task.id == "new"


def test_extend_asks_for_as_many_as_told():
    pool = TaskPool(doubles.tasks("train")[:8])
    model = doubles.RuleModel()

    @FunctionProposer
    def propose(groups):
        assert len(groups) == 3
        return model.vary(groups, key=jax.random.key(0))

    got = generator.extend(pool, propose, 3, np.random.default_rng(1))
    assert sum(got.values()) == 3
    assert generator.extend(pool, propose, 0, np.random.default_rng(1)) == {}
    for entry in pool.active(generated=True):
        assert entry.task.lineage[-1] in pool.entries
        assert entry.task.initial_state


def test_what_cannot_be_solved_stays_out_with_its_reason():
    pool = TaskPool(doubles.tasks("train")[4:40:9])
    model = doubles.RuleModel()

    @FunctionProposer
    def propose(groups):
        return model.vary(groups, key=jax.random.key(0))

    tried = []

    def feasible(tasks):
        tried.extend(tasks)
        return ["no plan" if i % 2 else None for i in range(len(tasks))]

    got = generator.extend(
        pool, propose, 4, np.random.default_rng(0), feasible=feasible, name="rule"
    )
    assert len(tried) == 4
    assert got == {"accepted": 2, "no plan": 2}
    assert [e.task for e in pool.active(generated=True)] == tried[::2]
    generator.extend(pool, propose, 4, np.random.default_rng(0), name="model")
    assert pool.proposal_counts == {
        "rule": got,
        "model": {"accepted": 2, "duplicate": 2},
    }
    assert pool.acceptance() == {"rule": 0.5, "model": 0.5}


def test_nothing_is_tried_out_that_the_text_refuses():
    pool = TaskPool([SEED])

    def feasible(tasks):
        raise AssertionError(f"{tasks} must not be tried")

    nothing = FunctionProposer(lambda groups: [None for _ in groups])
    rng = np.random.default_rng(0)
    got = generator.extend(pool, nothing, 1, rng, feasible=feasible)
    assert got == {"form": 1}


def test_two_proposals_of_one_text_are_one_task():
    pool = TaskPool([doubles.task(0, 1, 3), doubles.task(0, 2, 3)])

    @FunctionProposer
    def propose(groups):
        return [
            dataclasses.replace(variant(), id=f"new{i}") for i in range(len(groups))
        ]

    got = generator.extend(pool, propose, 2, np.random.default_rng(0))
    assert got == {"accepted": 1, "duplicate": 1}
