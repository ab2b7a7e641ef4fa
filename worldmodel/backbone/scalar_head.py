"""A decoder with a scalar head: one number for each column, in place of logits.

A critic reads values from it, and a reward model rewards.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float

from worldmodel.backbone.mesh import device_put_global, parameter_sharding
from worldmodel.backbone.model import Model

HEAD = "head"
"""The first name of the path of the scalar head's parameter."""


def with_scalar_head(
    model: Model, initial: Float[np.ndarray, "H D"] | None = None
) -> Model:
    """Return the model with a scalar head, which is zero everywhere, or `initial`.

    Several heads give as many numbers for each column.
    """
    decoder = nnx.merge(model.definition, model.params)
    config = dataclasses.replace(model.config, tie_word_embeddings=False)
    decoder.config = config
    # Zero: a critic starts from the value 0 everywhere, not from noise.
    if initial is None:
        initial = np.zeros((1, config.hidden_size), np.float32)
    decoder.head = nnx.Param(place_head(initial, model.mesh))
    definition, params = nnx.split(decoder)
    return model._replace(definition=definition, params=params, config=config)


def place_head(head: np.ndarray, mesh: Mesh | None) -> jax.Array:
    """Return a scalar head as an array that lies where the model's other ones do."""
    if mesh is None:
        return jnp.asarray(head)
    return device_put_global(head, parameter_sharding((HEAD,), head.shape, mesh))
