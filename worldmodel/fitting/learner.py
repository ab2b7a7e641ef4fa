"""The jitted update: tokens -> loss -> gradient -> parameters.

A loss is a pure function (DecoderOutput, Tokens) -> (Ratio, metrics of Ratios).
Gradients of its total are summed over microbatches and divided once by its count, so a
batch of 8 equals two of 4 to float tolerance. Parameters, optimiser state and gradients
are float32 whatever the precision of the passes. An update donates the buffers of the
state that it is given.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldmodel.backbone.lora import is_adapter
from worldmodel.backbone.mesh import ROWS, device_put_global, place_rows
from worldmodel.backbone.model import DecoderOutput, Model, apply_decoder
from worldmodel.fitting.arrays import Ratio, safe_count
from worldmodel.fitting.batches import Tokens, rows_of
from worldmodel.fitting.config import ComputeConfig, OptimizerConfig
from worldmodel.fitting.microbatches import MicroBatches
from worldmodel.fitting.optimizer import optimizer

Loss = Callable[..., tuple[Ratio, dict[str, Ratio]]]

BOUND = 64
"""Functions with arguments that are held, with their compiled programs; those that were
not used for longest are let go, and compiled again where they are needed."""


@functools.lru_cache(maxsize=BOUND, typed=True)
def bind(function: Callable[..., Any], *args: Any, **settings: Any):
    """Return a function with arguments bound; the same object for equal arguments.

    `jax.jit` compiles once for each function object. Those of `functools.partial` are
    never equal, so that every fit would be traced and compiled anew. All arguments are
    hashable.
    """
    return functools.partial(function, *args, **settings)


@functools.lru_cache(maxsize=BOUND)
def on_logits(loss: Callable[..., tuple[Ratio, dict[str, Ratio]]]) -> Loss:
    """Turn a loss of (logits, Tokens) into one of (DecoderOutput, Tokens)."""

    def of(output: DecoderOutput, batch: Tokens, **args: Any):
        return loss(output.logits(), batch, **args)

    return of


class TrainState(NamedTuple):
    """Parameters, optimiser state and the number of updates.

    `average` is the exponential moving average of the parameters, if one is kept.
    """

    params: nnx.State
    opt: optax.OptState
    step: jax.Array
    average: nnx.State | None = None


def split_trainable(
    params: nnx.State, compute: ComputeConfig, *, lora: bool
) -> tuple[nnx.State, nnx.State]:
    """Return (trainable, fixed) parameters, as ComputeConfig describes.

    Args:
      lora: whether the model has adapters, which then are trained alone.

    Raises:
      ValueError: a name fits no parameter, or no parameter is left to train.
    """
    frozen, extra_trainable = compute.frozen, compute.extra_trainable
    names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(params)]
    for setting, starts in (("frozen", frozen), ("extra_trainable", extra_trainable)):
        for start in starts:
            if not any(_under(name, start) for name in names):
                raise ValueError(f"{setting}: no parameter begins with {start!r}")

    def trains(path: tuple[Any, ...], leaf: Any) -> bool:
        del leaf
        name = ".".join(map(str, path))
        if any(_under(name, start) for start in frozen):
            return False
        named = any(_under(name, start) for start in extra_trainable)
        return not lora or is_adapter(path) or named

    trainable, fixed = nnx.split_state(params, trains, ...)
    if not jax.tree.leaves(trainable):
        raise ValueError(f"frozen {list(frozen)} leaves nothing to train")
    return trainable, fixed


def _under(name: str, start: str) -> bool:
    return f"{name}.".startswith(f"{start}.")


class Learner:
    """Updates one model under one loss; compiled once for each batch shape.

    Learners of equal models, settings and losses (`bind`) share their programs: a run
    fits many policies, and each would be traced and compiled again. Where the model
    lies on a mesh, rows of a batch are spread over its data axes.
    `microbatches` decides how many rows are computed at once: all, until memory runs
    out.
    """

    def __init__(
        self,
        model: Model,
        config: OptimizerConfig,
        loss: Loss,
        compute: ComputeConfig | None = None,
        *,
        steps: int | None = None,
    ):
        """Build the learner; the learning rate decays over the `steps` of a fit."""
        compute = ComputeConfig() if compute is None else compute
        self._averages = compute.ema_decay > 0
        self.model, self._mesh = model, model.mesh
        self._tx = optimizer(config, steps)
        lora = model.lora is not None
        self._split = bind(split_trainable, compute=compute, lora=lora)
        passes = bind(_loss_and_metrics, model.definition, loss, compute)
        self._grad = jax.jit(
            bind(_gradient, passes, self._split),
            compiler_options=_memory_saving_options(),
        )
        self._value = jax.jit(bind(_metrics, passes))
        # The state is donated, so that old and new parameters and moments do not take
        # memory at the same time.
        self._apply = jax.jit(
            bind(_apply, self._tx, self._split, compute.ema_decay),
            compiler_options=_memory_saving_options(),
            donate_argnums=0,
        )
        shares = [] if model.mesh is None else [model.mesh.shape[a] for a in ROWS]
        self.microbatches = MicroBatches(min_rows=math.prod(shares))

    def init(self, params: nnx.State | None = None, *, copy: bool = True) -> TrainState:
        """Return the state of a fresh optimiser around the (given) parameters.

        Updates donate the buffers of a state; without `copy` those of the given
        parameters, which must then not be used again.
        """
        params = self.model.params if params is None else params
        params = copy_params(params) if copy else params
        trainable, _ = self._split(params)
        layouts = None
        if self._mesh is not None:
            layouts = _layouts(trainable, self._mesh, self._tx)
        opt = jax.jit(self._tx.init, out_shardings=layouts)(trainable)
        step = jnp.zeros((), jnp.int32)
        if self._mesh is not None:
            step = device_put_global(
                np.asarray(step), NamedSharding(self._mesh, PartitionSpec())
            )
        average = copy_params(params) if self._averages else None
        return TrainState(params, opt, step, average)

    def update(
        self, state: TrainState, batches: Sequence[Tokens], **loss_args: Any
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """Make one step on the sum of the microbatches; return state and metrics.

        The given state is donated. Where memory runs out, batches are split
        (microbatches.py), so `loss_args` must be the same for all rows.

        Raises:
          MemoryError: not even one row fits.
        """
        grads, metrics = None, {}
        for batch in batches:
            for new_grads, new_metrics in self._pieces(
                batch, lambda part: self.gradient(state.params, part, **loss_args)
            ):
                grads = (
                    new_grads if grads is None else self.add_gradients(grads, new_grads)
                )
                metrics = merge(metrics, new_metrics)
        return self.apply(state, grads, metrics)

    def _pieces(self, batch: Tokens, compute: Callable[[Tokens], Any]) -> Iterator[Any]:
        rows, width = batch.ids.shape
        return self.microbatches.run(
            rows,
            rows,
            width,
            lambda start, stop, size: compute(
                batch if size == rows else rows_of(batch, np.arange(start, stop), size)
            ),
        )

    def gradient(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> tuple[Any, dict[str, Ratio]]:
        """Return the gradient of the loss's total on one microbatch, and metrics."""
        return self._grad(params, self._place(batch), **loss_args)

    def scratch(self, params: nnx.State, batch: Tokens, **loss_args: Any) -> int:
        """Return the bytes that `gradient` needs besides parameters and gradient.

        Raises:
          RuntimeError: the backend's compiler does not report them.
        """
        lowered = self._grad.lower(params, self._place(batch), **loss_args)
        analysis = lowered.compile().memory_analysis()
        if analysis is None:
            raise RuntimeError("this backend's compiler does not report its memory")
        return analysis.temp_size_in_bytes

    def add_gradients(self, grads: Any, more: Any) -> Any:
        """Return the sum of two gradients; the first is donated."""
        return _add_trees(grads, more)

    def apply(
        self, state: TrainState, grads: Any, metrics: dict[str, Ratio]
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """Make one step along summed gradients, divided by the loss's count.

        The given state is donated.
        """
        state, norm = self._apply(state, grads, metrics["loss"].count)
        return state, metrics | {"grad_norm": Ratio(norm, jnp.ones(()))}

    def evaluate(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> dict[str, Ratio]:
        """Return the loss's metrics without an update; split if memory runs out."""
        metrics: dict[str, Ratio] = {}
        for new_metrics in self._pieces(
            batch, lambda part: self._value(params, self._place(part), **loss_args)
        ):
            metrics = merge(metrics, new_metrics)
        return metrics

    def _place(self, batch: Tokens) -> Tokens:
        return batch if self._mesh is None else place_rows(batch, self._mesh)


def _layouts(trainable: nnx.State, mesh: Mesh, tx: optax.GradientTransformation) -> Any:
    """Return layouts: moments lie as their parameters do, counts are replicated."""
    replicated = NamedSharding(mesh, PartitionSpec())
    flat, _ = jax.tree_util.tree_flatten_with_path(trainable)
    by_path = {tuple(map(str, path)): leaf for path, leaf in flat}

    def layout(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        # A moment's path ends with its parameter's, whatever the prefix.
        keys = tuple(map(str, path))
        ends = (by_path.get(keys[start:]) for start in range(len(keys)))
        parameter = next((p for p in ends if p is not None), None)
        if parameter is None or parameter.shape != leaf.shape:
            return replicated
        return parameter.sharding

    shapes = jax.eval_shape(tx.init, trainable)
    return jax.tree_util.tree_map_with_path(layout, shapes)


def merge(a: dict[str, Ratio], b: dict[str, Ratio]) -> dict[str, Ratio]:
    """Return the metrics of two microbatches as those of their union."""
    return a | {k: a[k] + v if k in a else v for k, v in b.items()}


def copy_params(params: nnx.State) -> nnx.State:
    """Return the same parameters in new buffers."""
    return jax.tree.map(jnp.copy, params)


def cast(params: nnx.State, dtype: str) -> nnx.State:
    """Return the parameters with matrices in `dtype`; norms and biases unchanged."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, params)


def ema(average: Any, params: Any, decay: float) -> Any:
    """Return the exponential moving average of parameters after one step."""
    return jax.tree.map(lambda a, p: a + (1.0 - decay) * (p - a), average, params)


@functools.cache
def _memory_saving_options() -> dict[str, str]:
    """Return compiler options with which a program frees buffers early.

    The CPU compiler orders a program for many cores, which keeps the inputs of all
    weight gradients to the end and undoes `remat`: 1.6 GB against 0.2 for a step of 135
    M parameters, in the same time (docs/LOG.md, 2026-11-22).
    """
    options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # the compiler lacks this option
        return {}
    return options


def _loss_and_metrics(definition, loss, compute, params, batch, read=None, **loss_args):
    # Cast inside the gradient: its result is float32, as the parameters are.
    params = cast(params, compute.dtype)
    rows = (batch.ids, batch.position, batch.segment)
    output = apply_decoder(definition, params, *rows, remat=compute.remat, read=read)
    ratio, metrics = loss(output, batch, **loss_args)
    return ratio.total, metrics | {"loss": ratio}


def _metrics(passes, *args, **kw):
    return passes(*args, **kw)[1]


def _gradient(passes, split, params, batch, **loss_args):
    # Differentiated by the trainable parameters alone: frozen ones need no gradient,
    # neither its memory nor its matrix products.
    trainable, fixed = split(params)

    def total(trainable):
        return passes(nnx.merge_state(trainable, fixed), batch, **loss_args)

    (_, metrics), grads = jax.value_and_grad(total, has_aux=True)(trainable)
    return grads, metrics


@functools.partial(jax.jit, donate_argnums=0)
def _add_trees(grads, more):
    return jax.tree.map(jnp.add, grads, more)


def _apply(tx, split, decay, state, grads, count):
    trainable, fixed = split(state.params)
    # Divided once, here: means of microbatches would weight short ones too much.
    grads = jax.tree.map(lambda g: g / safe_count(count), grads)
    norm = optax.tree.norm(grads)
    updates, opt = tx.update(grads, state.opt, trainable)
    trainable: Any = optax.apply_updates(trainable, updates)
    params, average = nnx.merge_state(trainable, fixed), state.average
    # No bias correction (as in Adam) is needed: the average starts at the parameters.
    if average is not None:
        average = ema(average, params, decay)
    return TrainState(params, opt, state.step + 1, average), norm


def require_finite(name: str, value: float, step: int) -> None:
    """Raise where a metric is not finite.

    Raises:
      FloatingPointError: the message names the metric and the update.
    """
    if not jnp.isfinite(value):
        raise FloatingPointError(f"{name} is {value} at update {step}")
