"""Theorem 1 on small worlds where every term can be computed."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.evaluation import bounds


class World(NamedTuple):
    """A finite MDP: moves [S, A, S], rewards [S, A], start [S]."""

    moves: np.ndarray
    rewards: np.ndarray
    start: np.ndarray


def values(world, policy, discount):
    """V [S] and Q [S, A] of a policy [S, A], by linear equations."""
    moves = np.einsum("sa,sat->st", policy, world.moves)
    rewards = (policy * world.rewards).sum(1)
    v = np.linalg.solve(np.eye(len(rewards)) - discount * moves, rewards)
    return v, world.rewards + discount * world.moves @ v


def returned(world, policy, discount):
    return float(world.start @ values(world, policy, discount)[0])


def visits(world, policy, discount):
    """The discounted share of time in each state, [S]; sums to 1."""
    moves = np.einsum("sa,sat->st", policy, world.moves)
    eye = np.eye(len(world.start))
    return (1 - discount) * np.linalg.solve(eye - discount * moves.T, world.start)


def errors(real, dream):
    """(eps_r, eps_p) as Theorem 1 means them."""
    variation = 0.5 * np.abs(real.moves - dream.moves).sum(-1)
    return float(np.abs(real.rewards - dream.rewards).max()), float(variation.max())


def divergence(new, old):
    """sup over states of KL(new || old)."""
    return max(float((new * np.log(new / old)).sum(1).max()), 0.0)


def promised(real, dream, old, new, discount, r_max=1.0):
    v, q = values(dream, old, discount)
    gain = float(visits(dream, old, discount) @ (new * (q - v[:, None])).sum(1))
    eps_r, eps_p = errors(real, dream)
    return bounds.theorem1(
        gain=gain,
        delta=divergence(new, old),
        eps_r=eps_r,
        eps_p=eps_p,
        discount=discount,
        r_max=r_max,
    )


def world(rng, states, actions, sharp):
    moves = rng.dirichlet(np.full(states, sharp), (states, actions))
    return World(moves, rng.random((states, actions)), rng.dirichlet(np.ones(states)))


def near(rng, real, size):
    """A dream of the world: everything but the start is off by up to `size`."""
    other = world(rng, *real.rewards.shape, 0.5)
    mix = size * rng.random((*real.rewards.shape, 1))
    moves = (1 - mix) * real.moves + mix * other.moves
    rewards = np.clip(real.rewards + size * rng.uniform(-1, 1, mix.shape[:2]), 0, 1)
    return World(moves, rewards, real.start)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    states=st.integers(1, 6),
    actions=st.integers(1, 4),
    discount=st.sampled_from([0.0, 0.3, 0.9, 0.99]),
    error=st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
    step=st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
    sharp=st.sampled_from([0.05, 1.0]),
)
def test_the_bound_never_fails(seed, states, actions, discount, error, step, sharp):
    rng = np.random.default_rng(seed)
    real = world(rng, states, actions, sharp)
    dream = near(rng, real, error)
    old = rng.dirichlet(np.ones(actions), states) * 0.98 + 0.02 / actions
    other = rng.dirichlet(np.ones(actions), states) * 0.98 + 0.02 / actions
    new = (1 - step) * old + step * other
    result = promised(real, dream, old, new, discount)
    gained = returned(real, new, discount) - returned(real, old, discount)
    assert gained >= result.total - 1e-8
    apart = abs(returned(real, new, discount) - returned(dream, new, discount))
    eps_r, eps_p = errors(real, dream)
    most = bounds.lemma1(eps_r=eps_r, eps_p=eps_p, discount=discount, r_max=1.0)
    assert apart <= most + 1e-8


def better_in_the_dream(*, moves=False, rewards=False):
    """One step each: the dream is wrong about where action 1 leads, or what it earns.

    State 0 is the start; 1 pays 1 for ever, 2 pays nothing for ever.
    """
    go = np.zeros((3, 2, 3))
    go[0, :, 2] = go[1, :, 1] = go[2, :, 2] = 1.0
    pay = np.zeros((3, 2))
    pay[1] = 1.0
    # In the real world action 0 pays a little, so that to turn to 1 is a loss.
    pay[0, 0] = 0.5
    real = World(go, pay, np.array([1.0, 0.0, 0.0]))
    dream_go, dream_pay = go.copy(), pay.copy()
    if moves:
        dream_go[0, 1] = [0.0, 1.0, 0.0]
    if rewards:
        dream_pay[0, 1] = 1.0
    return real, World(dream_go, dream_pay, real.start)


@pytest.mark.parametrize(("wrong", "term"), [("moves", "eps_p"), ("rewards", "eps_r")])
def test_without_its_term_a_world_breaks_the_bound(wrong, term):
    discount = 0.5
    real, dream = better_in_the_dream(**{wrong: True})
    old = np.full((3, 2), 0.5)
    new = old.copy()
    new[0] = [0.495, 0.505]
    gained = returned(real, new, discount) - returned(real, old, discount)
    whole = promised(real, dream, old, new, discount)
    assert gained < 0
    assert gained >= whole.total
    eps = dict(zip(("eps_r", "eps_p"), errors(real, dream), strict=True))
    assert [k for k, v in eps.items() if v > 0] == [term]
    without = bounds.theorem1(
        gain=whole.gain * (1 - discount),
        delta=divergence(new, old),
        **(eps | {term: 0.0}),
        discount=discount,
        r_max=1.0,
    )
    assert gained < without.total


def test_by_hand():
    got = bounds.theorem1(
        gain=0.02, delta=0.001, eps_r=0.01, eps_p=0.005, discount=0.9, r_max=1.0
    )
    # 0.02 / 0.1; 3.6 / 0.01 * 10 * 0.001; 2 (0.01 / 0.1 + 1.8 / 0.01 * 0.005)
    np.testing.assert_allclose(got, (0.2, 3.6, 2.0, 10.0), rtol=1e-12)
    np.testing.assert_allclose(got.total, -5.4)
    # Eq. 9 at 0.99: the coefficient of eps_p is 4 gamma rmax / (1 - gamma)^2 = 39,600,
    # for returns that span 100.
    one = bounds.lemma1(eps_r=0.0, eps_p=1.0, discount=0.99, r_max=1.0)
    np.testing.assert_allclose(2 * one, 39_600, rtol=1e-9)
    small = bounds.max_eps_p(gain=1.0, discount=0.99, r_max=1.0)
    np.testing.assert_allclose(small, 100 / 39_600, rtol=1e-9)
    assert bounds.max_eps_p(gain=-1.0, discount=0.99, r_max=1.0) == 0.0
    # It does not depend on eps_p there; infinity would be no JSON.
    assert bounds.max_eps_p(gain=1.0, discount=0.0, r_max=1.0) is None
    assert bounds.max_eps_p(gain=1.0, discount=0.9, r_max=0.0) is None


@pytest.mark.parametrize(
    ("eps_p", "gain", "message"),
    [
        (0.0, 0.02, "the new policy is better in the real environment, if"),
        (0.001, 0.02, "it promises no gain. The experience model costs most"),
        (1.0, 0.02, "it says nothing, as no policy can lose more than 10"),
    ],
)
def test_what_the_bound_says_in_words(eps_p, gain, message):
    bound = bounds.theorem1(
        gain=gain, delta=1e-5, eps_r=0.0, eps_p=eps_p, discount=0.9, r_max=1.0
    )
    text = bounds.sentence(bound, discount=0.9, measured=400)
    assert message in text
    assert "among 400 transitions" in text
    assert "lower estimate" in text


@pytest.mark.parametrize(
    "wrong",
    [
        {"discount": 1.0},
        {"discount": -0.1},
        {"delta": -1.0},
        {"eps_r": -1.0},
        {"eps_p": float("nan")},
        {"r_max": -1.0},
    ],
)
def test_what_cannot_be_is_refused(wrong):
    good = dict.fromkeys(("gain", "delta", "eps_r", "eps_p", "r_max", "discount"), 0.1)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        bounds.theorem1(**(good | wrong))


@pytest.mark.parametrize("name", ["gain", "delta", "eps_r", "r_max"])
def test_numbers_whose_bound_is_not_finite_are_refused(name):
    good = dict.fromkeys(("gain", "delta", "eps_r", "eps_p", "r_max"), 0.1)
    with pytest.raises(ValueError, match=rf"{name}.* too large for a bound, got"):
        bounds.theorem1(**(good | {name: 1e308}), discount=0.99)
    row = {"surrogate_gain": 0.1, "update_kl_max_turn": 0.1}
    curve = {"r_max": 1e308, "eps_r": 0.0, "eps_p": 0.0, "measured": 1}
    assert bounds.best_bound([row], discount=0.99, **curve) is None


def test_the_best_update_of_a_curve_is_told():
    errors = {"eps_r": 0.0, "eps_p": 0.0, "r_max": 1.0, "measured": 10}
    curve = [
        {"update": 1, "surrogate_gain": 0.01, "update_kl_max_turn": 0.5},
        {"update": 2, "surrogate_gain": 0.02, "update_kl_max_turn": 1e-6},
        {"update": 3},  # nothing was learned
    ]
    result = bounds.best_bound(curve, discount=0.9, **errors)
    assert (result["update"], result["updates"], result["measured"]) == (2, 2, 10)
    np.testing.assert_allclose(result["gain"], 0.2)
    np.testing.assert_allclose(result["total"], 0.2 - 3600 * 1e-6)
    assert result["sentence"].startswith("Best of 2 updates: Theorem 1 at discount 0.9")
    assert "the new policy is better" in result["sentence"]
    # A mean advantage of 3 takes a reward of 0.3 at least, where 0.1 was seen.
    rich = [{"update": 4, "surrogate_gain": 3.0, "update_kl_max_turn": 0.0}]
    small = errors | {"r_max": 0.1, "eps_p": 1.0}
    assert bounds.best_bound(rich, discount=0.9, **small)["r_max"] == pytest.approx(0.3)
    none = bounds.best_bound(rich, discount=0.9, **(small | {"r_max": 0.0}))
    assert none["r_max"] == pytest.approx(0.3)
    assert "it says nothing" in none["sentence"]  # 30 gained, less 108 for eps_p
    assert bounds.says_something(result)
    assert not bounds.says_something(none)
    assert not bounds.says_something({"sentence": "older"})
    assert bounds.best_bound(curve[2:], discount=0.9, **errors) is None
    assert bounds.best_bound(curve, discount=1.0, **errors) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["gain", "delta", "eps_r", "eps_p", "r_max"])
def test_numbers_that_are_not_finite_are_refused(name, bad):
    numbers = {"gain": 1.0, "delta": 0.1, "eps_r": 0.1, "eps_p": 0.1, "r_max": 1.0}
    with pytest.raises(ValueError, match=name):
        bounds.theorem1(**(numbers | {name: bad}), discount=0.9)
