"""The pool: statistics, retirement, revival, and its form as JSON."""

import dataclasses
import json

import pytest

from curriculum.pool import TaskPool
from tests import doubles


def some(count=3):
    return list(doubles.tasks("train")[:count])


def test_record_keeps_counts_value_and_age():
    tasks = some()
    pool = TaskPool(tasks)
    assert pool.record(tasks[1].id, [True, False, False, False], 7) == 3 / 16
    pool.record(tasks[1].id, [True, True], 8)
    entry = pool.entries[tasks[1].id]
    assert (entry.groups, entry.rollouts, entry.successes) == (2, 6, 3)
    assert (entry.value, entry.last_update) == (0.0, 8)
    untouched = pool.entries[tasks[0].id]
    assert (untouched.groups, untouched.value, untouched.last_update) == (0, None, -1)


@pytest.mark.parametrize("same", [[True, True], [False, False]])
def test_groups_that_agree_retire_a_task_after_patience_in_a_row(same):
    tasks = some()
    pool = TaskPool(tasks, patience=2)
    name = tasks[0].id
    pool.record(name, same, 0)
    assert not pool.entries[name].retired
    pool.record(name, [True, False], 1)  # the row is broken: count from the start
    pool.record(name, same, 2)
    assert not pool.entries[name].retired
    pool.record(name, same, 3)
    assert pool.entries[name].retired
    assert [e.task.id for e in pool.active()] == [t.id for t in tasks[1:]]


def test_a_group_without_a_scored_member_changes_only_the_age():
    tasks = some()
    pool = TaskPool(tasks, patience=1)
    pool.record(tasks[0].id, [True, False], 0)
    assert pool.record(tasks[0].id, [], 5) == 0.0
    entry = pool.entries[tasks[0].id]
    assert (entry.value, entry.groups, entry.last_update) == (0.25, 1, 5)
    assert not entry.retired


def test_when_every_seed_is_retired_all_seeds_are_looked_at_again():
    tasks = some(2)
    pool = TaskPool(tasks, patience=1)
    made = dataclasses.replace(tasks[0], id="made")
    pool.add_generated(made)
    pool.record("made", [False, False], 0)
    pool.record(tasks[0].id, [False, False], 0)
    assert pool.entries[tasks[0].id].retired
    pool.record(tasks[1].id, [True, True], 0)
    seeds = pool.active(generated=False)
    assert [e.task.id for e in seeds] == [t.id for t in tasks]
    assert all(e.value is None and e.settled == 0 for e in seeds)
    assert pool.entries["made"].retired  # generated ones do not come back


def test_active_tells_seeds_from_generated():
    tasks = some(2)
    pool = TaskPool(tasks)
    made = dataclasses.replace(tasks[0], id="made")
    pool.add_generated(made)
    assert [e.task.id for e in pool.active(generated=True)] == ["made"]
    assert [e.task.id for e in pool.active(generated=False)] == [t.id for t in tasks]
    assert [e.task.id for e in pool.active()] == [*(t.id for t in tasks), "made"]


def test_a_pool_goes_through_json_whole():
    tasks = some()
    pool = TaskPool(tasks, patience=1)
    made = dataclasses.replace(tasks[0], id="made", lineage=(tasks[0].id, "x"))
    pool.add_generated(made)
    pool.record(tasks[0].id, [True, False, False], 3)
    pool.record("made", [False, False], 4)
    other = TaskPool(some(1))
    other.load(json.loads(json.dumps(pool.state())))
    assert other.entries == pool.entries
    assert list(other.entries) == list(pool.entries)  # the order decides the draws
    assert other.entries["made"].task == made


def test_bad_pools_are_refused():
    tasks = some()
    with pytest.raises(ValueError, match="at least one"):
        TaskPool([])
    with pytest.raises(ValueError, match="in the pool already"):
        TaskPool([tasks[0], tasks[0]])
    with pytest.raises(ValueError, match="patience must be >= 1, got 0"):
        TaskPool(tasks, patience=0)
    with pytest.raises(ValueError, match="in the pool already"):
        TaskPool(tasks).add_generated(tasks[2])
