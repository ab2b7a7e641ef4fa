"""A decoder with a scalar head: one number for each column, in place of logits.

A critic reads values from it, and a reward model rewards.
"""

import dataclasses

import jax.numpy as jnp
from flax import nnx

from worldmodel.backbone.model import Model

HEAD = "head"
"""The first name of the path of the scalar head's parameter."""


def with_scalar_head(model: Model) -> Model:
    """Return the model with a scalar head, which is zero everywhere."""
    decoder = nnx.merge(model.definition, model.params)
    config = dataclasses.replace(model.config, tie_word_embeddings=False)
    decoder.config = config
    # Zero: a critic starts from the value 0 everywhere, not from noise.
    decoder.head = nnx.Param(jnp.zeros((1, config.hidden_size)))
    definition, params = nnx.split(decoder)
    return model._replace(definition=definition, params=params, config=config)
