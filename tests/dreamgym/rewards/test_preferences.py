"""Pairs: from episodes, from a file, and held out by task."""

import dataclasses
import json

import pytest

from dreamgym.rewards.preferences import (
    SCHEMA,
    Preference,
    read_preferences,
    split,
    won_over_lost,
    write_preferences,
)
from tests import doubles
from worldmodel.data.json_reading import RecordError

STEP = {"state": ["a"], "action": "x", "next_state": ["b"], "reward": 0}
TASKS = doubles.tasks("train")[:6]


def attempts(task, won=2, lost=3):
    steps = [
        [*["go right", "go left"] * i, *doubles.plan(task.initial_state)]
        for i in range(won)
    ]
    steps += [["go right"] * (i + 1) for i in range(lost)]
    return [
        doubles.episode(task, s, name=f"{task.id}-{i}") for i, s in enumerate(steps)
    ]


def test_won_attempts_are_better_than_lost_ones_at_the_same_task():
    a, b, c = TASKS[:3]
    unscored = dataclasses.replace(attempts(a)[2], success=None, id="x")
    episodes = [*attempts(a), *attempts(b, lost=0), *attempts(c, won=0), unscored]
    pairs = won_over_lost(episodes, max_pairs=100, seed=0)
    assert len(pairs) == 6  # two won, three lost, of one task
    assert {p.task.id for p in pairs} == {a.id}
    assert all(p.better[-1].success and not p.worse[-1].success for p in pairs)
    assert len({(len(p.better), len(p.worse)) for p in pairs}) == 6


def test_pairs_are_drawn_alike_whatever_stands_beside_them():
    episodes = [e for t in TASKS for e in attempts(t)]
    pairs = won_over_lost(episodes, max_pairs=2, seed=0)
    assert len(pairs) == 12
    alone = won_over_lost(attempts(TASKS[3]), max_pairs=2, seed=0)
    assert alone == [p for p in pairs if p.task.id == TASKS[3].id]
    assert won_over_lost(episodes, max_pairs=2, seed=1) != pairs


def test_a_task_lies_on_one_side():
    pairs = won_over_lost([e for t in TASKS for e in attempts(t)], max_pairs=4, seed=0)
    fit, held = split(pairs, held_out_share=0.34, seed=0)
    assert len({p.task.id for p in held}) == 2  # a third of six
    assert not {p.task.id for p in fit} & {p.task.id for p in held}
    assert len(fit) + len(held) == len(pairs)
    assert split(pairs[::-1], held_out_share=0.34, seed=0)[1] == held[::-1]


def test_a_file_gives_back_what_was_written(tmp_path):
    pairs = won_over_lost(attempts(TASKS[0]), max_pairs=3, seed=0)
    path = tmp_path / "p.jsonl"
    write_preferences(path, pairs)
    assert read_preferences(path) == pairs


def row(**changes):
    pair = won_over_lost(attempts(TASKS[0]), max_pairs=1, seed=0)[0]
    out = {"schema": SCHEMA} | dataclasses.asdict(pair) | changes
    return {k: v for k, v in out.items() if v is not None}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"schema": "other/1"}, "schema.*other/1"),
        ({"worse": None}, "'worse'"),
        ({"worse": []}, r"worse.*at least one transition"),
        (
            {"better": [{"state": ["a"], "next_state": ["b"], "reward": 0}]},
            r"better\[0\].*'action'",
        ),
        ({"better": [STEP, STEP | {"state": ["c"]}]}, r"better\[1\]\.state"),
        ({"task": {"id": "a"}}, r"task.*instruction"),
        ({"task": 3}, "task.*a JSON object"),
    ],
)
def test_errors_name_file_and_line(tmp_path, bad, message):
    path = tmp_path / "p.jsonl"
    path.write_text(f"{json.dumps(row())}\n\n{json.dumps(row(**bad))}\n")
    with pytest.raises(RecordError, match=rf"p\.jsonl:3:.*{message}"):
        read_preferences(path)


def test_an_empty_or_missing_file_is_told(tmp_path):
    path = tmp_path / "p.jsonl"
    with pytest.raises(RecordError, match=r"p\.jsonl.*no such file"):
        read_preferences(path)
    path.write_text("")
    with pytest.raises(RecordError, match=r"p\.jsonl.*at least one pair"):
        read_preferences(path)


def test_one_transition_may_be_an_attempt(tmp_path):
    e = attempts(TASKS[0])[0]
    pair = Preference(task=e.task, better=e.transitions[-1:], worse=e.transitions[:1])
    write_preferences(tmp_path / "p.jsonl", [pair])
    assert read_preferences(tmp_path / "p.jsonl") == [pair]
