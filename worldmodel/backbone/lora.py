"""Low-rank additions (LoRA, arXiv:2106.09685): attached to a model, merged into it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from worldmodel.backbone.config import LoraConfig
from worldmodel.backbone.model import Model, abstract_model


def is_adapter(path: tuple[Any, ...]) -> bool:
    """Return whether the parameter at `path` is part of a low-rank addition."""
    return path[-1] in ("lora_a", "lora_b")


def attach(model: Model, lora: LoraConfig, *, seed: int) -> Model:
    """Return the model with fresh additions, which change nothing yet (B is zero).

    Raises:
      ValueError: the model has additions already, or no projection is targeted.
    """
    if model.lora is not None:
        raise ValueError("the model has LoRA already: merge it first")
    definition, shapes = abstract_model(model.config, lora)
    leaves = dict(nnx.to_flat_state(model.params))
    flat, key = [], jax.random.key(seed)
    for number, (path, leaf) in enumerate(nnx.to_flat_state(shapes)):
        if not is_adapter(path):
            flat.append((path, leaves[path]))
            continue
        # A is random and B zero: if both were zero neither would have a gradient. The
        # noise is numbered by the order of paths, so parameter names must not change.
        value = jnp.zeros(leaf.shape)
        if path[-1] == "lora_a":
            noise = jax.random.normal(jax.random.fold_in(key, number), leaf.shape)
            value = noise * leaf.shape[0] ** -0.5
        flat.append((path, leaf.replace(value)))
    if len(flat) == len(leaves):
        raise ValueError(f"no projection of this model is among {list(lora.targets)}")
    params = nnx.from_flat_state(flat)
    return model._replace(definition=definition, params=params, lora=lora)


def merge(model: Model) -> Model:
    """Return the same function without additions: W + (alpha / rank) A B."""
    if model.lora is None:
        return model
    scale = model.lora.alpha / model.lora.rank
    leaves = dict(nnx.to_flat_state(model.params))
    flat = []
    for path, leaf in leaves.items():
        if is_adapter(path):
            continue
        merged = leaf
        a, b = (leaves.get((*path[:-1], name)) for name in ("lora_a", "lora_b"))
        if path[-1] == "kernel" and a is not None and b is not None:
            # In float32: a bfloat16 product loses what the additions have learned.
            added = a[...].astype(jnp.float32) @ b[...].astype(jnp.float32) * scale
            merged = leaf.replace((leaf[...] + added).astype(leaf[...].dtype))
        flat.append((path, merged))
    definition, _ = abstract_model(model.config)
    params = nnx.from_flat_state(flat)
    return model._replace(definition=definition, params=params, lora=None)
