import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone.model import (
    Place,
    ShortConv,
    attend,
    create,
    forward,
    rotate,
    segment_mask,
)


def test_rotate_by_hand():
    # Head size 4, theta 100: pairs (0, 2), (1, 3) turn at rates 1 and 100^-1/2 = 0.1.
    # An interleaved layout would turn (0, 1) and (2, 3).
    x = jnp.array([1.0, 2.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
    got = rotate(x, jnp.array([[3]]), 100.0)[0, 0, 0]
    want = [np.cos(3.0), 2 * np.cos(0.3), np.sin(3.0), 2 * np.sin(0.3)]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rotated_products_depend_on_the_distance_only():
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 1, 1, 8)), jnp.float32) for _ in "qk")

    def product(at_q, at_k):
        a = rotate(q, jnp.array([[at_q]]), 10_000.0)
        return float((a * rotate(k, jnp.array([[at_k]]), 10_000.0)).sum())

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
    got = attend(jnp.asarray(q), jnp.asarray(k), jnp.asarray(v), jnp.asarray(mask))
    np.testing.assert_allclose(got, attend_by_loops(q, k, v, mask), atol=2e-5)


def test_a_convolution_by_hand():
    # Two inputs a token, (p, q). The gate before is p, the value p, the gate after q;
    # taps 1, 10, 100 from the oldest to the newest. Two segments: three tokens and one.
    shape = helpers.config(4, hidden_size=2, **helpers.HYBRID)
    conv = ShortConv(shape, nnx.Rngs(0))
    before, after, value = ([[1, 1], [0, 0]], [[0, 0], [1, 1]], [[1, 1], [0, 0]])
    conv.into.kernel[...] = jnp.hstack(
        [jnp.array(x, float) for x in (before, after, value)]
    )
    conv.taps[...] = jnp.array([[1.0, 1.0], [10.0, 10.0], [100.0, 100.0]])
    conv.out.kernel[...] = jnp.eye(2)
    x = jnp.array([[1.0, 2.0], [3.0, 5.0], [7.0, 11.0], [13.0, 17.0]])[None]
    place = Place(jnp.array([[0, 1, 2, 0]]), jnp.ones((1, 4, 4), bool))
    want = [2 * 100, 5 * (900 + 10), 11 * (4900 + 90 + 1), 17 * 16900]
    got = conv(x, place, None)[0]
    np.testing.assert_allclose(got[0, :, 0], want)
    np.testing.assert_allclose(got[0, :, 1], want)


def test_segment_mask_by_hand():
    got = segment_mask(jnp.array([[1, 1, 2, 0]]))[0].astype(int)
    np.testing.assert_array_equal(
        got, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    )


def test_a_packed_row_is_its_segments_apart(family_model):
    one, two = [3, 1, 4, 1, 5], [9, 2, 6]
    m = family_model
    ids = np.zeros((1, 32), np.int32)
    position, segment = np.zeros_like(ids), np.zeros_like(ids)
    ids[0, :8], position[0, :8] = one + two, [0, 1, 2, 3, 4, 0, 1, 2]
    segment[0, :8] = [1] * 5 + [2] * 3
    packed = helpers.packed_pass(m.definition, m.params, ids, position, segment)[0]
    np.testing.assert_allclose(packed[:5], helpers.full_pass(m, one), atol=1e-5)
    np.testing.assert_allclose(packed[5:8], helpers.full_pass(m, two), atol=1e-5)
    # Without the mask the second segment would read the first one.
    joined = helpers.packed_pass(
        m.definition, m.params, ids, position, np.minimum(segment, 1)
    )[0]
    assert np.abs(np.asarray(packed - joined)[5:8]).max() > 1e-2


def test_no_logit_reads_a_later_token(family_model):
    base = helpers.full_pass(family_model, [3, 1, 4, 1, 5])
    other = helpers.full_pass(family_model, [3, 1, 4, 7, 5])
    np.testing.assert_array_equal(base[:3], other[:3])
    assert (np.abs(base[3:] - other[3:]).max(1) > 1e-2).all()


def test_the_seed_decides_the_parameters():
    shape = helpers.config(13, num_hidden_layers=1)
    one, same, other = (create(shape, seed=s).params for s in (1, 1, 2))
    helpers.assert_trees_equal(one, same)
    assert helpers.distance(one, other) > 0.01


def test_no_rank_is_promoted_in_silence(family_model):
    # Under this setting an axis that lines up by chance is an error, not a number.
    m, row = family_model, np.ones((1, 5), np.int32)
    with jax.numpy_rank_promotion("raise"):
        shape = jax.eval_shape(
            functools.partial(forward, m.definition), m.params, row, row, row
        ).shape
    assert shape == (1, 5, 13)


@pytest.mark.parametrize("changes", [{}, helpers.HYBRID])
def test_fresh_layers_are_close_to_silent(changes):
    shape = helpers.config(13, hidden_size=64, intermediate_size=128, **changes)
    for path, leaf in nnx.to_flat_state(create(shape, seed=0).params):
        value = np.asarray(leaf[...])
        if path[-1] == "kernel":
            loud = 0.02 if path[-2] in ("o", "out", "down") else 1.0
            np.testing.assert_allclose(
                value.std(), loud * value.shape[0] ** -0.5, rtol=0.1, err_msg=str(path)
            )


def test_an_untied_model_scores_with_its_own_head():
    shape = helpers.config(13, num_hidden_layers=1, tie_word_embeddings=False)
    model = helpers.lively_model(shape)
    assert "head" in model.params
    table = np.asarray(model.params["head"][...])
    doubled = jax.tree.map(
        lambda x: 2 * x if np.array_equal(x, table) else x, model.params
    )
    base = helpers.full_pass(model, [1, 2])
    got = helpers.full_pass(model._replace(params=doubled), [1, 2])
    assert np.abs(base).max() > 0.1
    np.testing.assert_allclose(got, 2 * base, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be > 0, got 0"),
        ({"rope_theta": -1.0}, "rope_theta must be > 0"),
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads, got 4 and 3"),
        ({"head_dim": 7}, "head_dim must be even for RoPE, got 7"),
        ({"model_type": "gpt2"}, "model_type must be one of .*, got 'gpt2'"),
        ({"layer_types": ("conv",) * 2}, "layer_types of llama must be 2 of"),
        (helpers.HYBRID | {"layer_types": ("conv",)}, "layer_types of lfm2 must be 2"),
    ],
)
def test_a_shape_that_cannot_be_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        helpers.config(13, **change)
