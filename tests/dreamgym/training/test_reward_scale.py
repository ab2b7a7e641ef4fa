"""Rewards of any size: multiplied by a factor, they teach the same."""

import dataclasses
import inspect
import types

import jax
import numpy as np
import pytest

from dreamgym.rl.advantages import unit_rms
from dreamgym.rl.config import KLPenaltyConfig, LossWeights, UpdateConfig
from dreamgym.rl.credit import TurnGrid
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.training.learn import RETURN_SCALE, _previous_scale, learn
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.turn_batch import TurnBatch
from tests import doubles
from tests.dreamgym.training import common
from tests.dreamgym.training.common import CONFIG, fresh

BASE = UpdateConfig(batch_rows=8, row_tokens=80, num_minibatches=2, warmup_steps=1)
WALKS = (["go right", "take coin"], ["go left"], ["go right", "go left", "go left"])
KINDS = {
    "group": BASE,
    "others": dataclasses.replace(BASE, advantage_estimator="leave_one_out"),
    "divided by the group's std": dataclasses.replace(
        BASE, normalize_advantages="group"
    ),
    "KL in the reward": dataclasses.replace(
        BASE, kl_penalty=KLPenaltyConfig(coefficient=0.5, placement="reward")
    ),
    "critic": dataclasses.replace(BASE, advantage_estimator="gae"),
    "critic, KL in the reward": dataclasses.replace(
        BASE,
        advantage_estimator="gae",
        kl_penalty=KLPenaltyConfig(coefficient=0.5, placement="reward"),
    ),
}


def walks(factor):
    """Costs of 1 a step and 20 at the end, times a factor."""
    out = []
    for index, actions in enumerate([*WALKS, WALKS[0]]):
        t = doubles.trajectory(doubles.task(0, 1, 2), actions, index=index)
        steps = tuple(
            dataclasses.replace(x, rewards={"r": factor * (20.0 * x.reward - 1.0)})
            for x in t.episode.transitions
        )
        episode = dataclasses.replace(t.episode, transitions=steps)
        out.append(t._replace(episode=episode))
    return out


def learnt(update, factor, updates=2):
    """Parameters of the policy after some updates, and their rows."""
    policy = doubles.policy()
    reference = doubles.policy(seed=1).model.params  # a KL to speak of
    updater = Updater(policy.model, reference, policy.grammar(1.0), update)
    config = dataclasses.replace(CONFIG, update=update, group_size=4)
    critic = None
    if update.advantage_estimator == "gae":
        critic = Critic(policy.model, update.critic, rows=8, width=80)
    rows = walks(factor)
    state = fresh([rows[0].episode.task], config)._replace(
        policy=updater.learner.init(), critic=None if critic is None else critic.init()
    )
    for number in range(updates):
        result = learn(
            updater, state, Rollouts(rows, []), config, seed=0, critic=critic
        )
        state = state._replace(
            update=number + 1,
            policy=result.policy,
            critic=result.critic,
            curve=[*state.curve, result.metrics],
        )
    return state


def change(state):
    """How far each parameter moved."""
    start = jax.tree.leaves(doubles.policy().model.params)
    return [
        np.asarray(a) - np.asarray(b)
        for a, b in zip(jax.tree.leaves(state.policy.params), start, strict=True)
    ]


@pytest.mark.parametrize("factor", [1000.0, 0.001])
@pytest.mark.parametrize("kind", ["KL in the reward", "group"])
def test_advantages_do_not_depend_on_the_size_of_rewards(kind, factor, monkeypatch):
    config = dataclasses.replace(CONFIG, update=KINDS[kind], group_size=4)

    some = common.updater()
    monkeypatch.setattr(
        some, "reference_log_ratio", lambda rows: np.linspace(-1.0, 1.0, len(rows))
    )

    def advantages(size):
        batch = TurnBatch(walks(size), config)
        rewards, scale = batch.rewards(
            LossWeights(0.5), some, None, scaled=kind != "group"
        )
        scale = scale or 1.0
        values, mask = batch.grid().group_advantages(
            rewards, batch.state_numbers(), config.update, 4
        )
        return *unit_rms(values, mask), scale

    (a, rms, scale), (b, scaled_rms, other_scale) = advantages(1.0), advantages(factor)
    np.testing.assert_allclose(a, b, rtol=1e-5)
    assert np.abs(a).max() > 0.5
    assert scaled_rms * other_scale == pytest.approx(factor * rms * scale, rel=1e-5)


def test_the_scale_is_that_of_returns_that_say_something():
    """A batch without a win, or with step costs alone, must not set it for ever."""
    grid = TurnGrid(np.array([2, 2]), np.array([True, True]), np.array([0, 0]))
    nothing, costs = [0.0] * 4, [-0.01] * 4
    wins = [0.0, 100.0, 0.0, 100.0]
    assert grid.return_scale(nothing, 1.0) is None
    assert grid.return_scale(nothing, 1.0, previous=7.0) == 7.0
    first = grid.return_scale(costs, 1.0)
    assert first == pytest.approx(np.sqrt((0.02**2 + 0.01**2) / 2))
    assert grid.return_scale(wins, 1.0, previous=first) == 100.0
    # A few times as much is what learning brings: the units stay.
    assert grid.return_scale(wins, 1.0, previous=26.0) == 26.0
    assert grid.return_scale(wins, 1.0, previous=24.0) == 100.0


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_rewards_times_a_factor_teach_the_same(name):
    once = learnt(KINDS[name], 1.0)
    moved = change(once)
    assert max(np.abs(x).max() for x in moved) > 1e-4
    for factor in (1000.0, 0.001):
        other = learnt(KINDS[name], factor)
        for a, b in zip(moved, change(other), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-5)
        for row, scaled in zip(once.curve, other.curve, strict=True):
            if KINDS[name].in_returns:  # a gain in units of the return
                assert scaled["surrogate_gain"] == pytest.approx(
                    factor * row["surrogate_gain"], rel=1e-3
                )
            if RETURN_SCALE in row:
                assert scaled[RETURN_SCALE] == pytest.approx(
                    factor * row[RETURN_SCALE], rel=1e-6
                )


@pytest.mark.slow
def test_rewards_that_are_not_normalised_do_depend_on_their_size():
    """The control: what the test above would see."""
    update = dataclasses.replace(
        BASE, normalize_advantages="none", advantage_estimator="gae", learning_rate=1e-2
    )
    a, b = learnt(update, 1.0), learnt(update, 1000.0)
    assert RETURN_SCALE not in a.curve[0]
    differs = [np.abs(x - y).max() for x, y in zip(change(a), change(b), strict=True)]
    assert max(differs) > 1e-4


@pytest.mark.slow
def test_the_scale_is_that_of_the_first_update():
    state = learnt(KINDS["critic"], 1.0)
    first, second = (row[RETURN_SCALE] for row in state.curve)
    assert first == second > 1.0


def test_an_update_without_a_scale_does_not_forget_that_of_the_ones_before():
    rows = ({}, {RETURN_SCALE: 3.0}, {"updates": 1.0})
    state = types.SimpleNamespace(curve=list(rows))
    find = inspect.unwrap(_previous_scale)  # without the check of type hints
    assert find(state) == 3.0
    assert find(types.SimpleNamespace(curve=[])) is None
