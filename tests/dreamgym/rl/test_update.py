"""The update: one program, microbatches, direction, refusals."""

import contextlib
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
from dreamgym.rl.sampled_rows import sampled_rows
from dreamgym.rl.update import merge_equal_turns
from tests import doubles
from tests.dreamgym.rl.updates import (
    HOT,
    distance,
    examples,
    grouped,
    logits_of,
    logp_of,
    masks_of,
    reference_logp,
    turns,
    updater,
    with_shift,
)
from worldmodel.fitting.batches import pack

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


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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
