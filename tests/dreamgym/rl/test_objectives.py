"""Imitation and preferences: the gradients that they stand for, by autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.config.overrides import changed_by
from dreamgym.rl.advantages import dpo_weights
from dreamgym.rl.config import ALGORITHMS, LossWeights, UpdateConfig
from dreamgym.rl.update import merge_equal_turns
from tests import doubles, helpers
from tests.dreamgym.rl import updates as base
from worldmodel.fitting.batches import pack

NONE = {
    "importance_level": "none",
    "loss_aggregation": "episode",
    "temperature": base.HOT,
}


@jax.jit
def sums(params, tokens, masks, weight):
    """sum of weight x log p of the policy's tokens, as the sampler shapes it."""
    logp = base.logp_of(base.logits_of(params, tokens), tokens, masks, base.HOT)
    return jnp.where(tokens.mask, logp * weight, 0.0).sum()


@pytest.mark.medium
def test_without_a_ratio_the_gradient_is_that_of_weighted_likelihood():
    learner = base.updater(reference=1, **NONE)
    given = base.examples((0.5, -2.0))
    tokens = pack(given, 80)
    masks = base.masks_of(doubles.policy(action_tokens=5))
    grads, metrics = base.gradient(given=given, **NONE)
    params = learner.learner.init().params
    want = jax.jit(jax.grad(sums))(params, tokens, masks, -tokens.columns["advantage"])
    assert helpers.distance(grads, want) < 1e-4
    assert float(metrics["loss"].count) == tokens.mask.sum()
    # No clip: whatever the sampler said of its tokens.
    far = [base.with_shift(e, -3.0) for e in given]
    other, _ = base.gradient(given=far, **NONE)
    assert helpers.distance(grads, other) < 1e-5


@pytest.mark.medium
def test_preferences_have_the_gradient_of_dpo():
    """Two won and one lost episode of a group, one turn each, in the loss of a pair."""
    beta, given = 0.7, base.examples()[:3]
    masks = base.masks_of(doubles.policy(action_tokens=5))
    learner = base.updater(reference=1, **NONE)
    params = learner.learner.init().params
    rows = [pack([e], 80) for e in given]
    reference = doubles.model(1).params
    ref = [float(sums(reference, t, masks, 1.0)) for t in rows]

    def dpo(params):
        margin = [
            sums(params, t, masks, 1.0) - r for t, r in zip(rows, ref, strict=True)
        ]
        pairs = [(0, 2), (1, 2)]
        losses = [-jax.nn.log_sigmoid(beta * (margin[w] - margin[b])) for w, b in pairs]
        return sum(losses) / len(pairs)

    want = jax.jit(jax.grad(dpo))(params)
    margin = learner.reference_log_ratio(given)
    each = dpo_weights(
        margin[None], np.array([[True, True, False]]), np.ones((1, 3), bool), beta=beta
    )[0]
    written = [sum(e.mask) for e in given]
    output = [
        e._replace(weight=1.0 / n).with_columns(advantage=float(a * n))
        for e, a, n in zip(given, each, written, strict=True)
    ]
    grads, metrics = base.gradient(given=merge_equal_turns(output), **NONE)
    count = float(metrics["loss"].count)
    assert count == pytest.approx(3.0)
    grads = jax.tree.map(lambda g: g / count, grads)
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(want))
    assert size > 1e-3
    assert helpers.distance(grads, want) < 1e-3 * size


def test_preferences_are_those_of_a_loop_over_pairs():
    rng = np.random.default_rng(0)
    margin = rng.normal(size=(5, 4))
    won, scored = rng.random((5, 4)) < 0.5, rng.random((5, 4)) < 0.8
    out, pairs, used = np.zeros((5, 4)), 0, set()
    for n in range(5):
        for i in range(4):
            for j in range(4):
                if won[n, i] and not won[n, j] and scored[n, i] and scored[n, j]:
                    w = 0.3 / (1 + np.exp(0.3 * (margin[n, i] - margin[n, j])))
                    out[n, i] += w
                    out[n, j] -= w
                    pairs += 1
                    used |= {(n, i), (n, j)}
    result = dpo_weights(margin, won, scored, beta=0.3)
    np.testing.assert_allclose(result, out * len(used) / pairs, rtol=1e-5, atol=1e-7)
    nobody = dpo_weights(margin, np.ones_like(won), scored, beta=0.3)
    np.testing.assert_array_equal(nobody, 0.0)


def test_what_is_imitated_beside_has_a_mean_of_its_own():
    learner = base.updater(reference=1, num_minibatches=1, learning_rate=1e-2)
    given = base.examples()
    other = [e._replace(columns={}) for e in base.examples((0.0,))[:3]]

    def step(**more):
        state, info = learner.update(learner.learner.init(), given, seed=0, **more)
        return state.params, info

    plain, info = step()
    assert "auxiliary_loss" not in info
    none, info = step(auxiliary=other, weights=LossWeights(kl=0.02))
    assert helpers.distance(plain, none) == 0.0
    weights = LossWeights(kl=0.02, auxiliary=0.5)
    joined, info = step(auxiliary=other, weights=weights)
    assert helpers.distance(plain, joined) > 1e-4
    assert info["auxiliary_loss"] > 0
    twice, again = step(auxiliary=other * 2, weights=weights)
    assert again["auxiliary_loss"] == pytest.approx(info["auxiliary_loss"], rel=1e-5)
    assert helpers.distance(joined, twice) < 1e-5


def test_its_gradient_is_added_in_proportion():
    learner = base.updater(reference=1)
    given, other = pack(base.examples(), 80), pack(base.examples((0.0,))[:3], 80)
    state = learner.learner.init()
    grads, metrics = base.gradient()
    beside, result = learner._auxiliary.gradient(state.params, other)
    copy = jax.tree.map(jnp.copy, grads)
    got, _ = learner._with_auxiliary(state, copy, metrics, 0.5, other)
    share = 0.5 * given.mask.sum() / other.mask.sum()
    want = jax.tree.map(lambda a, b: a + share * b, grads, beside)
    assert float(result["loss"].count) == other.mask.sum()
    assert helpers.distance(got, want) < 1e-4


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_name_is_a_setting_that_stands(name):
    config = changed_by(UpdateConfig(), ALGORITHMS[name])
    assert (config == UpdateConfig()) == (name == "turn_grpo")  # the default's name


def test_pairs_are_of_whole_episodes():
    with pytest.raises(ValueError, match=r"surrogate\.importance_level = none"):
        UpdateConfig(advantage_estimator="preference_pairs")
    with pytest.raises(ValueError, match="beta must be > 0"):
        UpdateConfig(dpo_beta=0.0)


@pytest.mark.medium
@pytest.mark.parametrize("settings", [{}, {"importance_cap": 2.0}])
def test_a_batch_in_small_pieces_makes_the_same_update(settings):
    def moved(most):
        learner = base.updater(reference=1, learning_rate=1e-2, **settings)
        before, learner.learner.microbatches._max_rows = (
            learner.learner.microbatches._max_rows,
            most,
        )
        try:
            state, metrics = learner.update(
                learner.learner.init(),
                base.examples(),
                seed=0,
                weights=LossWeights(kl=0.1, auxiliary=0.5),
                auxiliary=base.examples((0.0,))[:3],
            )
        finally:
            learner.learner.microbatches._max_rows = before
        return state.params, metrics

    (whole, metrics), (pieces, again) = moved(None), moved(1)
    assert helpers.distance(whole, pieces) < 2e-4
    assert again == pytest.approx(metrics, rel=1e-3, abs=1e-5)
