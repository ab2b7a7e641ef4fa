"""The update: the sampler's distribution, masks, microbatches, direction, refusals."""

import contextlib
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dreamgym.rl import update
from dreamgym.rl.config import (
    KLPenaltyConfig,
    LossWeights,
    SurrogateConfig,
    UpdateConfig,
)
from dreamgym.rl.policy_loss import distribution, policy_loss
from dreamgym.rl.sampled_rows import sampled_rows
from dreamgym.rl.trust_region import interpolate
from dreamgym.rl.update import Updater, merge_equal_turns
from tests import doubles, helpers
from worldmodel.fitting.batches import blank, pack

HOT = 0.7
COLUMNS = {"advantage": np.float32, "sampler_logp": np.float32}
SITUATIONS = [
    (t, past, t.initial_state)
    for t in doubles.tasks("train")[:4]
    for past in ((), ("go right", "take coin"))
]


@functools.cache
def turns(thought_tokens=0):
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    keys = jax.random.split(jax.random.key(3), len(SITUATIONS))
    return tuple(policy.act(SITUATIONS, keys, temperature=HOT))


def grouped(settings):
    """Settings of the parts of an UpdateConfig, by their own names."""
    out = dict(settings)
    for name, part in (("surrogate", SurrogateConfig), ("kl_penalty", KLPenaltyConfig)):
        known = {f.name for f in dataclasses.fields(part)} & set(out)
        if known:
            out[name] = part(**{k: out.pop(k) for k in known})
    return out


@functools.cache
def updater(*, reference=0, thought_tokens=0, **settings):
    policy = doubles.policy(action_tokens=5, thought_tokens=thought_tokens)
    settings = {
        "batch_rows": 4,
        "row_tokens": 80,
        "num_minibatches": 1,
        "warmup_steps": 1,
    } | settings
    settings = {"temperature": HOT} | grouped(settings)
    config = UpdateConfig(**settings)
    grammar = policy.grammar(config.temperature)
    return Updater(policy.model, doubles.model(reference).params, grammar, config)


def examples(advantages=(1.0, -1.0), **settings):
    some = turns(**settings)
    return [
        t.example(advantage=advantages[i % len(advantages)]) for i, t in enumerate(some)
    ]


def with_shift(example, change):
    """The example as if its sampler had given other log-probabilities."""
    return example.with_columns(
        sampler_logp=np.asarray(example.columns["sampler_logp"]) + change
    )


def logits_of(params, tokens):
    """The logits of packed rows, compiled once for each shape."""
    layout = (tokens.ids, tokens.position, tokens.segment)
    return helpers.packed_pass(doubles.model().definition, params, *layout)


def masks_of(policy, temperature=HOT):
    g = policy.grammar(temperature)
    return np.stack([g.allowed, g.first], 1).reshape(-1, g.allowed.shape[1])


# One program for each shape: without it every operation is compiled for itself.
compiled_distribution = jax.jit(distribution, static_argnames="temperature")
compiled_policy_loss = jax.jit(policy_loss, static_argnames="config")


@functools.partial(jax.jit, static_argnames="temperature")
def logp_of(logits, tokens, masks, temperature):
    """log p of each token under the sampler's distribution, [B, T]."""
    whole = distribution(logits, tokens, masks, temperature)
    picked = jnp.take_along_axis(whole, tokens.ids[:, 1:, None], -1)[..., 0]
    return jnp.pad(picked, ((0, 0), (1, 0)))


# --- one program -------------------------------------------------------------


def test_updates_compile_once_whatever_the_weights(monkeypatch):
    """Coefficients, seeds and advantages are arguments of the program, not parts."""
    chex.clear_trace_counter()
    once = chex.assert_max_traces(update.sampled_policy_loss, n=1)
    monkeypatch.setattr(update, "sampled_policy_loss", once)
    learner = updater.__wrapped__()  # not one that other tests have compiled
    state = learner.learner.init()
    for number, advantages in enumerate([(1.0, -1.0), (0.5, 2.0), (-1.0, 3.0)]):
        weights = LossWeights(kl=0.01 * 2**number, entropy=0.001 * number)
        given = examples(advantages)
        state, _ = learner.update(state, given, seed=number, weights=weights)
    assert int(state.step) == 3


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


def distance(a, b):
    gaps = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), a, b)
    return max(jax.tree.leaves(gaps))


def test_microbatches_change_nothing():
    # 8 turns: rows of 80 hold one or two. Averaging means would differ, since the
    # turns are of different lengths.
    results = []
    for rows in (2, 8):
        learner = updater(batch_rows=rows)
        state = learner.learner.init()
        for seed in range(2):
            state, metrics = learner.update(state, examples(), seed=seed)
        results.append((state.params, metrics))
    (one, a), (two, b) = results
    assert distance(one, two) < 2e-6
    assert distance(one, doubles.model().params) > 1e-5
    for name in ("loss", "kl", "entropy", "grad_norm"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-6)


def test_the_first_update_already_moves_the_parameters():
    learner = updater()
    state, _ = learner.update(learner.learner.init(), examples(), seed=0)
    assert distance(state.params, doubles.model().params) > 1e-5


def test_minibatches_are_as_many_updates():
    rows = len(pack(merge_equal_turns(examples()), 50).ids)
    assert rows > 4
    for count, steps in ((1, 1), (2, 2), (99, rows)):
        learner = updater(num_minibatches=count, row_tokens=50)
        state, _ = learner.update(learner.learner.init(), examples(), seed=0)
        assert int(state.step) == steps


def test_the_same_seed_gives_the_same_update_bit_for_bit():
    results = []
    for seed in (0, 0, 5):
        learner = updater(num_minibatches=4, batch_rows=1, learning_rate=0.05)
        results.append(
            learner.update(learner.learner.init(), examples(), seed=seed)[0].params
        )
    assert distance(results[0], results[1]) == 0.0
    assert distance(results[0], results[2]) > 0.0


@functools.cache
def _logp_of_turns():
    tokens = pack([t.example(advantage=1.0) for t in turns()], 80)
    masks = masks_of(doubles.policy())

    def value(params):
        logits = logits_of(params, tokens)
        logp = logp_of(logits, tokens, masks, HOT)
        return jnp.where(tokens.mask, logp, 0.0).sum()

    return jax.jit(value)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_good_turns_become_likelier_and_bad_ones_less_likely(sign):
    learner = updater(learning_rate=3e-3)
    state = learner.learner.init()
    before = float(_logp_of_turns()(state.params))
    for n in range(3):
        state, _ = learner.update(state, examples((sign,)), seed=n)
    after = float(_logp_of_turns()(state.params))
    assert sign * (after - before) > 0.05


def test_without_advantage_the_kl_term_pulls_to_the_reference():
    learner = updater(reference=5, learning_rate=3e-3, coefficient=1.0)
    state = learner.learner.init()
    seen = []
    for n in range(6):
        state, metrics = learner.update(state, examples((0.0,)), seed=n)
        seen.append(metrics["kl"])
    assert seen[0] > 0
    assert seen[-1] < 0.9 * seen[0]
    free = updater(reference=5, learning_rate=3e-3, coefficient=0.0)
    start, state = free.learner.init(), free.learner.init()
    for n in range(2):
        state, _ = free.update(state, examples((0.0,)), seed=n)
    assert distance(state.params, start.params) < 1e-6


def test_a_penalty_without_a_weight_costs_no_pass_of_the_reference(monkeypatch):
    """And the gradient is the one that its pass with weight 0 gives."""
    learner = updater(reference=5, learning_rate=3e-3)
    passes, read = [], learner._log_probs
    monkeypatch.setattr(
        learner, "_log_probs", lambda *a: passes.append(1) or read(*a), raising=True
    )
    free = LossWeights(kl=0.0, entropy=0.0)
    state, metrics = learner.update(
        learner.learner.init(), examples(), seed=0, weights=free
    )
    assert not passes
    assert "kl" not in metrics
    tiny = LossWeights(kl=1e-12, entropy=0.0)
    other, metrics = learner.update(
        learner.learner.init(), examples(), seed=0, weights=tiny
    )
    assert passes
    assert metrics["kl"] > 0
    assert distance(state.params, other.params) < 1e-6


def test_a_turn_longer_than_a_row_is_not_trained_in_a_cut_context():
    # Under another context the ratio is not one: such a turn must have its whole
    # context, or be refused by name.
    learner = updater(row_tokens=24, learning_rate=1e-9)
    with contextlib.suppress(ValueError):
        _, metrics = learner.update(learner.learner.init(), examples((1.0,)), seed=0)
        np.testing.assert_allclose(metrics["policy_loss"], -1.0, atol=1e-4)


def test_a_loss_that_is_not_finite_stops_the_run():
    learner = updater()
    with pytest.raises(FloatingPointError, match="loss is nan"):
        learner.update(learner.learner.init(), examples((float("nan"),)), seed=0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clip_low", 0.0),
        ("clip_low", 1.0),
        ("clip_high", 0.0),
        ("coefficient", -0.1),
        ("temperature", 0.0),
        ("num_minibatches", 0),
        ("batch_rows", 0),
        ("row_tokens", 0),
        ("warmup_steps", 0),
        ("discount", -0.1),
        ("discount", 1.1),
        ("dual_clip", 1.0),
        ("importance_cap", -1.0),
        ("entropy_coefficient", -0.1),
        ("max_update_kl", -0.1),
        ("target", -0.1),
        ("importance_level", "word"),
        ("loss_aggregation", "word"),
        ("advantage_estimator", "luck"),
        ("estimator", "k2"),
        ("placement", "both"),
    ],
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=setting):
        UpdateConfig(**grouped({setting: value}))


def test_a_reward_is_not_paid_for_a_reference_that_moves():
    with pytest.raises(ValueError, match=r"reference_ema_decay must be 0, got 0\.5"):
        KLPenaltyConfig(placement="reward", reference_ema_decay=0.5)
    with pytest.raises(ValueError, match="must be > 0 to begin with, got 0"):
        KLPenaltyConfig(coefficient=0.0, target=0.1)


def test_the_step_grows_over_the_warm_up():
    # Adam's first step moves a parameter by the rate itself: 1/2 of it where one
    # minibatch warms up, 1/21 where 20 do.
    moved = []
    for warmup in (1, 20, 3000):
        learner = updater(warmup_steps=warmup, learning_rate=1e-2, coefficient=0.0)
        start, given = learner.learner.init(), learner.learner.init()
        state, _ = learner.update(given, examples((1.0, -1.0)), seed=0)
        moved.append(distance(state.params, start.params))
    np.testing.assert_allclose(moved, [1e-2 / 2, 1e-2 / 21, 1e-2 / 3001], rtol=0.02)


def test_equal_turns_once_have_the_gradient_of_all_of_them():
    # Twice the same turns, with advantages of either sign: half as many examples.
    learner = updater(coefficient=0.3, reference=1)
    state = learner.learner.init()
    given = [*examples((1.0, -0.5)), *examples((0.2, -2.0)), *examples((-1.0, 0.0))]
    few = merge_equal_turns(given)
    assert len(few) < len(given)
    assert sum(e.weight for e in few) == len(given)
    masks = masks_of(doubles.policy(action_tokens=5))
    results = []
    for some in (given, few):
        tokens = pack(some, 80)
        sampled = sampled_rows(tokens)
        grads, metrics = learner.learner.gradient(
            state.params,
            tokens,
            read=sampled.position,
            sampled=sampled,
            ref_logp=reference_logp(tokens, sampled, masks),
            masks=masks,
            kl_weight=0.3,
            entropy_weight=0.0,
        )
        results.append((grads, {k: float(v.value()) for k, v in metrics.items()}))
    (all_grads, all_told), (grads, output) = results
    assert output == pytest.approx(all_told, rel=1e-5)
    for a, b in zip(jax.tree.leaves(all_grads), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_the_reference_may_follow_the_policy():
    # From a far reference the first minibatch has a large KL; one that begins at the
    # policy and follows it stays near.
    fixed = updater(reference=5, learning_rate=3e-3, coefficient=0.1)
    near = updater(
        reference=5, learning_rate=3e-3, coefficient=0.1, reference_ema_decay=0.5
    )
    results = []
    for one in (fixed, near):
        state = one.learner.init()
        for n in range(3):
            state, metrics = one.update(state, examples((1.0, -1.0)), seed=n)
        results.append(metrics["kl"])
    assert 0 < results[1] < 0.5 * results[0]


# --- choices -----------------------------------------------------------------


def test_what_was_moved_is_the_kl_of_new_and_old():
    learner = updater(learning_rate=3e-3)
    old = learner.learner.init().params
    state, metrics = learner.update(learner.learner.init(), examples(), seed=0)
    tokens = pack(merge_equal_turns(examples()), 80)
    masks, total, most = masks_of(doubles.policy(action_tokens=5)), 0.0, 0.0
    whole = []
    for params in (state.params, old):
        logits = logits_of(params, tokens)
        whole.append(
            np.asarray(compiled_distribution(logits, tokens, masks, HOT), np.float64)
        )
    new, was = whole
    for b, t in zip(*np.nonzero(tokens.mask), strict=True):
        real = np.isfinite(new[b, t - 1])
        p, q = new[b, t - 1][real], was[b, t - 1][real]
        result = (np.exp(p) * (p - q)).sum()
        total += result * tokens.weight[b, t]
        most = max(most, result)
    assert metrics["step_fraction"] == 1.0
    count = tokens.weight[tokens.mask].sum()
    np.testing.assert_allclose(metrics["update_kl"], total / count, rtol=1e-3)
    np.testing.assert_allclose(metrics["update_kl_max"], most, rtol=1e-3)


def test_what_a_step_gained_and_how_far_its_turns_went_by_a_loop():
    learner = updater(learning_rate=3e-3)
    old = learner.learner.init().params
    given = examples((1.0, -0.5))
    state, metrics = learner.update(learner.learner.init(), given, seed=0)
    masks = masks_of(doubles.policy(action_tokens=5))
    gain, weights, furthest = 0.0, 0.0, 0.0
    for e in given:
        tokens = pack([e], 80)
        whole = []
        for params in (state.params, old):
            logits = logits_of(params, tokens)
            whole.append(compiled_distribution(logits, tokens, masks, HOT))
        new, was = (np.asarray(x, np.float64)[0] for x in whole)
        at = np.flatnonzero(tokens.mask[0])
        ratio = sum(
            new[t - 1, tokens.ids[0, t]] - tokens.columns["sampler_logp"][0, t]
            for t in at
        )
        far = 0.0
        for t in at:
            real = np.isfinite(new[t - 1])
            p, q = new[t - 1][real], was[t - 1][real]
            far += (np.exp(p) * (p - q)).sum()
        gain += np.exp(ratio) * e.columns["advantage"]
        weights += 1.0
        furthest = max(furthest, far)
    np.testing.assert_allclose(
        metrics["surrogate_gain"], gain / weights, rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(metrics["update_kl_max_turn"], furthest, rtol=1e-2)
    # A step along the gradient gains, on the batch it was made from.
    np.testing.assert_allclose(
        0.25, np.mean([e.columns["advantage"] for e in given]), atol=1e-6
    )
    assert metrics["surrogate_gain"] > 0.25


def test_a_step_beyond_the_radius_is_halved_until_it_is_not():
    free = updater(learning_rate=3e-2)
    far, output = free.update(free.learner.init(), examples(), seed=0)
    radius = output["update_kl"] / 10
    held = updater(learning_rate=3e-2, max_update_kl=radius)
    near, metrics = held.update(held.learner.init(), examples(), seed=0)
    assert metrics["update_kl"] <= radius
    assert metrics["step_fraction"] in {2.0**-k for k in range(1, 8)}
    # Half of it would have been too far, or the step were longer.
    start = held.learner.init().params
    longer = interpolate(start, far.params, min(2 * metrics["step_fraction"], 1.0))
    tokens = pack(merge_equal_turns(examples()), 80)
    assert held.update_size(longer, start, tokens).mean_kl > radius
    assert (
        distance(near.params, interpolate(start, far.params, metrics["step_fraction"]))
        < 1e-6
    )
    # Where the radius is wide nothing changes.
    wide = updater(learning_rate=3e-2, max_update_kl=100.0)
    same, metrics = wide.update(wide.learner.init(), examples(), seed=0)
    assert metrics["step_fraction"] == 1.0
    assert distance(same.params, far.params) == 0.0


def test_the_kl_of_the_sampler_by_hand():
    # The sampler gave every token half of the policy's probability: p / s = 2, and the
    # estimate is 2 - 1 - log 2 = 0.3069; for p / s = 1/2 it is 1/2 - 1 + log 2 = 0.1931
    # (s / p in place of p / s would give the two the other way round).
    params = doubles.policy(action_tokens=5).model.params
    given = updater().with_sampler_logp(params, examples())
    for shift, kl in ((0.0, 0.0), (-np.log(2.0), 0.3069), (np.log(2.0), 0.1931)):
        shifted = [with_shift(e, shift) for e in given]
        got = updater().sampler_kl(params, shifted)
        np.testing.assert_allclose(got, kl, atol=2e-4)


def test_how_far_each_turn_is_from_the_reference():
    given = examples()
    np.testing.assert_allclose(updater().reference_log_ratio(given), 0.0, atol=1e-3)
    results = updater(reference=5).reference_log_ratio(given)
    m, masks = doubles.model(5), masks_of(doubles.policy(action_tokens=5))
    for e, got in zip(given, results, strict=True):
        tokens = pack([e], 80)
        logits = logits_of(m.params, tokens)
        there = np.asarray(logp_of(logits, tokens, masks, HOT))
        want = (tokens.columns["sampler_logp"] - there)[tokens.mask].sum()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


def reference_logp(tokens, sampled, masks):
    """The distribution of a reference, at the sampled tokens of rows."""
    ref = doubles.logits(tokens.ids, tokens.position, tokens.segment) * 0.5
    ref = np.take_along_axis(np.asarray(ref), sampled.position[..., None], 1)
    return compiled_distribution(jnp.asarray(ref), sampled.tokens, masks, HOT)


def gradient(kl=0.0, given=None, **settings):
    learner = updater(reference=1, **settings)
    tokens = pack(examples() if given is None else given, 80)
    sampled = sampled_rows(tokens)
    masks = masks_of(doubles.policy(action_tokens=5))
    more = (
        {"learner_logp": sampled.tokens.columns["sampler_logp"] + 1.0}
        if learner.config.surrogate.importance_cap
        else {}
    )
    return learner.learner.gradient(
        learner.learner.init().params,
        tokens,
        read=sampled.position,
        sampled=sampled,
        ref_logp=reference_logp(tokens, sampled, masks),
        masks=masks,
        kl_weight=np.float32(kl),
        entropy_weight=np.float32(settings.get("entropy_coefficient", 0.0)),
        **more,
    )


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


def test_the_entropy_bonus_spreads_the_policy():
    kept = {}
    for bonus in (0.0, 1.0):
        learner = updater(
            learning_rate=3e-3, entropy_coefficient=bonus, coefficient=0.0
        )
        state = learner.learner.init()
        for n in range(3):
            state, metrics = learner.update(state, examples((0.0,)), seed=n)
        kept[bonus] = metrics["entropy"]
    assert kept[1.0] > kept[0.0] + 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be > 0"),
        (
            {
                "advantage_estimator": "success_filter",
                "kl_penalty": KLPenaltyConfig(placement="reward"),
            },
            "advantage_estimator = success_filter reads no rewards",
        ),
        (
            {"surrogate": SurrogateConfig(importance_level="none", dual_clip=2.0)},
            "surrogate.dual_clip bounds a ratio",
        ),
    ],
)
def test_settings_that_nothing_would_come_of_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        UpdateConfig(**settings)


def test_only_differences_of_returns_are_what_theorem_1_asks_for():
    assert UpdateConfig().in_returns
    assert UpdateConfig(normalize_advantages="none").in_returns
    assert not UpdateConfig(credit="episode").in_returns
    assert not UpdateConfig(advantage_estimator="gae").in_returns  # whitened
    assert UpdateConfig(
        advantage_estimator="gae", normalize_advantages="none"
    ).in_returns
    assert not UpdateConfig(normalize_advantages="group").in_returns
    assert not UpdateConfig(
        advantage_estimator="success_filter",
        surrogate=SurrogateConfig(importance_level="none"),
    ).in_returns
    assert not UpdateConfig(
        surrogate=SurrogateConfig(loss_aggregation="turn")
    ).in_returns


def test_a_turn_of_an_earlier_policy_keeps_its_probabilities():
    """Replayed beside the same turn sampled now: two examples, or one of one policy."""
    now = examples()[0]._replace(weight=1.0).with_columns(advantage=1.0)
    old = with_shift(now, -1.0)
    assert len(merge_equal_turns([now, old])) == 2
    assert len(merge_equal_turns([now, now.with_columns(advantage=0.5)])) == 1
