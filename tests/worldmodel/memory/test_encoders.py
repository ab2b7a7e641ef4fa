import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.backbone.model import apply_decoder
from worldmodel.memory.encoders import Hidden, Lexical
from worldmodel.text import prompts

PAIRS = [
    (("the lamp is off",), "press lamp"),
    (("a wide garden", "a rose"), "pick rose"),
    ((), ""),
    (("the lamp is off",), "press lamp"),
]


def test_lexical_vectors_are_told_apart_by_state_and_action():
    one, two, _, again = Lexical(64).encode(PAIRS)
    np.testing.assert_array_equal(one, again)
    assert one @ two < 0.6
    np.testing.assert_allclose(np.linalg.norm(one), 1, rtol=1e-5)


@pytest.mark.slow
def test_a_hidden_vector_is_the_last_state_of_the_text_alone(text_model, tok):
    results = Hidden(text_model, tok).encode(PAIRS)
    assert results.shape == (4, text_model.config.hidden_size)
    for (state, action), vector in zip(PAIRS, results, strict=True):
        ids = [
            *prompts.state_ids(tok, state),
            tok.control("action"),
            *tok.encode(action),
        ]
        row, at = jnp.asarray([ids]), jnp.arange(len(ids))[None]
        hidden = apply_decoder(
            text_model.definition, text_model.params, row, at, jnp.ones_like(row)
        ).hidden[0, -1]
        want = np.asarray(hidden) / np.linalg.norm(hidden)
        np.testing.assert_allclose(vector, want, atol=1e-5)
    # Not a constant: another text, another vector.
    assert results[0] @ results[1] < 0.999


def test_no_pairs(text_model, tok):
    assert Lexical(8).encode([]).shape == (0, 8)
    size = text_model.config.hidden_size
    assert Hidden(text_model, tok).encode([]).shape == (0, size)
