"""A decoder that scores: one number a column in the place of the vocabulary's.

What a critic reads values off, and a reward model rewards.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from worldmodel.backbone.model import Model

HEAD = "head"
"""The parameter that scores, by the start of its path."""


def with_scalar_head(model: Model) -> Model:
    """The model with one score in the place of the vocabulary's, 0 of everything."""
    decoder = nnx.merge(model.definition, model.params)
    config = dataclasses.replace(model.config, tie_word_embeddings=False)
    decoder.config = config
    decoder.head = nnx.Param(jnp.zeros((1, config.hidden_size)))
    definition, params = nnx.split(decoder)
    return model._replace(definition=definition, params=params, config=config)
