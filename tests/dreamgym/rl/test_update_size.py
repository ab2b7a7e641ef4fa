"""How far an update moved, what it gained, and how far it may go."""

import numpy as np

from dreamgym.rl.trust_region import interpolate
from dreamgym.rl.update import merge_equal_turns
from tests import doubles
from tests.dreamgym.rl.updates import (
    HOT,
    compiled_distribution,
    distance,
    examples,
    logits_of,
    logp_of,
    masks_of,
    updater,
    with_shift,
)
from worldmodel.fitting.batches import pack


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
