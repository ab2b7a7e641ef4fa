"""The loss of the update: the sampler's distribution, what enters it, its choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl.config import (
    UpdateConfig,
)
from tests import doubles
from tests.dreamgym.rl.updates import (
    COLUMNS,
    HOT,
    compiled_distribution,
    compiled_policy_loss,
    distance,
    examples,
    gradient,
    logp_of,
    masks_of,
    turns,
    updater,
    with_shift,
)
from worldmodel.fitting.batches import blank, pack

# --- one distribution --------------------------------------------------------


@pytest.mark.parametrize("thought_tokens", [0, 4])
def test_the_learner_speaks_of_the_samplers_distribution(thought_tokens):
    some = turns(thought_tokens)
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    tokens = pack([t.example(advantage=1.0) for t in some], 96)
    logits = jnp.asarray(doubles.logits(tokens.ids, tokens.position, tokens.segment))
    masks = masks_of(policy)
    logp = logp_of(logits, tokens, masks, HOT)
    assert tokens.mask.sum() == sum(sum(t.sampled) for t in some)
    np.testing.assert_allclose(
        np.asarray(logp)[tokens.mask],
        tokens.columns["sampler_logp"][tokens.mask],
        atol=2e-5,
    )
    # The wrong temperature, or no masks at all, are other distributions.
    cold = logp_of(logits, tokens, masks, 1.0)
    free = logp_of(logits, tokens, np.ones_like(masks), HOT)
    for other in (cold, free):
        gap = np.abs(
            np.asarray(other)[tokens.mask] - tokens.columns["sampler_logp"][tokens.mask]
        )
        assert gap.max() > 1e-2


def test_before_any_update_the_ratio_is_one():
    # So the loss is minus the mean advantage of the sampled tokens, nothing is
    # clipped, and the policy stands at its reference.
    learner = updater(learning_rate=1e-9)
    state = learner.learner.init()
    given = examples((1.0, -0.5))
    _, metrics = learner.update(state, given, seed=0)
    counts = np.array([sum(e.mask) for e in given])
    adv = np.array([e.columns["advantage"] for e in given])
    mean = (counts * adv).sum() / counts.sum()
    np.testing.assert_allclose(metrics["policy_loss"], -mean, atol=1e-4)
    np.testing.assert_allclose(metrics["kl"], 0.0, atol=1e-6)
    np.testing.assert_allclose(metrics["loss"], -mean, atol=1e-4)
    assert metrics["clip_fraction"] == 0.0


def test_logp_and_entropy_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vocab, temperature = 6, 0.8
    tokens = blank(2, 5, COLUMNS)
    tokens.weight[:] = 1.0
    tokens.ids[:] = rng.integers(0, vocab, (2, 5))
    tokens.mask[:, 2:] = True
    tokens.token_type[:] = rng.integers(0, 4, (2, 5))
    masks = rng.random((4, vocab)) < 0.7
    masks[:, 0] = True
    for i, j in zip(*np.nonzero(tokens.mask), strict=True):
        masks[tokens.token_type[i, j], tokens.ids[i, j]] = True
    logits = rng.normal(size=(2, 5, vocab)).astype(np.float32) * 2
    logp = logp_of(jnp.asarray(logits), tokens, masks, temperature)
    entropy = 0.0
    for i, j in zip(*np.nonzero(tokens.mask), strict=True):
        allowed = masks[tokens.token_type[i, j]]
        row = logits[i, j - 1][allowed] / temperature  # the column before predicts
        p = np.exp(row - row.max())
        p /= p.sum()
        at = int(allowed[: tokens.ids[i, j]].sum())
        np.testing.assert_allclose(logp[i, j], np.log(p[at]), rtol=1e-4, atol=1e-5)
        entropy -= (p * np.log(p)).sum()
    config = UpdateConfig(temperature=temperature)
    ref = compiled_distribution(jnp.asarray(logits), tokens, masks, temperature)
    _, metrics = compiled_policy_loss(
        jnp.asarray(logits),
        tokens,
        ref_logp=ref,
        masks=masks,
        kl_weight=0.02,
        entropy_weight=0.0,
        config=config,
    )
    np.testing.assert_allclose(metrics["entropy"].total, entropy, rtol=1e-4)
    np.testing.assert_allclose(metrics["kl"].total, 0.0, atol=1e-5)


def test_entropy_stays_finite_where_logits_lie_far_apart():
    tokens = blank(1, 2, COLUMNS)
    tokens.mask[0, 1] = tokens.weight[0, 1] = True
    logits = jnp.array([[[0.0, 200.0, 0.0], [0.0, 0.0, 0.0]]])
    tokens.ids[0, 1] = 1
    masks = np.ones((1, 3), bool)
    assert abs(logp_of(logits, tokens, masks, 1.0)[0, 1]) < 1e-6
    ref = compiled_distribution(logits, tokens, masks, 1.0)
    _, metrics = compiled_policy_loss(
        logits,
        tokens,
        ref_logp=ref,
        masks=masks,
        kl_weight=0.02,
        entropy_weight=0.0,
        config=UpdateConfig(),
    )
    np.testing.assert_allclose(metrics["entropy"].total, 0.0, atol=1e-6)


# --- what enters the loss ----------------------------------------------------


def loss_of(tokens, logits, ref, masks, config):
    ratio, _ = compiled_policy_loss(
        logits,
        tokens,
        ref_logp=ref,
        masks=masks,
        kl_weight=0.02,
        entropy_weight=0.0,
        config=config,
    )
    return ratio.total


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_padding_and_context_may_hold_anything(bad):
    policy = doubles.policy(action_tokens=5)
    tokens = pack(examples(), 80)
    logits = jnp.asarray(doubles.logits(tokens.ids, tokens.position, tokens.segment))
    other = doubles.logits(tokens.ids, tokens.position, tokens.segment) * 0.7
    ref = np.asarray(
        compiled_distribution(jnp.asarray(other), tokens, masks_of(policy), HOT)
    )
    masks, config = masks_of(policy), UpdateConfig()

    @jax.jit
    @jax.value_and_grad
    def gradient(logits, tokens, ref):
        return loss_of(tokens, logits, ref, masks, config)

    value, clean = gradient(logits, tokens, ref)
    dirty = tokens._replace(
        columns={
            k: np.where(tokens.mask, x, np.float32(bad))
            for k, x in tokens.columns.items()
        }
    )
    got, grads = gradient(
        logits, dirty, np.where(tokens.mask[:, 1:, None], ref, np.float32(bad))
    )
    np.testing.assert_allclose(got, value, rtol=1e-6)
    np.testing.assert_allclose(grads, clean, atol=1e-6)
    # Only columns whose next token was sampled feel the loss.
    touched = np.abs(np.asarray(grads)).sum(-1) > 0
    predicts = np.pad(tokens.mask[:, 1:], ((0, 0), (0, 1)))
    assert not touched[~predicts].any()
    assert touched[predicts].any()


def test_the_count_is_the_number_of_sampled_tokens():
    tokens = pack(examples(), 80)
    logits = jnp.zeros((*tokens.ids.shape, doubles.tokenizer().vocab_size))
    masks = masks_of(doubles.policy())
    ratio, result = compiled_policy_loss(
        logits,
        tokens,
        ref_logp=compiled_distribution(logits, tokens, masks, 1.0),
        masks=masks,
        kl_weight=0.02,
        entropy_weight=0.0,
        config=UpdateConfig(),
    )
    sampled = sum(sum(t.sampled) for t in turns())
    np.testing.assert_allclose(ratio.count, sampled, rtol=1e-6)
    assert {k for k, v in result.items() if float(v.count) == sampled} == {
        "policy_loss",
        "kl",
        "entropy",
        "clip_fraction",
    }


# --- choices -----------------------------------------------------------------


@pytest.mark.medium
def test_each_choice_changes_the_gradient_and_nothing_else():
    rng = np.random.default_rng(0)
    given = [  # as after some minibatches: the tokens of a turn differ in their ratio
        with_shift(e, 0.1 * rng.normal(size=len(e.ids))) for e in examples()
    ]
    plain, metrics = gradient(given=given)
    size = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(plain))
    for settings in (
        {"importance_level": "turn"},
        {"entropy_coefficient": 1.0},
        {"importance_cap": 2.0},
        {"kl": 0.5},
        {"kl": 0.5, "estimator": "k1"},
        {"kl": 0.5, "estimator": "k3"},
    ):
        kl = settings.pop("kl", 0.0)
        grads, results = gradient(kl=kl, given=given, **settings)
        assert distance(grads, plain) > 1e-3 * size, settings
        for name in ("kl", "entropy"):
            assert float(results[name].total) == pytest.approx(
                float(metrics[name].total)
            )
    same, _ = gradient(
        kl=0.5, placement="reward", given=given
    )  # it is in the reward already
    assert distance(same, plain) == 0.0


def test_tokens_the_learner_finds_likelier_than_the_sampler_weigh_more():
    # e^1 times likelier: the weight is cut at 2; the clip stands where the learner was.
    once, _ = gradient()
    _, output = gradient(importance_cap=2.0)
    learner = updater(reference=1)
    moved = [with_shift(e, np.array(e.mask, float)) for e in examples()]
    shifted, expected = gradient(given=moved)
    np.testing.assert_allclose(
        output["policy_loss"].total, 2.0 * expected["policy_loss"].total, rtol=1e-4
    )
    assert distance(once, shifted) > 0
    assert float(output["policy_loss"].count) == float(expected["policy_loss"].count)
    # In a whole update sampler and learner agree: every weight is one.
    exact = updater(learning_rate=1e-9, importance_cap=2.0)
    _, metrics = exact.update(exact.learner.init(), examples((1.0, -0.5)), seed=0)
    _, plain = learner.update(learner.learner.init(), examples((1.0, -0.5)), seed=0)
    np.testing.assert_allclose(metrics["policy_loss"], plain["policy_loss"], atol=1e-4)
