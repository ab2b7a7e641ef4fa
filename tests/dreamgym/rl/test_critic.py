"""The critic: which column it reads, what it may move, and that it learns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dreamgym.rl.config import CriticConfig, UpdateConfig
from dreamgym.rl.credit import TurnGrid
from dreamgym.rl.critic import Critic, critic_loss, initial_ensemble
from tests import doubles, helpers
from worldmodel.backbone.model import apply_decoder
from worldmodel.backbone.scalar_head import with_scalar_head
from worldmodel.fitting.batches import Example, pack

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


def with_head(state, seed=0, heads=1):
    """The state with heads that are not 0, and these."""
    flat = dict(nnx.to_flat_state(state.params))
    drawn = np.random.default_rng(seed).normal(size=(heads, 16))
    (path,) = (p for p in flat if p[0] == "head")
    flat[path] = flat[path].replace(jnp.asarray(drawn, jnp.float32))
    return state._replace(params=nnx.from_flat_state(flat)), drawn


@pytest.mark.medium
@pytest.mark.parametrize(("trunk", "heads"), [("shared", 3), ("separate", 1)])
def test_a_value_is_read_where_the_turn_begins(trunk, heads):
    judge, given = critic(trunk, ensemble_size=heads), turns()
    policy, state = doubles.model().params, judge.init()
    initial = judge.values(state, policy, given)
    assert initial.shape == (len(given), heads)
    np.testing.assert_allclose(initial.mean(1), 0.0, atol=1e-6)
    state, drawn = with_head(state, heads=heads)
    results = judge.values(state, policy, given)
    m = doubles.model()

    @jax.jit  # with the rest of a row blank: one shape
    def hidden_of(ids, segment):
        position = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        return apply_decoder(m.definition, m.params, ids, position, segment).hidden[0]

    for e, value in zip(given[:6], results[:6], strict=True):
        # Up to the forced opener; what the policy wrote is not read.
        before = list(e.ids[: list(e.mask).index(True)])
        blank = [0] * (ROWS["width"] - len(before))
        ids = np.array([[*before, *blank]])
        segment = np.array([[1] * len(before) + blank])
        hidden = hidden_of(ids, segment)[len(before) - 1]
        np.testing.assert_allclose(
            value, drawn @ np.asarray(hidden), rtol=2e-4, atol=1e-4
        )
    assert np.ptp(results) > 0.1
    # However turns are packed.
    config = CriticConfig(network=trunk, ensemble_size=heads)
    other = Critic(doubles.model(), config, rows=2, width=30)
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


@pytest.mark.medium
def test_what_is_fitted_leaves_the_policy_alone():
    policy = doubles.model().params
    before = jax.tree.map(np.asarray, policy)
    judge, given = critic(value_clip=0.0), turns()
    returns = np.ones(len(given), np.float32)
    zeros = np.zeros((len(given), 1), np.float32)
    state, metrics = judge.fit(judge.init(), policy, given, returns, zeros, seed=0)
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
    state, _ = own.fit(own.init(), policy, given, returns, zeros, seed=0)
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
    left = unseen - judge.values(state, policy, test)[:, 0]
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


# --- several heads -----------------------------------------------------------


def test_heads_disagree_at_first_and_a_single_one_is_zero():
    rng = np.random.default_rng(0)
    scale = rng.uniform(0.5, 4.0, 4096)
    np.testing.assert_array_equal(initial_ensemble(1, scale, 3), np.zeros((1, 4096)))
    drawn = initial_ensemble(5, scale, seed=3)
    np.testing.assert_allclose(drawn.mean(0), 0.0, atol=1e-8)
    # The values of normalised states, times that scale: a variance of 1 - 1/5 over
    # heads.
    hidden = np.sign(rng.normal(size=(200, 4096))) * scale
    np.testing.assert_allclose((hidden @ drawn.T).var(), 4 / 5, rtol=0.1)
    assert np.abs(drawn - initial_ensemble(5, scale, seed=4)).max() > 0.01


def test_the_loss_is_the_mean_over_heads_each_clipped_around_its_own_value():
    # One position, return 1. The first head had 0 and says 0.5, which is clipped to 0.2
    # above 0: its error is the larger one, 0.8. The second had 0.9 and says 1.1: 0.1.
    e = Example([5, 6], [False, True], [0, 0]).with_columns(
        returns=1.0, old_value_0=0.0, old_value_1=0.9
    )
    logits = jnp.array([[[0.5, 1.1], [9.0, 9.0]]])
    loss, _ = critic_loss(logits, pack([e], 2), clip=0.2)
    np.testing.assert_allclose(loss.value(), (0.8**2 / 2 + 0.1**2 / 2) / 2, rtol=1e-5)


def test_values_of_other_rows_are_refused():
    e = Example([0, 1], [False, True], [0, 0]).with_columns(
        returns=1.0, old_value_0=0.0
    )
    with pytest.raises(AssertionError):
        critic_loss(jnp.zeros((1, 3, 1)), pack([e], 2), clip=0.2)
    with pytest.raises(AssertionError):
        critic_loss(jnp.zeros((1, 2)), pack([e], 2), clip=0.2)


def token(number):
    """A state of one token, whose value is read there."""
    return Example([number, 0], [False, True], [0, 0])


def chase(seed, heads, at_the_edge, rounds=30):
    """Return what a policy earns that was trained with rollouts which are cut.

    In the start state one action ends with 0.5, and eight others lead to states in
    which the rollout is cut, and from which nothing is ever earned. Six other states
    earn 1, the most there is. The second value is the critic's of the start state.
    """
    tokens = np.random.default_rng(seed).permutation(np.arange(5, 374))
    start, rich, edges = tokens[0], tokens[1:7], tokens[7:15]
    config = UpdateConfig(
        advantage_estimator="gae",
        critic=CriticConfig(
            ensemble_size=heads, value_clip=0.0, learning_rate=3e-2, gae_lambda=1.0
        ),
        normalize_advantages="none",
    )
    judge = Critic(doubles.model(), config.critic, rows=8, width=32, seed=seed)
    policy, state = doubles.model().params, judge.init()
    episodes = [([start, x], 0.0) for x in edges]
    episodes += [([x], 0.5 if x == start else 1.0) for x in (start, *rich)]
    given = [token(x) for states, _ in episodes for x in states]
    length = np.array([len(states) for states, _ in episodes])
    first = (length.cumsum() - length)[: len(edges) + 1]
    rewards = np.repeat([reward for _, reward in episodes], length)
    grid = TurnGrid(length, length == 1, length - 1)
    logits = np.zeros(len(first))
    for number in range(rounds):
        odds = np.exp(logits - logits.max())
        odds /= odds.sum()
        values = judge.values(state, policy, given)
        advantages, mask, returns = grid.gae_advantages(
            rewards, values.mean(1), 1.0, config, at_the_edge(values)
        )
        returns[first] = odds @ returns[first]  # of the actions as they are taken
        learnt = [e for e, on in zip(given, mask, strict=True) if on]
        state, _ = judge.fit(
            state, policy, learnt, returns[mask], values[mask], seed=number
        )
        gain = advantages[first] - odds @ advantages[first]
        logits += 2.0 * len(first) * odds * gain
    return 0.5 * odds[-1], float(values[0].mean())


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_the_lowest_head_keeps_a_policy_from_states_where_rollouts_were_cut(seed):
    """As in RAVL. On seeds 0 to 7 one head took it once, the mean of four twice."""
    lowest, mean = (lambda v: v.min(1)), (lambda v: v.mean(1))
    earned, value = chase(seed, 4, lowest)
    assert earned > 0.45
    assert value == pytest.approx(0.5, abs=0.1)
    for heads in (1, 4):  # one critic, and the same heads without the minimum
        earned, value = chase(seed, heads, mean)
        assert earned < 0.05
        assert value > 1.0  # more than any episode earns


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("network", "none"),
        ("gae_lambda", 1.1),
        ("value_clip", -1.0),
        ("learning_rate", 0.0),
        ("epochs", 0),
        ("ensemble_size", 0),
        ("step_limit", "ignored"),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=setting):
        dataclasses.replace(CriticConfig(), **{setting: value})
