"""The jitted update: tokens -> loss -> gradient -> parameters.

A loss is a pure function (logits, Tokens) -> (Ratio, metrics of Ratios); gradients of
its total are summed over microbatches and divided once by its count, so a batch of 8
equals two of 4 to float tolerance.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import nnx

from worldmodel.backbone.model import Model, forward
from worldmodel.fitting.arrays import Ratio
from worldmodel.fitting.batches import Tokens

Loss = Callable[..., tuple[Ratio, dict[str, Ratio]]]


class TrainState(NamedTuple):
    """Parameters, optimiser state and the number of updates made."""

    params: nnx.State
    opt: optax.OptState
    step: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Warm-up and cosine decay to a hundredth; gradients clipped by norm.

    A step that stays large to the end leaves rare events too improbable where batches
    are small: normalised updates follow most batches, not their mean (docs/LOG.md).

    `kind` "muon" orthogonalises the updates of matrices (arXiv:2502.16982) and uses
    Adam elsewhere; "adamw" uses Adam everywhere.
    """

    kind: str = "adamw"
    learning_rate: float = 2e-3
    warmup: int = 20
    steps: int = 1000
    decay: bool = True
    weight_decay: float = 0.01
    clip: float = 1.0
    beta2: float = 0.98

    def __post_init__(self):
        if self.kind not in ("adamw", "muon"):
            raise ValueError(f"kind must be 'adamw' or 'muon', got {self.kind!r}")
        if self.learning_rate <= 0 or self.clip <= 0:
            raise ValueError(
                "learning_rate and clip must be > 0, got "
                f"{self.learning_rate} and {self.clip}"
            )
        if self.steps < 1 or self.warmup < 0:
            raise ValueError(
                f"steps must be >= 1 and warmup >= 0, got {self.steps}, {self.warmup}"
            )


def optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """The gradient transformation of a config."""
    c = config
    warmup = min(c.warmup, max(c.steps - 1, 1))
    if c.decay:
        rate: Any = optax.warmup_cosine_decay_schedule(
            c.learning_rate / (warmup + 1), c.learning_rate, warmup,
            max(c.steps, warmup + 1),
            c.learning_rate * 0.01,
        )  # fmt: skip
    else:
        rate = optax.linear_schedule(
            c.learning_rate / (warmup + 1), c.learning_rate, max(warmup, 1)
        )
    if c.kind == "muon":
        step = optax.contrib.muon(rate, adam_b2=c.beta2, weight_decay=c.weight_decay)
    else:
        step = optax.adamw(rate, b2=c.beta2, weight_decay=c.weight_decay)
    return optax.chain(optax.clip_by_global_norm(c.clip), step)


class Learner:
    """Updates one model under one loss; compiled once for each batch shape."""

    def __init__(self, model: Model, config: OptimizerConfig, loss: Loss):
        self.model = model
        self._tx = optimizer(config)
        self._grad = jax.jit(functools.partial(_gradient, model.definition, loss))
        self._value = jax.jit(functools.partial(_value, model.definition, loss))
        self._apply = jax.jit(functools.partial(_apply, self._tx))

    def init(self, params: nnx.State | None = None) -> TrainState:
        """A fresh optimiser around the model's (or the given) parameters."""
        params = self.model.params if params is None else params
        return TrainState(params, self._tx.init(params), jnp.zeros((), jnp.int32))

    def update(
        self, state: TrainState, batches: Sequence[Tokens], **loss_args: Any
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """One step on the sum of the microbatches; metrics as Ratios."""
        grads, metrics = None, {}
        for batch in batches:
            one, found = self.gradient(state.params, batch, **loss_args)
            grads = one if grads is None else jax.tree.map(jnp.add, grads, one)
            metrics = merge(metrics, found)
        return self.apply(state, grads, metrics)

    def gradient(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> tuple[Any, dict[str, Ratio]]:
        """The gradient of the loss's total on one microbatch, and its metrics."""
        return self._grad(params, batch, **loss_args)

    def apply(
        self, state: TrainState, grads: Any, metrics: dict[str, Ratio]
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """One step along summed gradients, divided by the loss's count."""
        state, norm = self._apply(state, grads, metrics["loss"].count)
        return state, metrics | {"grad_norm": Ratio(norm, jnp.ones(()))}

    def evaluate(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> dict[str, Ratio]:
        """The loss's metrics without an update."""
        return self._value(params, batch, **loss_args)


def merge(a: dict[str, Ratio], b: dict[str, Ratio]) -> dict[str, Ratio]:
    """Metrics of two microbatches as those of their union."""
    return a | {k: a[k] + v if k in a else v for k, v in b.items()}


def _value(definition, loss, params, batch, **loss_args):
    logits = forward(definition, params, batch.ids, batch.position, batch.segment)
    ratio, metrics = loss(logits, batch, **loss_args)
    return metrics | {"loss": ratio}


def _gradient(definition, loss, params, batch, **loss_args):
    def total(params):
        logits = forward(definition, params, batch.ids, batch.position, batch.segment)
        ratio, metrics = loss(logits, batch, **loss_args)
        return ratio.total, metrics | {"loss": ratio}

    (_, metrics), grads = jax.value_and_grad(total, has_aux=True)(params)
    return grads, metrics


def _apply(tx, state, grads, count):
    grads = jax.tree.map(lambda g: g / jnp.maximum(count, 1.0), grads)
    norm = optax.tree.norm(grads)
    updates, opt = tx.update(grads, state.opt, state.params)
    params: Any = optax.apply_updates(state.params, updates)
    return TrainState(params, opt, state.step + 1), norm


def require_finite(name: str, value: float, step: int) -> None:
    """Stop the run on a number that is not finite.

    Raises:
      FloatingPointError: naming the metric and the update.
    """
    if not jnp.isfinite(value):
        raise FloatingPointError(f"{name} is {value} at update {step}")
