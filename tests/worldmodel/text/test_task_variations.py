"""New tasks from tried ones: what a model reads and writes, and which are similar."""

import dataclasses

import numpy as np
import pytest

from tests.worldmodel.text.test_prompts import named
from worldmodel.data.records import Task
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.text import task_variations
from worldmodel.text.task_variations import (
    nearest_tasks,
    parse_variation,
    variation_ids,
    variation_reply_ids,
)
from worldmodel.text.tokenizer import MAX_LINES


def _task(instruction="make it bright", state=("the lamp is off", "the door is shut")):
    return Task(id="t", instruction=instruction, initial_state=state)


def test_variation_by_hand(tok):
    assert named(tok, variation_ids(tok, [SeedTask(_task())])) == [
        "<vary>",
        "make it bright",
        "<state>",
        "<line0>",
        "the lamp is off",
        "<line1>",
        "the door is shut",
        "<task>",
    ]


@pytest.mark.parametrize("size", [1, 2, MAX_LINES, MAX_LINES + 2])
def test_a_written_variation_is_read_back(tok, size):
    task = _task(state=tuple(f"line {i}" for i in range(size)))
    got = parse_variation(tok, variation_reply_ids(tok, task))
    assert got == (task.instruction, task.initial_state)


def test_a_varied_state_holds_one_line_a_line(tok):
    # A newline inside a line would give a state that no edit script can name.
    ids = variation_reply_ids(tok, _task(state=("one\ntwo", "three")))
    got = parse_variation(tok, ids)
    assert got in (None, ("make it bright", ("one", "two", "three")))


def test_malformed_variations_are_none(tok):
    c, text = tok.control, tok.encode("x")
    good = [*text, c("state"), c("line0"), *text, c("end")]
    assert parse_variation(tok, good) == ("x", ("x",))
    for bad in (
        [],
        good[:-1],  # no end
        good[len(text) :],  # no instruction
        [*text, c("state"), c("line1"), *text, c("end")],  # lines not from 0
        [*text, c("line0"), *text, c("end")],  # no state
        [*text, c("state"), c("line0"), c("end")],  # an empty line
        [*good, c("line1"), *text],  # text after the end
    ):
        assert parse_variation(tok, bad) is None


def test_seeds_stand_one_after_the_other_with_their_outcomes(tok):
    seeds = [
        SeedTask(_task("a", ("x",)), success)
        for success in (None, 1.0, 2 / 3, 0.5, 1 / 3, 0.0)
    ]
    parts = named(tok, variation_ids(tok, seeds))
    marks = [parts[i + 1] for i, name in enumerate(parts) if name == "<vary>"]
    assert marks == ["a", "<win>", "<win>", "<go>", "<lose>", "<lose>"]
    assert parts[-1] == "<task>"
    assert parts.count("<task>") == 1


def test_further_seeds_keep_to_the_budget(tok):
    seeds = [SeedTask(_task(f"make {i}")) for i in range(4)]
    lengths = [len(variation_ids(tok, seeds[:count])) for count in range(1, 5)]
    for count in (1, 2, 3):
        further = lengths[count] - lengths[0]
        for budget, number in ((further, count + 1), (further - 1, count)):
            assert variation_ids(tok, seeds, budget) == variation_ids(
                tok, seeds[:number]
            )


def test_the_nearest_tasks_read_otherwise_and_come_in_order(monkeypatch):
    monkeypatch.setattr(task_variations, "BLOCK", 2)
    texts = ["open the red door", "open the red door", "open the old door", "old songs"]
    tasks = [
        dataclasses.replace(_task(text, ("a room",)), id=str(i))
        for i, text in enumerate(texts)
    ]
    assert nearest_tasks(tasks, 2) == [[2, 3], [2, 3], [0, 1], [2, 0]]
    assert nearest_tasks(tasks, 1) == [[2], [2], [0], [2]]
    assert nearest_tasks([]) == []
    assert nearest_tasks(tasks[:2]) == [[], []]


def test_nearest_tasks_are_those_of_the_largest_cosine():
    rng = np.random.default_rng(0)
    words = "key door lamp box room hall coin map".split()
    tasks = [
        Task(
            id=str(i),
            instruction=" ".join(rng.choice(words, 4)),
            initial_state=(f"at {rng.choice(words)} {i}",),
        )
        for i in range(30)
    ]
    vectors = task_variations.task_vectors(tasks)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-6)
    cosines = vectors @ vectors.T
    for i, near in enumerate(nearest_tasks(tasks, 5)):
        others = np.delete(cosines[i], i)
        np.testing.assert_allclose(cosines[i, near], np.sort(others)[::-1][:5])
