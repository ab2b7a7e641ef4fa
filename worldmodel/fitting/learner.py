"""The jitted update: tokens -> loss -> gradient -> parameters.

A loss is a pure function (DecoderOutput, Tokens) -> (Ratio, metrics of Ratios).
Gradients of its total are summed over microbatches and divided once by its count, so a
batch of 8 equals two of 4 to float tolerance. Parameters, optimiser state and gradients
are float32 whatever the precision of the passes. An update donates the buffers of the
state that it is given.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from worldmodel.backbone.lora import is_adapter
from worldmodel.backbone.mesh import ROWS, device_put_global, place_rows
from worldmodel.backbone.model import DecoderOutput, Model, apply_decoder
from worldmodel.fitting.arrays import Ratio, safe_count
from worldmodel.fitting.batches import Tokens, rows_of
from worldmodel.fitting.microbatches import MicroBatches
from worldmodel.fitting.optimizer import OptimizerConfig, optimizer

Loss = Callable[..., tuple[Ratio, dict[str, Ratio]]]


def on_logits(loss: Callable[..., tuple[Ratio, dict[str, Ratio]]]) -> Loss:
    """Turn a loss of (logits, Tokens) into one of (DecoderOutput, Tokens)."""

    def of(output: DecoderOutput, batch: Tokens, **args: Any):
        return loss(output.logits(), batch, **args)

    return of


class TrainState(NamedTuple):
    """Parameters, optimiser state and the number of updates made.

    `average` is the parameters' exponential moving average, where one is kept.
    """

    params: nnx.State
    opt: optax.OptState
    step: jax.Array
    average: nnx.State | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How a pass is computed, and which parameters it trains.

    `dtype` is that of forward and backward pass (norms, softmax and losses stay
    float32); with `remat` a backward pass computes each layer again, in less memory.
    `frozen` names parameters by the start of their dotted path ("embed", "layers.0");
    of a model with LoRA only the additions train, and what is named in `beside` (new
    tokens need their embeddings). With `ema` above 0 the state keeps an average of the
    parameters, of that decay an update.
    """

    dtype: str = "float32"
    remat: bool = False
    frozen: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    ema: float = 0.0

    def __post_init__(self):
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}"
            )
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1), got {self.ema}")


def split_trainable(
    params: nnx.State,
    model: Model,
    frozen: Sequence[str],
    extra_trainable: Sequence[str] = (),
) -> tuple[nnx.State, nnx.State]:
    """(trained, fixed) parameters, as ComputeConfig says.

    Raises:
      ValueError: a name that fits no parameter, or nothing left to train.
    """
    names = [".".join(map(str, path)) for path, _ in nnx.to_flat_state(params)]
    for setting, starts in (("frozen", frozen), ("beside", extra_trainable)):
        for start in starts:
            if not any(_under(name, start) for name in names):
                raise ValueError(f"{setting}: no parameter begins with {start!r}")

    def trains(path: tuple[Any, ...], leaf: Any) -> bool:
        del leaf
        name = ".".join(map(str, path))
        if any(_under(name, start) for start in frozen):
            return False
        named = any(_under(name, start) for start in extra_trainable)
        return model.lora is None or is_adapter(path) or named

    trainable, fixed = nnx.split_state(params, trains, ...)
    if not jax.tree.leaves(trainable):
        raise ValueError(f"frozen {list(frozen)} leaves nothing to train")
    return trainable, fixed


def _under(name: str, start: str) -> bool:
    return f"{name}.".startswith(f"{start}.")


class Learner:
    """Updates one model under one loss; compiled once for each batch shape.

    Where the model lies on a mesh, rows of a batch are spread over its data axes.
    `micro` is how many rows are computed at once: all, until memory runs out.
    """

    def __init__(
        self,
        model: Model,
        config: OptimizerConfig,
        loss: Loss,
        compute: ComputeConfig | None = None,
    ):
        compute = ComputeConfig() if compute is None else compute
        self._averages = compute.ema > 0
        self.model, self._tx, self._mesh = model, optimizer(config), model.mesh
        self._split = functools.partial(
            split_trainable,
            model=model,
            frozen=compute.frozen,
            extra_trainable=compute.beside,
        )
        passes = functools.partial(_metrics, model.definition, loss, compute)
        self._grad = jax.jit(
            functools.partial(_gradient, passes, self._split),
            compiler_options=_memory_saving_options(),
        )
        self._value = jax.jit(lambda *args, **kw: passes(*args, **kw)[1])
        self._apply = jax.jit(
            functools.partial(_apply, self._tx, self._split, compute.ema),
            compiler_options=_memory_saving_options(),
            donate_argnums=0,
        )
        self._add = jax.jit(_added, donate_argnums=0)
        shares = [] if model.mesh is None else [model.mesh.shape[a] for a in ROWS]
        self.microbatches = MicroBatches(min_rows=math.prod(shares))

    def init(self, params: nnx.State | None = None, *, copy: bool = True) -> TrainState:
        """A fresh optimiser around the model's (or the given) parameters.

        Updates take over a state's buffers; without `copy` those of the parameters
        given here, which are not to be used again.
        """
        params = self.model.params if params is None else params
        params = copied(params) if copy else params
        trainable, _ = self._split(params)
        opt = jax.jit(self._tx.init, out_shardings=self._layouts(trainable))(trainable)
        step = jnp.zeros((), jnp.int32)
        if self._mesh is not None:
            step = device_put_global(
                np.asarray(step), NamedSharding(self._mesh, PartitionSpec())
            )
        average = copied(params) if self._averages else None
        return TrainState(params, opt, step, average)

    def _layouts(self, trainable: nnx.State) -> Any:
        """Moments lie as their parameters do; counts everywhere."""
        if self._mesh is None:
            return None
        replicated = NamedSharding(self._mesh, PartitionSpec())
        flat, _ = jax.tree_util.tree_flatten_with_path(trainable)
        by_path = {tuple(map(str, path)): leaf for path, leaf in flat}

        def layout(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
            # A moment's path ends with that of its parameter, whatever holds it.
            keys = tuple(map(str, path))
            ends = (by_path.get(keys[start:]) for start in range(len(keys)))
            parameter = next((p for p in ends if p is not None), None)
            if parameter is None or parameter.shape != leaf.shape:
                return replicated
            return parameter.sharding

        shapes = jax.eval_shape(self._tx.init, trainable)
        return jax.tree_util.tree_map_with_path(layout, shapes)

    def update(
        self, state: TrainState, batches: Sequence[Tokens], **loss_args: Any
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """One step on the sum of the microbatches; metrics as Ratios.

        The state given is used up. Where memory runs out batches are split
        (microbatches.py); so `loss_args` must be the same for all rows.

        Raises:
          MemoryError: not even one row fits.
        """
        grads, metrics = None, {}
        for batch in batches:
            for new_grads, new_metrics in self._pieces(
                batch, lambda part: self.gradient(state.params, part, **loss_args)
            ):
                grads = new_grads if grads is None else self.added(grads, new_grads)
                metrics = merge(metrics, new_metrics)
        return self.apply(state, grads, metrics)

    def _pieces(self, batch: Tokens, compute: Callable[[Tokens], Any]) -> Iterator[Any]:
        rows, width = batch.ids.shape

        def of(start: int, stop: int, size: int) -> Any:
            if size == rows:
                return compute(batch)
            return compute(rows_of(batch, np.arange(start, stop), size))

        return self.microbatches.over(rows, rows, width, of)

    def gradient(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> tuple[Any, dict[str, Ratio]]:
        """The gradient of the loss's total on one microbatch, and its metrics."""
        return self._grad(params, self._placed(batch), **loss_args)

    def scratch(self, params: nnx.State, batch: Tokens, **loss_args: Any) -> int:
        """Bytes that `gradient` holds beside the parameters and the gradient.

        Raises:
          RuntimeError: the backend's compiler does not tell.
        """
        lowered = self._grad.lower(params, self._placed(batch), **loss_args)
        analysis = lowered.compile().memory_analysis()
        if analysis is None:
            raise RuntimeError("this backend's compiler does not tell its memory")
        return analysis.temp_size_in_bytes

    def added(self, grads: Any, more: Any) -> Any:
        """The gradients of both microbatches together; the first is used up."""
        return self._add(grads, more)

    def apply(
        self, state: TrainState, grads: Any, metrics: dict[str, Ratio]
    ) -> tuple[TrainState, dict[str, Ratio]]:
        """One step along summed gradients, divided by the loss's count.

        The state given is used up.
        """
        state, norm = self._apply(state, grads, metrics["loss"].count)
        return state, metrics | {"grad_norm": Ratio(norm, jnp.ones(()))}

    def evaluate(
        self, params: nnx.State, batch: Tokens, **loss_args: Any
    ) -> dict[str, Ratio]:
        """The loss's metrics without an update; split where memory runs out."""
        metrics: dict[str, Ratio] = {}
        for new_metrics in self._pieces(
            batch, lambda part: self._value(params, self._placed(part), **loss_args)
        ):
            metrics = merge(metrics, new_metrics)
        return metrics

    def _placed(self, batch: Tokens) -> Tokens:
        return batch if self._mesh is None else place_rows(batch, self._mesh)


def merge(a: dict[str, Ratio], b: dict[str, Ratio]) -> dict[str, Ratio]:
    """Metrics of two microbatches as those of their union."""
    return a | {k: a[k] + v if k in a else v for k, v in b.items()}


def copied(params: nnx.State) -> nnx.State:
    """The same parameters in buffers of their own."""
    return jax.tree.map(jnp.copy, params)


def cast(params: nnx.State, dtype: str) -> nnx.State:
    """Matrices in the dtype of the passes; norms and biases stay as they are."""
    return jax.tree.map(lambda x: x.astype(dtype) if x.ndim > 1 else x, params)


def ema(average: Any, params: Any, decay: float) -> Any:
    """The exponential moving average of a tree of parameters, one step on."""
    return jax.tree.map(lambda a, p: a + (1.0 - decay) * (p - a), average, params)


@functools.cache
def _memory_saving_options() -> dict[str, str]:
    """Compiler options by which a program frees buffers early.

    A CPU's compiler orders a program for many cores, which keeps the inputs of all
    weight gradients to the end and undoes `remat`: 1.6 GB against 0.2 for a step of
    135 M parameters, in the same time (docs/LOG.md, 2026-11-22).
    """
    options = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # a compiler before or after this option
        return {}
    return options


def _metrics(definition, loss, compute, params, batch, **loss_args):
    params = cast(params, compute.dtype)
    rows = (batch.ids, batch.position, batch.segment)
    output = apply_decoder(definition, params, *rows, remat=compute.remat)
    ratio, metrics = loss(output, batch, **loss_args)
    return ratio.total, metrics | {"loss": ratio}


def _gradient(passes, split, params, batch, **loss_args):
    trainable, fixed = split(params)

    def total(trainable):
        return passes(nnx.merge_state(trainable, fixed), batch, **loss_args)

    (_, metrics), grads = jax.value_and_grad(total, has_aux=True)(trainable)
    return grads, metrics


def _added(grads, more):
    return jax.tree.map(jnp.add, grads, more)


def _apply(tx, split, decay, state, grads, count):
    trainable, fixed = split(state.params)
    grads = jax.tree.map(lambda g: g / safe_count(count), grads)
    norm = optax.tree.norm(grads)
    updates, opt = tx.update(grads, state.opt, trainable)
    trainable: Any = optax.apply_updates(trainable, updates)
    params, average = nnx.merge_state(trainable, fixed), state.average
    if average is not None:
        average = ema(average, params, decay)
    return TrainState(params, opt, state.step + 1, average), norm


def require_finite(name: str, value: float, step: int) -> None:
    """Stop the run on a number that is not finite.

    Raises:
      FloatingPointError: naming the metric and the update.
    """
    if not jnp.isfinite(value):
        raise FloatingPointError(f"{name} is {value} at update {step}")
