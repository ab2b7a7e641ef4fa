"""The critic: which column it reads, what it may move, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dreamgym.rl.config import CriticConfig
from dreamgym.rl.critic import Critic
from tests import doubles, helpers
from worldmodel.backbone.model import apply_decoder
from worldmodel.backbone.scalar_head import with_scalar_head

TASKS = doubles.tasks("train")[:24]
ROWS = {"rows": 4, "width": 96}


def turns(some=TASKS):
    out = []
    for task in some:
        for turn in doubles.trajectory(task, ["go right", "take coin"]).turns:
            out.append(turn.example())
    return out


def critic(trunk="shared", **settings):
    config = CriticConfig(network=trunk, **settings)
    return Critic(doubles.model(), config, **ROWS)


def with_head(state, seed=0):
    """The state with a head that is not 0."""
    flat = dict(nnx.to_flat_state(state.params))
    drawn = jnp.asarray(np.random.default_rng(seed).normal(size=(1, 16)), jnp.float32)
    (path,) = (p for p in flat if p[0] == "head")
    flat[path] = flat[path].replace(drawn)
    return state._replace(params=nnx.from_flat_state(flat)), np.asarray(drawn)[0]


@pytest.mark.parametrize("trunk", ["shared", "separate"])
def test_a_value_is_read_where_the_turn_begins(trunk):
    judge, given, policy = critic(trunk), turns(), doubles.model().params
    state = judge.init()
    np.testing.assert_array_equal(judge.values(state, policy, given), 0.0)
    state, head = with_head(state)
    results = judge.values(state, policy, given)
    m = doubles.model()
    for e, value in zip(given[:6], results[:6], strict=True):
        # Up to the forced opener; what the policy wrote is not read.
        before = list(e.ids[: list(e.mask).index(True)])
        ids = np.array([before])
        hidden = apply_decoder(
            m.definition,
            m.params,
            ids,
            np.arange(len(before))[None],
            np.ones_like(ids),
        ).hidden[0, -1]
        np.testing.assert_allclose(
            value, np.asarray(hidden) @ head, rtol=2e-4, atol=1e-4
        )
    assert np.ptp(results) > 0.1
    # However turns are packed.
    other = Critic(doubles.model(), CriticConfig(network=trunk), rows=2, width=30)
    np.testing.assert_allclose(
        other.values(state, policy, given[::-1])[::-1], results, rtol=1e-4, atol=1e-5
    )


def test_a_shared_trunk_is_the_policys_of_now():
    judge, given = critic(), turns()[:4]
    state, _ = with_head(judge.init())
    other = doubles.model(7).params
    result = judge.values(state, other, given)
    whole = with_scalar_head(doubles.model(7)).params
    assert helpers.distance(whole, state.params) > 0
    assert (
        np.abs(result - judge.values(state, doubles.model().params, given)).max() > 0.01
    )
    # A critic with a network of its own does not look at the policy.
    alone = critic("separate")
    state, _ = with_head(alone.init())
    np.testing.assert_array_equal(
        alone.values(state, other, given),
        alone.values(state, doubles.model().params, given),
    )


def test_what_is_fitted_leaves_the_policy_alone():
    policy = doubles.model().params
    before = jax.tree.map(np.asarray, policy)
    judge, given = critic(value_clip=0.0), turns()
    returns = np.ones(len(given), np.float32)
    state, metrics = judge.fit(
        judge.init(), policy, given, returns, np.zeros_like(returns), seed=0
    )
    after = judge.values(state, policy, given)
    assert (after > 0.005).all()
    helpers.assert_trees_equal(before, jax.tree.map(np.asarray, policy))
    flat = dict(nnx.to_flat_state(state.params))
    moved = {
        p[0]
        for p, x in nnx.to_flat_state(judge.init().params)
        if helpers.distance(x[...], flat[p][...]) > 0
    }
    assert moved == {"head"}
    own = critic("separate", value_clip=0.0)
    state, _ = own.fit(
        own.init(), policy, given, returns, np.zeros_like(returns), seed=0
    )
    flat = dict(nnx.to_flat_state(state.params))
    assert "layers" in {
        p[0]
        for p, x in nnx.to_flat_state(own.init().params)
        if helpers.distance(x[...], flat[p][...]) > 0
    }
    np.testing.assert_allclose(
        metrics["explained_variance"], 1.0, atol=1e-6
    )  # nothing varies


def explained(seed, returns_of, *, trunk="separate"):
    """Share of the variance of unseen turns' returns that a fitted critic tells."""
    judge = Critic(
        doubles.model(),
        CriticConfig(network=trunk, value_clip=0.0, learning_rate=1e-2, epochs=5),
        **ROWS,
    )
    policy, state = doubles.model().params, judge.init()
    train, test = turns(TASKS[:16]), turns(TASKS[16:])
    returns, unseen = returns_of(train, seed), returns_of(test, seed)
    for n in range(8):
        values = judge.values(state, policy, train)
        state, metrics = judge.fit(state, policy, train, returns, values, seed=n)
    left = unseen - judge.values(state, policy, test)
    return 1.0 - left.var() / unseen.var(), metrics["explained_variance"]


def place(examples, seed):
    """1 at the first turn, 0 at the second: told by the state."""
    del seed
    return np.array([1.0, 0.0] * (len(examples) // 2), np.float32)


def luck(examples, seed):
    """The same numbers in any order."""
    return np.random.default_rng(seed).permutation(place(examples, seed))


@pytest.mark.slow
def test_a_critic_learns_what_states_are_worth_and_nothing_from_luck():
    unseen, seen = explained(0, place)
    assert unseen > 0.8
    assert seen > 0.8
    assert explained(0, luck)[0] < 0.2
    assert (
        explained(0, place, trunk="shared")[0] > 0.3
    )  # of a trunk that was not fitted


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("network", "none"),
        ("gae_lambda", 1.1),
        ("value_clip", -1.0),
        ("learning_rate", 0.0),
        ("epochs", 0),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=setting):
        dataclasses.replace(CriticConfig(), **{setting: value})
