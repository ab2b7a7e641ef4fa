"""The sampler: weights by value, families in equal shares, a cap on invented tasks."""

import collections
import dataclasses

import numpy as np
import pytest

from curriculum.config import CurriculumConfig, ValueConfig
from curriculum.pool import TaskPool
from curriculum.sampler import apportion, pool_of, sample, task_weights, weights
from curriculum.value import target_proximity
from tests import doubles, helpers


def named(count, *, family="f", prefix="t"):
    base = doubles.task(0, 1, 2)
    return [
        dataclasses.replace(base, id=f"{prefix}{i}", family=family)
        for i in range(count)
    ]


def test_weights_by_hand():
    # Values 0.25, untried (counts 0.25), 0: four fifths go 1/2, 1/2, 0 and one fifth
    # is spread evenly. Without the even share the last would be 0.
    pool = TaskPool(named(3))
    helpers.record(pool, "t0", [True, False], 0)
    helpers.record(pool, "t2", [True, True], 0)
    result = task_weights(pool, pool.active(), CurriculumConfig())
    np.testing.assert_allclose(result, [0.25, 0.25, 0.0], rtol=1e-12)
    got = weights(result, 0.2)
    np.testing.assert_allclose(got, [0.4 + 1 / 15, 0.4 + 1 / 15, 1 / 15], rtol=1e-12)


def test_weights_without_any_value_are_even():
    np.testing.assert_allclose(weights(np.zeros(2), 0.2), [0.5, 0.5], rtol=1e-12)


@pytest.mark.slow
def test_draws_follow_the_weights():
    pool = TaskPool(named(3))
    helpers.record(pool, "t0", [True, False], 0)  # 1/4
    helpers.record(pool, "t1", [True] + [False] * 9, 0)  # 9/100
    helpers.record(pool, "t2", [True, True], 0)  # 0
    config = CurriculumConfig(uniform_share=0.1)
    rng, n = np.random.default_rng(0), 3000
    counts = collections.Counter(sample(pool, 1, config, rng)[0].id for _ in range(n))
    p = np.array([0.9 * 0.25 / 0.34, 0.9 * 0.09 / 0.34, 0.0]) + 0.1 / 3
    got = np.array([counts[f"t{i}"] for i in range(3)]) / n
    np.testing.assert_array_less(np.abs(got - p), 4 * np.sqrt(p * (1 - p) / n))


def test_without_coverage_a_settled_task_is_never_drawn():
    pool = TaskPool(named(3))
    helpers.record(pool, "t1", [False, False], 0)
    rng = np.random.default_rng(0)
    config = CurriculumConfig(uniform_share=0.0)
    drawn = {t.id for _ in range(50) for t in sample(pool, 2, config, rng)}
    assert drawn == {"t0", "t2"}


def test_families_share_a_batch_whatever_their_sizes():
    pool = TaskPool(named(2, family="a", prefix="a") + named(30, family="b"))
    config = CurriculumConfig()
    for seed in range(5):
        got = sample(pool, 9, config, np.random.default_rng(seed))
        count = collections.Counter(t.family for t in got)
        assert sorted(count.values()) == [4, 5]


def test_a_batch_has_distinct_tasks_where_the_pool_allows():
    pool = TaskPool(named(12))
    for seed in range(5):
        got = sample(pool, 12, CurriculumConfig(), np.random.default_rng(seed))
        assert sorted(t.id for t in got) == sorted(f"t{i}" for i in range(12))
    assert len(sample(pool, 30, CurriculumConfig(), np.random.default_rng(0))) == 30


@pytest.mark.parametrize(
    ("share", "made", "expected"),
    [(0.25, 9, 2), (0.0, 9, 0), (0.25, 1, 1), (1.0, 9, 8), (0.24, 9, 1)],
)
def test_generated_tasks_are_capped(share, made, expected):
    pool = TaskPool(named(20))
    for task in named(made, prefix="g"):
        pool.add_generated(task)
    config = CurriculumConfig(generated_share=share)
    got = sample(pool, 8, config, np.random.default_rng(0))
    assert len(got) == 8
    assert sum(t.id.startswith("g") for t in got) == expected


def test_retired_tasks_are_not_drawn():
    pool = TaskPool(named(3), patience=1)
    helpers.record(pool, "t0", [False, False], 0)
    rng = np.random.default_rng(0)
    drawn = {t.id for _ in range(20) for t in sample(pool, 2, CurriculumConfig(), rng)}
    assert drawn == {"t1", "t2"}


def test_the_same_generator_state_draws_the_same_batch():
    pool = TaskPool(named(20))
    first, second = (
        sample(pool, 6, CurriculumConfig(), np.random.default_rng((3, 1)))
        for _ in range(2)
    )
    other = sample(pool, 6, CurriculumConfig(), np.random.default_rng((3, 2)))
    assert first == second != other


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("generated_share", 1.1),
        ("uniform_share", -0.1),
        ("proposals_per_update", -1),
        ("retire_after", 0),
        ("target_success", 1.0),
        ("target_width", 0.0),
        ("generator", "me"),
        ("lessons", "x"),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=setting):
        CurriculumConfig(**{setting: value})


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="count must be >= 1, got 0"):
        sample(TaskPool(named(1)), 0, CurriculumConfig(), np.random.default_rng(0))


# --- target success, mixes, the pool of the settings -------------------------


def test_a_target_weighs_by_closeness_and_not_by_variance():
    config = CurriculumConfig(target_success=0.9, value=ValueConfig(beta_prior=1e-9))
    pool = pool_of(named(3), config)
    helpers.record(pool, "t0", [True] * 9 + [False], 0)
    helpers.record(pool, "t1", [True, False], 0)
    helpers.record(pool, "t2", [False] * 9 + [True], 0)
    got = task_weights(pool, pool.active(), config)
    want = [target_proximity(p, 0.9, config.target_width) for p in (0.9, 0.5, 0.1)]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.argmax(task_weights(pool, pool.active(), CurriculumConfig())) == 1


def test_an_untried_task_is_taken_for_half_won():
    config = CurriculumConfig(target_success=0.5)
    pool = pool_of(named(2), config)
    helpers.record(pool, "t0", [False] * 20, 0)
    assert task_weights(pool, pool.active(), config)[1] == 1.0


@pytest.mark.parametrize(
    ("shares", "count", "want"),
    [
        ([0.5, 0.5], 5, [3, 2]),
        ([0.2, 0.4, 0.4], 10, [2, 4, 4]),
        ([1, 1, 1], 2, [1, 1, 0]),
        ([3.0], 7, [7]),
        ([0.1, 0.9], 0, [0, 0]),
    ],
)
def test_shares_become_whole_numbers(shares, count, want):
    assert apportion(shares, count) == want


def test_a_mix_fills_its_shares_and_leaves_what_nothing_fits_to_the_others():
    pool = TaskPool(named(20, prefix="a") + named(20, prefix="b"))

    def begins(letter):
        return lambda entry: entry.task.id.startswith(letter)

    def count(mix):
        rng = np.random.default_rng(0)
        got = sample(pool, 8, CurriculumConfig(), rng, task_mixture=mix)
        return collections.Counter(t.id[0] for t in got)

    assert count([(0.75, begins("a")), (0.25, begins("b"))]) == {"a": 6, "b": 2}
    assert count([(0.5, begins("a")), (0.5, begins("z"))]) == {"a": 8}
    assert sum(count([(1.0, begins("z"))]).values()) == 8


def test_what_was_played_is_left_out_while_there_are_others():
    pool = TaskPool(named(6))
    rng = np.random.default_rng(0)

    def ids(without, mix=()):
        some = sample(
            pool, 4, CurriculumConfig(), rng, task_mixture=mix, exclude=without
        )
        return {t.id for t in some}

    for _ in range(10):
        assert ids({"t0", "t1"}) == {"t2", "t3", "t4", "t5"}
        assert ids({"t0"}, [(1.0, lambda e: e.task.id in ("t0", "t5"))]) == {"t5"}
    assert ids({f"t{i}" for i in range(6)})  # then they are drawn again


def test_generated_tasks_outside_the_mix_are_not_drawn():
    pool = TaskPool(named(8))
    for task in named(4, prefix="g"):
        pool.add_generated(task)
    config = CurriculumConfig(generated_share=0.5)
    mix = [(1.0, lambda e: e.task.id in ("g0", *(f"t{i}" for i in range(8))))]
    got = sample(pool, 8, config, np.random.default_rng(0), task_mixture=mix)
    assert collections.Counter(t.id[0] for t in got) == {"g": 1, "t": 7}


def test_the_pool_is_made_as_the_settings_say():
    config = CurriculumConfig(
        retire_after=1, value=ValueConfig(estimator="posterior", pooling="family")
    )
    pool = pool_of(named(2), config, seed=3)
    helpers.record(pool, "t0", [True, True], 0)
    assert pool.entries["t0"].retired
    assert pool.entries["t1"].cluster == "f"
    np.testing.assert_allclose(
        pool.values([pool.entries["t1"]], optimism=0.0), [3 / 20], rtol=1e-12
    )


def test_a_part_whose_tasks_are_all_retired_goes_on_being_drawn():
    # "When" is measured on tasks without a call: won every time, they retire first.
    pool = TaskPool([*named(4, prefix="call"), *named(2, prefix="none")], patience=1)
    for name in ("none0", "none1"):
        helpers.record(pool, name, [True, True], 0)
    assert {e.task.id for e in pool.active()} == {f"call{i}" for i in range(4)}
    mix = [(0.5, lambda e: "call" in e.task.id), (0.5, lambda e: "none" in e.task.id)]
    rng = np.random.default_rng(0)
    results = [t.id for t in sample(pool, 8, CurriculumConfig(), rng, task_mixture=mix)]
    assert sum("none" in x for x in results) == 4
    # One that no task fits leaves its share to the others.
    nobody = [(0.5, mix[0][1]), (0.5, lambda e: e.generated)]
    results = [
        t.id for t in sample(pool, 8, CurriculumConfig(), rng, task_mixture=nobody)
    ]
    assert sum("call" in x for x in results) == 8
