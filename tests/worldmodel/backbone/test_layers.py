import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone import layers
from worldmodel.backbone.config import ModelConfig, RopeScaling
from worldmodel.backbone.layers import (
    KVCache,
    Linear,
    Placement,
    ShortConv,
    attend,
    attend_used,
    readable,
    rotate,
    rotation,
    run_mask,
)
from worldmodel.backbone.rope import rope_rates


def turned(x, position, *, theta, **changes):
    shape = ModelConfig(vocab_size=4, head_dim=x.shape[-1], rope_theta=theta, **changes)
    return rotate(x, rotation(shape, jnp.array([[position]])))


def test_rotate_by_hand():
    # Head size 4, theta 100: pairs (0, 2), (1, 3) turn at rates 1 and 100^-1/2 = 0.1.
    # An interleaved layout would turn (0, 1) and (2, 3).
    x = jnp.array([1.0, 2.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    got = turned(x, 3, theta=100.0)[0, 0, 0]
    want = [np.cos(3.0), 2 * np.cos(0.3), np.sin(3.0), 2 * np.sin(0.3)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rotated_products_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in "qk")

    def product(at_q, at_k):
        a = turned(q, at_q, theta=10_000.0)
        return float((a * turned(k, at_k, theta=10_000.0)).sum())

    np.testing.assert_allclose(product(7, 4), product(53, 50), rtol=1e-4)
    assert abs(product(7, 4) - product(4, 7)) > 1e-3


def attend_by_loops(q, k, v, mask):
    out = np.zeros(q.shape)
    group = q.shape[2] // k.shape[2]
    for b, t, n in np.ndindex(q.shape[:3]):
        seen = np.flatnonzero(mask[b, t])
        scores = [q[b, t, n] @ k[b, c, n // group] / q.shape[3] ** 0.5 for c in seen]
        weights = np.exp(scores - np.max(scores))
        weights /= weights.sum()
        out[b, t, n] = sum(
            w * v[b, c, n // group] for w, c in zip(weights, seen, strict=True)
        )
    return out


def test_attend_matches_loops_over_heads():
    rng = np.random.default_rng(1)
    q = rng.normal(size=(2, 3, 4, 6)).astype(np.float32)
    k, v = (rng.normal(size=(2, 5, 2, 6)).astype(np.float32) for _ in "kv")
    mask = rng.random((2, 3, 5)) < 0.6
    mask[..., 0] = True
    k_in, v_in = (jnp.asarray(x.swapaxes(1, 2)) for x in (k, v))
    got = attend(jnp.asarray(q), k_in, v_in, jnp.asarray(mask))
    np.testing.assert_allclose(got, attend_by_loops(q, k, v, mask), atol=2e-5)


@pytest.mark.medium
def test_a_convolution_by_hand():
    # Two inputs a token, (p, q). The gate before is p, the value p, the gate after q;
    # taps 1, 10, 100 from the oldest to the newest. Two segments: three tokens and one.
    shape = helpers.config(4, hidden_size=2, **helpers.HYBRID)

    def linear(_, n_in, n_out, rngs, **options):
        return Linear(n_in, n_out, rngs, **options)

    conv = ShortConv(shape, "conv", linear, nnx.Rngs(0))
    before, after, value = ([[1, 1], [0, 0]], [[0, 0], [1, 1]], [[1, 1], [0, 0]])
    conv.into.kernel[...] = jnp.hstack(
        [jnp.array(x, float) for x in (before, after, value)]
    )
    conv.taps[...] = jnp.array([[1.0, 1.0], [10.0, 10.0], [100.0, 100.0]])
    conv.out.kernel[...] = jnp.eye(2)
    x = jnp.array([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0]])[None]
    positions = jnp.array([[0, 1, 2, 0]])
    place = Placement(positions, jnp.ones((1, 4), int))
    want = [2 * 100, 5 * (900 + 10), 11 * (4900 + 90 + 1), 17 * 16900]
    got = conv(x, place, rotation(shape, positions), None)[0]
    np.testing.assert_allclose(got[0, :, 0], want)
    np.testing.assert_allclose(got[0, :, 1], want)


def test_run_mask_by_hand():
    segments = jnp.array([[1, 1, 1, 2, 0]])
    place = Placement(jnp.array([[0, 1, 2, 0, 0]]), segments)
    want = [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    np.testing.assert_array_equal(run_mask(place)[0].astype(int), want)
    want[2][0] = 0  # two tokens back is beyond a window of two
    np.testing.assert_array_equal(run_mask(place, 2)[0].astype(int), want)


def test_readable_by_hand():
    # A run of two at positions 2 and 3; columns 1 to 4 of a cache.
    got = readable(jnp.array([[2, 3]]), 1, 4, None)[0].astype(int)
    np.testing.assert_array_equal(got, [[1, 1, 0, 0], [1, 1, 1, 0]])
    got = readable(jnp.array([[2, 3]]), 1, 4, 2)[0].astype(int)
    np.testing.assert_array_equal(got, [[1, 1, 0, 0], [0, 1, 1, 0]])


@pytest.mark.parametrize("few", [1, 9])
@pytest.mark.parametrize("window", [None, 5])
def test_blocks_of_a_cache_are_the_whole_cache(monkeypatch, window, few):
    rng = np.random.default_rng(2)
    q = jnp.asarray(rng.normal(size=(2, 3, 4, 6)), jnp.float32)
    k, v = (jnp.asarray(rng.normal(size=(2, 2, 32, 6)), jnp.float32) for _ in "kv")
    # The last block is never used: what it holds may not matter.
    k, v = k.at[:, :, 24:].set(1e4), v.at[:, :, 24:].set(jnp.nan)
    place = Placement(jnp.array([[9, 10, 11], [17, 18, 19]]))
    mask = readable(place.positions, 0, 24, window)
    want = attend(q, k[:, :, :24], v[:, :, :24], mask)
    monkeypatch.setattr(layers, "BLOCK_COLUMNS", 4)
    monkeypatch.setattr(layers, "UNBLOCKED", 8)
    monkeypatch.setattr(
        layers, "SHORT_RUN", few
    )  # runs of three: in blocks of 4, or of 8
    got = attend_used(q, KVCache(k, v), place, window)
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_run_is_written_where_its_stream_stands():
    # Capacity 5, runs of 3. The first stream takes 2 tokens at 1; the second none; the
    # third 2 at the end, where a slice of 3 would reach over the edge.
    cached = jnp.zeros((3, 5, 1))
    run = jnp.arange(1.0, 10.0).reshape(3, 3, 1)
    positions = jnp.array([[1, 2, 3], [4, 5, 6], [3, 4, 5]])
    place = Placement(positions, count=jnp.array([2, 0, 2]))
    got = layers._write_run(cached, run, place, 1)[..., 0]
    want = [[0, 1, 2, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 7, 8]]
    np.testing.assert_array_equal(got, want)


def test_rope_scalings_by_hand():
    # Head size 4, theta 100: rates 1 and 0.1.
    base = ModelConfig(vocab_size=4, head_dim=4, rope_theta=100.0)

    def rates(**scaling):
        scaled = dataclasses.replace(base, rope_scaling=RopeScaling(**scaling))
        return rope_rates(scaled)

    np.testing.assert_allclose(rope_rates(base), [1.0, 0.1])
    np.testing.assert_allclose(rates(rope_type="linear", factor=4.0), [0.25, 0.025])
    # llama3 over 40 pi positions: 20 turns and 2. Above 4 turns a rate stays; at 2, a
    # third of the way from 1 to 4, a third of it stays: 0.1 (1/3 + 2/3 / 8).
    got = rates(
        rope_type="llama3",
        factor=8.0,
        original_max_position_embeddings=125,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    turns = 125 * 0.1 / (2 * np.pi)
    kept = (turns - 1) / 3
    np.testing.assert_allclose(got, [1.0, 0.1 * (kept + (1 - kept) / 8)])
    yarn = RopeScaling(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)
    assert yarn.attention_scale == pytest.approx(0.1 * np.log(4.0) + 1.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "rope_type must be one of"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be >= 1"),
        ({"rope_type": "llama3", "factor": 2.0}, "original_max_position_embeddings"),
    ],
)
def test_a_wrong_scaling_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        RopeScaling(**changes)


def test_a_projection_with_everything_by_hand():
    # x W + scale (x A) B + b = 2*3 + 0.5 * (2*5)*7 + 11
    one = Linear(1, 1, nnx.Rngs(0), bias=True, rank=1, scale=0.5)
    for name, value in (("kernel", 3.0), ("lora_a", 5.0), ("lora_b", 7.0)):
        getattr(one, name)[...] = jnp.array([[value]])
    one.bias[...] = jnp.array([11.0])
    assert float(one(jnp.array([[[2.0]]]))[0, 0, 0]) == 6.0 + 35.0 + 11.0
