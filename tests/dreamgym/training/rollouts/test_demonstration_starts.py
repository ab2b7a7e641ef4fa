"""Rollouts that begin in demonstrations, and move backwards as the policy wins."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from curriculum.config import DemonstrationStartsConfig
from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.config.fine_tuning import TransferConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import VectorEnv
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.demonstration_starts import (
    DISTANCE,
    SUCCESS,
    draw_starts,
    next_distance,
    success_metric,
)
from tests import doubles
from tests.dreamgym.training.common import (
    CONFIG,
    Recorder,
    Tabular,
    loop,
    updater,
    with_starts,
)

LONG = doubles.expert(doubles.task(0, 3, 6))  # right, right, right, take
SHORT = doubles.expert(doubles.task(1, 1, 3))  # take


@pytest.mark.parametrize(
    ("row", "distance"),
    [
        ({}, 2),  # before the first update
        ({DISTANCE: 3.0, SUCCESS: 0.6}, 4),
        ({DISTANCE: 3.0, SUCCESS: 0.5}, 3),
        ({DISTANCE: 3.0, SUCCESS: 0.2}, 3),
        ({DISTANCE: 3.0, SUCCESS: 0.1}, 2),
        ({DISTANCE: 3.0}, 3),  # nothing was scored
        ({DISTANCE: 5.0, SUCCESS: 1.0}, 5),  # the longest has no more
        ({DISTANCE: 1.0, SUCCESS: 0.0}, 1),
        ({DISTANCE: 9.0}, 5),
    ],
)
def test_the_distance_follows_the_success_from_there(row, distance):
    config = DemonstrationStartsConfig(
        share=0.5, distance=2, grow_above=0.6, shrink_below=0.2
    )
    assert next_distance(row, config, longest=5) == distance


def test_groups_are_a_share_of_all_and_never_all():
    config = DemonstrationStartsConfig(share=0.25)
    assert [config.groups(n) for n in (1, 2, 4, 16)] == [0, 1, 1, 4]
    assert DemonstrationStartsConfig(share=0.9).groups(4) == 3
    assert DemonstrationStartsConfig().groups(16) == 0


def test_starts_are_so_many_steps_before_the_end():
    rng = np.random.default_rng(0)
    (start,) = draw_starts([LONG], 2, 5, 9, rng)
    steps = LONG.transitions
    assert start.task == LONG.task
    assert start.past == ("go right", "go right")
    assert start.past_states == (steps[0].state, steps[1].state)
    assert start.state == steps[2].state == doubles.start_state(2, 3, 6)
    # A demonstration that is shorter begins at its start.
    starts = draw_starts([LONG, SHORT], 2, 5, 9, rng)
    assert {len(s.past) for s in starts} == {0, 2}
    # One that is longer than episodes may be could not be won from there.
    assert [s.task for s in draw_starts([LONG, SHORT], 2, 5, 3, rng)] == [SHORT.task]
    assert len(draw_starts([LONG, SHORT], 2, 1, 9, rng)) == 1


def test_only_scored_rollouts_say_how_often_the_policy_wins():
    task = doubles.task(0, 1, 2)
    rows = [
        doubles.trajectory(task, ["go right", "take coin"]),
        doubles.trajectory(task, ["go left"]),
        doubles.trajectory(task, ["go right", "take coin"], error="broke"),
    ]
    assert success_metric(rows) == {SUCCESS: 0.5}
    assert success_metric(rows[2:]) == {}


def test_the_loop_begins_groups_there_and_goes_on_bit_for_bit(update_calls):
    config = dataclasses.replace(CONFIG, updates=4, tasks_per_update=4)
    config = with_starts(config, share=0.5, grow_above=0.25)
    parts = LoopParts(demonstrations=[LONG, SHORT])
    whole = loop(config, parts=parts)
    # All win from one step before the end; so the starts go back, step by step.
    distances = [row[DISTANCE] for row in whole.curve]
    assert distances[0] == 1.0
    assert max(distances) > 1.0
    for row in whole.curve:
        assert row["rollouts"] == 4.0  # two groups of two from their task's start
        assert SUCCESS in row
    # What is learned from counts all, and no task is judged by a rollout from the way.
    assert any(0.0 in visits for visits in update_calls.visits)
    assert sum(e.groups for e in whole.pool.entries.values()) == 4 * 2
    # The next distance depends on the curve alone, which a checkpoint holds.
    half = loop(dataclasses.replace(config, updates=2), parts=parts)
    assert half.curve == whole.curve[:2]


def test_only_a_dream_begins_on_the_way():
    class Plain(VectorEnv):
        size = 2

        def reset(self, *, options):
            raise AssertionError(options)

        def step(self, actions):
            raise AssertionError(actions)

    def train(envs):
        training.train(
            doubles.Scripted(doubles.expert_rule),
            envs,
            updater(),
            TrainingState(
                0,
                updater().learner.init(),
                pool_of([LONG.task], CONFIG.curriculum),
                0,
                [],
            ),
            with_starts(CONFIG, share=0.5),
            seed=0,
            recorder=Recorder(),
        )

    with pytest.raises(ValueError, match="go back, which only the dream can"):
        train(Plain())
    with pytest.raises(ValueError, match="need demonstrations, got none"):
        train(DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9))
    with pytest.raises(
        ValueError, match=r"demonstration_starts.share .* got 0, 0.5, 0"
    ):
        with_starts(TransferConfig(), share=0.5)


FAR = doubles.expert(doubles.task(0, 9, 9))


def successes(seed, share, monkeypatch):
    """Success from the start of a long corridor in each update, and the distances."""
    policy = Tabular(jnp.zeros((10, 3)), doubles.ACTIONS, lambda s: int(s[0][3:]))
    start = policy.take_updates(monkeypatch)
    config = LoopConfig(
        updates=20,
        tasks_per_update=4,
        group_size=8,
    )
    config = with_starts(config, share=share)
    end = training.train(
        policy,
        DreamVectorEnv(doubles.RuleModel(), 32, max_steps=12),
        updater(),
        TrainingState(0, start, pool_of([FAR.task], config.curriculum), 0, []),
        config,
        seed=seed,
        recorder=Recorder(),
        parts=LoopParts(demonstrations=[FAR] * 3),
    )
    rows = end.curve
    return [row["success"] for row in rows], [row.get(DISTANCE) for row in rows]


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 1])
def test_a_policy_that_begins_near_the_end_learns_what_it_never_reaches(
    seed, monkeypatch
):
    won, distances = successes(seed, 0.75, monkeypatch)
    assert won[0] == 0.0
    assert distances[0] == 1.0
    assert distances[-1] == 10.0  # the start of the corridor
    assert np.mean(won[-3:]) > 0.8
    from_the_start, _ = successes(seed, 0.0, monkeypatch)
    assert max(from_the_start) == 0.0
