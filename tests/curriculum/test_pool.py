"""The pool: statistics, retirement, revival, and its form as JSON."""

import dataclasses
import json

import numpy as np
import pytest

from curriculum.config import ValueConfig
from curriculum.pool import TaskPool
from curriculum.value import posterior
from tests import doubles, helpers


def some(count=3):
    return list(doubles.tasks("train")[:count])


def test_record_keeps_counts_value_and_age():
    tasks = some()
    pool = TaskPool(tasks)
    assert helpers.record(pool, tasks[1].id, [True, False, False, False], 7) == 3 / 16
    helpers.record(pool, tasks[1].id, [True, True], 8)
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
    helpers.record(pool, name, same, 0)
    assert not pool.entries[name].retired
    helpers.record(
        pool, name, [True, False], 1
    )  # the row is broken: count from the start
    helpers.record(pool, name, same, 2)
    assert not pool.entries[name].retired
    helpers.record(pool, name, same, 3)
    assert pool.entries[name].retired
    assert [e.task.id for e in pool.active()] == [t.id for t in tasks[1:]]


def test_a_group_without_a_scored_member_changes_only_the_age():
    tasks = some()
    pool = TaskPool(tasks, patience=2)
    helpers.record(pool, tasks[0].id, [True, False], 0)
    assert helpers.record(pool, tasks[0].id, [], 5) == 0.0
    entry = pool.entries[tasks[0].id]
    assert (entry.value, entry.groups, entry.last_update) == (0.25, 1, 5)
    assert not entry.retired


def test_a_task_that_is_never_scored_is_retired_and_scored_groups_begin_anew():
    """It has the largest value: else it would be drawn for ever."""
    tasks = some()
    pool = TaskPool(tasks, patience=2)
    name = tasks[0].id
    for update, group in enumerate(([], [True, False], [])):
        helpers.record(pool, name, group, update)
    assert not pool.entries[name].retired
    helpers.record(pool, name, [], 3)
    assert pool.entries[name].retired
    again = TaskPool(tasks[:1])
    again.load(pool.state())
    assert again.entries[name].unscored_groups == 2


def test_where_episodes_may_be_longer_what_was_only_lost_is_tried_again():
    lost, won, mixed = some(4)[:3]
    pool = TaskPool(some(4), patience=1)
    for task, group in ((lost, [False]), (won, [True]), (mixed, [True, False])):
        helpers.record(pool, task.id, group * 2, 0)
    assert [e.retired for e in pool.entries.values()] == [True, True, False, False]
    pool.readmit_unsolved()
    assert [e.retired for e in pool.entries.values()] == [False, True, False, False]
    assert pool.entries[lost.id].value is None
    assert pool.entries[mixed.id].value == 0.25


def test_when_every_seed_is_retired_all_seeds_are_looked_at_again():
    tasks = some(2)
    pool = TaskPool(tasks, patience=1)
    made = dataclasses.replace(tasks[0], id="made")
    pool.add_generated(made)
    helpers.record(pool, "made", [False, False], 0)
    helpers.record(pool, tasks[0].id, [False, False], 0)
    assert pool.entries[tasks[0].id].retired
    helpers.record(pool, tasks[1].id, [True, True], 0)
    seeds = pool.active(generated=False)
    assert [e.task.id for e in seeds] == [t.id for t in tasks]
    assert all(e.value is None and e.uninformative_groups == 0 for e in seeds)
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
    helpers.record(pool, tasks[0].id, [True, False, False], 3)
    helpers.record(pool, "made", [False, False], 4)
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


# --- ageing, the posterior, clusters -----------------------------------------


def values(pool, **settings):
    return pool.values(list(pool.entries.values()), **settings)


def test_an_old_group_value_drifts_back_to_an_untried_tasks():
    tasks = some(2)
    pool = TaskPool(tasks, values=ValueConfig(decay=0.5))
    helpers.record(pool, tasks[0].id, [False, False], 0)
    # The next update is 1: one policy change since, so 0 counts half and 1/4 half.
    np.testing.assert_allclose(values(pool), [0.125, 0.25], rtol=1e-12)
    helpers.record(pool, tasks[1].id, [True, False], 2)
    np.testing.assert_allclose(values(pool), [0.25 * 7 / 8, 0.25], rtol=1e-12)


def test_posterior_values_by_hand_and_their_decay():
    tasks = some(2)
    config = ValueConfig(estimator="posterior", optimism=0.0, decay=0.5)
    pool = TaskPool(tasks, values=config)
    helpers.record(pool, tasks[0].id, [True, False, False, False], 0)
    helpers.record(pool, tasks[0].id, [True, True], 1)
    # Won 1/2 + 2, lost 3/2; all seen before the update that comes next: halved again.
    want = [posterior(1.25, 0.75, prior=1).mean, posterior(0, 0, prior=1).mean]
    np.testing.assert_allclose(values(pool), want, rtol=1e-12)
    np.testing.assert_allclose(
        pool.success(list(pool.entries.values())), [2.25 / 4, 0.5], rtol=1e-12
    )
    helpers.record(pool, tasks[1].id, [], 60)  # time alone brings it back to the prior
    np.testing.assert_allclose(values(pool), [1 / 6, 1 / 6], rtol=1e-6)


def test_a_group_without_a_scored_member_ages_and_does_not_refresh():
    tasks = some(1)
    config = ValueConfig(estimator="posterior", decay=0.5)
    seen, unseen = TaskPool(tasks, values=config), TaskPool(tasks, values=config)
    for pool in (seen, unseen):
        helpers.record(pool, tasks[0].id, [True, True], 0)
    helpers.record(seen, tasks[0].id, [], 3)
    unseen.next_update = 4
    np.testing.assert_allclose(values(seen), values(unseen), rtol=1e-12)


def test_single_rollouts_get_the_value_of_their_family():
    a, b, c = some(3)
    a, b = (dataclasses.replace(t, family="even") for t in (a, b))
    c = dataclasses.replace(c, family="alone")
    pool = TaskPool([a, b, c], values=ValueConfig(pooling="family"))
    pool.record_batch([(a.id, [True]), (b.id, [False]), (c.id, [True])], 0)
    got = [e.value for e in pool.entries.values()]
    assert got == [0.25, 0.25, None]  # one outcome says nothing of a variance
    assert not any(e.retired or e.uninformative_groups for e in pool.entries.values())


def test_single_rollouts_alone_are_never_settled():
    tasks = some(1)
    pool = TaskPool(tasks, patience=1)
    for update in range(5):
        helpers.record(pool, tasks[0].id, [False], update)
    (entry,) = pool.entries.values()
    assert (entry.value, entry.uninformative_groups, entry.retired) == (None, 0, False)
    assert (entry.rollouts, entry.successes) == (5, 0)


def test_pooled_values_do_not_save_a_task_that_nobody_wins():
    hopeless, mixed = (dataclasses.replace(t, family="f") for t in some(2))
    pool = TaskPool([hopeless, mixed], values=ValueConfig(pooling="family"))
    for update in range(2):
        pool.record_batch(
            [(hopeless.id, [False] * 4), (mixed.id, [True, True, False, False])], update
        )
    first, second = pool.entries.values()
    assert first.value == second.value > 0
    assert first.retired
    assert not second.retired


def test_a_member_that_did_not_play_shares_the_value_and_not_the_verdict():
    tasks = [dataclasses.replace(t, family="f") for t in some(3)]
    pool = TaskPool(tasks, patience=1, values=ValueConfig(pooling="family"))
    pool.record_batch([(t.id, [False]) for t in tasks[:2]], 0)
    first, second, third = pool.entries.values()
    assert [e.value for e in (first, second, third)] == [0.0, 0.0, 0.0]
    assert first.retired
    assert second.retired
    assert not third.retired


def test_the_order_of_a_batch_does_not_matter():
    tasks = [dataclasses.replace(t, family="ab"[i % 2]) for i, t in enumerate(some(5))]
    config = ValueConfig(pooling="family", estimator="posterior", decay=0.9)
    batch = [(t.id, [i % 3 == 0]) for i, t in enumerate(tasks)]
    first, second = (TaskPool(tasks, values=config) for _ in range(2))
    first.record_batch(batch, 0)
    second.record_batch(batch[::-1], 0)
    assert first.state() == second.state()
    np.testing.assert_allclose(values(first), values(second), rtol=1e-12)


def test_a_pool_that_was_saved_goes_on_as_one_that_was_not():
    tasks = some(6)
    config = ValueConfig(
        pooling="lexical", clusters=2, estimator="posterior", decay=0.9
    )
    pool = TaskPool(tasks, values=config, seed=4)
    pool.record_batch([(t.id, [i % 2 == 0]) for i, t in enumerate(tasks)], 0)
    pool.count_proposals("rule", {"accepted": 1, "form": 3})
    pool.resets = 4
    other = TaskPool(tasks, values=config, seed=4)
    other.load(json.loads(json.dumps(pool.state())))
    for p in (pool, other):
        p.add_generated(dataclasses.replace(tasks[0], id="made", instruction="x"))
        p.record_batch([("made", [True]), (tasks[1].id, [False])], 3)
        p.count_proposals("rule", {"accepted": 1})
    assert other.state() == pool.state()
    assert other.acceptance() == {"rule": 2 / 5}
    assert other.resets == 4
    np.testing.assert_allclose(values(other), values(pool), rtol=0)


def test_a_task_that_is_not_in_the_pool_is_named_before_anything_is_recorded():
    tasks = some()
    pool = TaskPool(tasks)
    with pytest.raises(ValueError, match=r"no tasks of this pool: \['nowhere'\]"):
        pool.record_batch([(tasks[0].id, [True, False]), ("nowhere", [True])], 0)
    assert pool.entries[tasks[0].id].rollouts == 0
