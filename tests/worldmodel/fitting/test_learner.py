import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone import lora
from worldmodel.backbone.config import LoraConfig
from worldmodel.backbone.model import apply_decoder, create
from worldmodel.fitting import batches, learner
from worldmodel.fitting.arrays import Ratio
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import ComputeConfig, OptimizerConfig
from worldmodel.fitting.learner import Learner
from worldmodel.fitting.losses import cross_entropy, read_logp

WIDTH = 12


def loss(readout, batch, scale=1.0):
    logp = read_logp(readout, batch.ids)
    ratio = cross_entropy(logp, batch.mask, batch.weight * scale)
    return ratio, {"tokens": Ratio(batch.mask.sum() * 1.0, jnp.ones(()))}


def examples(n: int) -> list[Example]:
    rng = np.random.default_rng(3)
    out = []
    for length in rng.integers(3, 7, n):
        ids = rng.integers(1, 13, length).tolist()
        mask = [False, *(rng.random(length - 2) < 0.7).tolist(), True]
        out.append(Example(ids, mask, [0] * length, weight=float(rng.random() + 0.5)))
    return out


@pytest.fixture(scope="module")
def packed() -> batches.Tokens:
    """Eight rows with different numbers of targets."""
    tokens = batches.pack(examples(24), WIDTH)
    return batches.rows_of(tokens, np.arange(8), 8)


@pytest.fixture(scope="module")
def subject(small_model) -> Learner:
    return Learner(small_model, OptimizerConfig(warmup_steps=0), loss, steps=50)


def halves(tokens):
    return [batches.rows_of(tokens, np.arange(i, i + 4), 4) for i in (0, 4)]


@pytest.mark.medium
def test_eight_rows_are_two_microbatches_of_four(subject, packed):
    whole, metrics = subject.update(subject.init(), [packed])
    parts, summed = subject.update(subject.init(), halves(packed))
    assert int(whole.step) == int(parts.step) == 1
    assert helpers.distance(whole.params, parts.params) < 1e-5
    assert helpers.distance(whole.params, subject.init().params) > 1e-3
    for name in ("loss", "grad_norm", "tokens"):
        one, two = metrics[name], summed[name]
        if name != "tokens":  # counts one a microbatch
            np.testing.assert_allclose(one.value(), two.value(), rtol=1e-5)
        np.testing.assert_allclose(one.total, two.total, rtol=1e-5)


def test_the_gradient_is_that_of_the_mean_over_all_tokens(subject, packed):
    # The halves differ in count, so the mean of their means would be another number.
    grads = [subject.gradient(subject.init().params, b)[0] for b in halves(packed)]
    counts = [float(b.weight[b.mask].sum()) for b in halves(packed)]
    assert abs(counts[0] - counts[1]) > 0.5
    _, metrics = subject.update(subject.init(), halves(packed))
    squares = [
        ((np.asarray(a) + np.asarray(b)) ** 2).sum() / sum(counts) ** 2
        for a, b in zip(*map(jax.tree.leaves, grads), strict=True)
    ]
    np.testing.assert_allclose(
        metrics["grad_norm"].value(), np.sqrt(sum(squares)), rtol=1e-4
    )


@pytest.mark.medium
def test_packed_rows_are_padded_rows(subject):
    some = examples(16)
    tight = batches.pack(some, WIDTH)
    tight = batches.rows_of(tight, np.arange(len(tight.ids)), 16)
    assert (tight.segment.max(1) > 1).sum() >= 3  # rows with company
    loose = [batches.pack([e], WIDTH) for e in some]
    loose = jax.tree.map(lambda *rows: np.concatenate(rows), *loose)
    params = subject.init().params
    a, one = subject.gradient(params, tight)
    b, two = subject.gradient(params, loose)
    np.testing.assert_allclose(one["loss"].total, two["loss"].total, rtol=1e-5)
    np.testing.assert_allclose(one["loss"].count, two["loss"].count, rtol=1e-6)
    assert helpers.distance(a, b) < 1e-4
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(a)) > 0.1


def test_evaluate_is_the_loss_without_the_update(subject, packed):
    state = subject.init()
    before = jax.tree.map(np.array, state.params)
    got = subject.evaluate(state.params, packed)
    helpers.assert_trees_equal(state.params, before)
    _, metrics = subject.update(state, [packed])
    np.testing.assert_allclose(got["loss"].total, metrics["loss"].total, rtol=1e-5)


def test_arguments_reach_the_loss(subject, packed):
    params = subject.init().params
    one = subject.evaluate(params, packed)["loss"]
    three = subject.evaluate(params, packed, scale=3.0)["loss"]
    np.testing.assert_allclose(three.total, 3 * one.total, rtol=1e-5)


def test_updates_lower_the_loss(subject, packed):
    state, losses = subject.init(), []
    for _ in range(8):
        state, metrics = subject.update(state, [packed])
        losses.append(float(metrics["loss"].value()))
    assert losses[-1] < losses[0] - 0.02
    assert losses == sorted(losses, reverse=True)


def test_merge_adds_and_keeps():
    r = Ratio(jnp.array(1.0), jnp.array(2.0))
    got = learner.merge({"a": r, "b": r}, {"b": r, "c": r})
    assert {k: float(v.total) for k, v in got.items()} == {"a": 1, "b": 2, "c": 1}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_stops_the_run(value):
    with pytest.raises(FloatingPointError, match=r"loss is .* at update 17"):
        learner.require_finite("loss", value, 17)
    learner.require_finite("loss", 1.0, 17)


def learner_of(model, **compute) -> Learner:
    config = OptimizerConfig(warmup_steps=0, learning_rate=1e-2)
    return Learner(model, config, loss, ComputeConfig(**compute), steps=50)


def changed(before, after) -> set[str]:
    """Dotted names of the parameters that differ."""
    one, two = (dict(nnx.to_flat_state(x)) for x in (before, after))
    return {
        ".".join(map(str, path))
        for path, leaf in one.items()
        if not np.array_equal(leaf[...], two[path][...])
    }


@pytest.mark.medium
def test_remat_frees_what_layers_keep(small_model):
    deep = create(dataclasses.replace(small_model.config, num_hidden_layers=8), seed=0)
    rng = np.random.default_rng(0)
    rows = [Example(rng.integers(1, 13, 64).tolist(), [True] * 64, [0] * 64)] * 4
    batch = batches.pack(rows, 64)
    plain, again = learner_of(deep), learner_of(deep, remat=True)
    held, less = (x.scratch(deep.params, batch) for x in (plain, again))
    # Eight layers' inner values against one layer's and eight residual streams.
    assert less < held / 3


@pytest.mark.medium
def test_remat_changes_nothing_else(family_model, packed):
    plain, again = learner_of(family_model), learner_of(family_model, remat=True)
    want, _ = plain.gradient(plain.init().params, packed)
    got, _ = again.gradient(again.init().params, packed)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()) + 1e-7)


@pytest.mark.medium
def test_bfloat16_passes_keep_float32_masters(small_model, packed):
    full, half = learner_of(small_model), learner_of(small_model, dtype="bfloat16")
    start = half.init()
    assert {x.dtype for x in jax.tree.leaves(start.params)} == {jnp.dtype("float32")}
    want, exact = full.gradient(start.params, packed)
    got, metrics = half.gradient(start.params, packed)
    assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype("float32")}
    np.testing.assert_allclose(metrics["loss"].total, exact["loss"].total, rtol=0.03)
    assert float(metrics["loss"].total) != float(exact["loss"].total)
    flat = [
        np.concatenate([x.ravel() for x in jax.tree.leaves(g)]) for g in (got, want)
    ]
    cosine = flat[0] @ flat[1] / np.linalg.norm(flat[0]) / np.linalg.norm(flat[1])
    assert cosine > 0.98
    # A step far below the eight bits of bfloat16 still arrives.
    small = Learner(
        small_model,
        OptimizerConfig(warmup_steps=0, learning_rate=1e-5),
        loss,
        ComputeConfig(dtype="bfloat16"),
        steps=50,
    )
    state, _ = small.update(small.init(), [packed])
    assert helpers.distance(state.params, start.params) > 5e-6


@pytest.mark.medium
def test_biases_and_additions_keep_a_bfloat16_pass_in_bfloat16(packed):
    # They are float32 vectors or additions: either would widen all that follows.
    shape = helpers.config(13, attention_bias="qkvo", mlp_bias=True)
    model = lora.attach(helpers.lively_model(shape), LoraConfig(rank=2), seed=0)
    rows = (packed.ids, packed.position, packed.segment)
    half = learner.cast(model.params, "bfloat16")
    assert apply_decoder(model.definition, half, *rows).hidden.dtype == jnp.bfloat16
    subject = learner_of(model, dtype="bfloat16")
    grads, _ = subject.gradient(subject.init().params, packed)
    assert all(jnp.isfinite(x).all() for x in jax.tree.leaves(grads))
    # A half-precision base under fresh float32 additions, as it samples.
    base = model._replace(params=half, lora=None)
    mixed = jax.tree_util.tree_map_with_path(
        lambda path, x: x.astype("float32") if "lora" in str(path) else x, base.params
    )
    assert apply_decoder(model.definition, mixed, *rows).hidden.dtype == jnp.bfloat16


@pytest.mark.medium
def test_what_is_frozen_stays(small_model, packed):
    subject = learner_of(
        small_model, frozen=("embed", "head", "layers.0", "layers.1.mixer")
    )
    state, _ = subject.update(subject.init(), [packed])
    moved = changed(subject.init().params, state.params)
    assert moved
    assert not any(
        n.startswith(("embed", "head", "layers.0.", "layers.1.mixer")) for n in moved
    )
    assert "layers.1.gate.kernel" in moved
    # Moments of what trains only.
    sizes = {x.size for x in jax.tree.leaves(state.opt)}
    assert small_model.params["embed"][...].size not in sizes


def test_a_name_ends_where_it_ends(small_model):
    # "layers.1" is not "layers.10", and "gat" is no parameter.
    for bad in ("layers.10", "layers.1.gat", "nothing"):
        with pytest.raises(ValueError, match=f"no parameter begins with '{bad}'"):
            learner_of(small_model, frozen=(bad,)).init()
    everything = ("embed", "head", "layers", "norm")
    with pytest.raises(ValueError, match="leaves nothing to train"):
        learner_of(small_model, frozen=everything).init()
    with pytest.raises(ValueError, match="dtype must be 'float32' or 'bfloat16'"):
        ComputeConfig(dtype="float16")


@pytest.mark.medium
def test_of_a_model_with_lora_only_additions_train(small_model, packed):
    adapted = lora.attach(small_model, LoraConfig(rank=2, targets=("q", "up")), seed=0)
    subject = learner_of(adapted)
    state, before = subject.init(), subject.init().params
    losses = []
    for _ in range(12):
        state, metrics = subject.update(state, [packed])
        losses.append(float(metrics["loss"].value()))
    assert losses[-1] < losses[0] - 0.05
    moved = changed(before, state.params)
    assert moved
    assert all(n.endswith(("lora_a", "lora_b")) for n in moved)
    merged = lora.merge(adapted._replace(params=state.params))
    ids = [3, 1, 4, 1, 5]
    np.testing.assert_allclose(
        helpers.full_pass(merged, ids),
        helpers.full_pass(adapted._replace(params=state.params), ids),
        atol=1e-4,
    )


def test_an_update_takes_over_its_state(subject, packed):
    state = subject.init()
    mine = state.params["embed"][...]
    subject.update(state, [packed])
    assert mine.is_deleted()
    # The model that the learner was made of is not touched.
    assert not subject.model.params["embed"][...].is_deleted()


@pytest.mark.medium
def test_a_state_keeps_an_average(small_model, packed):
    subject = learner_of(small_model, ema_decay=0.75)
    state, start = subject.init(), subject.init().params
    helpers.assert_trees_equal(state.average, start)
    state, _ = subject.update(state, [packed])
    want = jax.tree.map(lambda a, p: 0.75 * a + 0.25 * p, start, state.params)
    for a, b in zip(jax.tree.leaves(state.average), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert helpers.distance(state.average, start) > 1e-3
    assert learner_of(small_model).init().average is None
    with pytest.raises(ValueError, match=r"ema_decay must be in \[0, 1\), got 1.0"):
        ComputeConfig(ema_decay=1.0)


def test_ema_by_hand():
    average = learner.ema(
        {"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([3.0, 2.0])}, 0.9
    )
    np.testing.assert_allclose(average["w"], [1.2, 2.0], rtol=1e-6)


@pytest.mark.medium
def test_beside_the_additions_what_is_named_trains(small_model, packed):
    model = lora.attach(small_model, LoraConfig(rank=2), seed=0)
    subject = learner_of(model, extra_trainable=("embed",))
    state = subject.init()
    before = learner.copy_params(state.params)
    state, _ = subject.update(state, [packed])
    names = changed(before, state.params)
    assert "embed" in names
    assert any(n.endswith("lora_b") for n in names)
    assert not any(n.endswith("kernel") or n.endswith("scale") for n in names)
    with pytest.raises(ValueError, match="no parameter begins with 'hat'"):
        learner_of(model, extra_trainable=("hat",)).init()
