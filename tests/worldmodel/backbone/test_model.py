import functools

import jax
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone.model import create, forward


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
        ({"layer_types": ("mamba",) * 2}, "layer_types must be 2 of"),
        ({"layer_types": ("conv",)}, "layer_types must be 2 of"),
        ({"attention_bias": "qx"}, "attention_bias must be some of 'qkvo', got 'qx'"),
    ],
)
def test_a_shape_that_cannot_be_is_an_error(change, message):
    with pytest.raises(ValueError, match=message):
        helpers.config(13, **change)
