"""The decoder (flax.nnx): token ids and their placement to hidden states.

One set of weights serves training (a packed row reads within its segments) and
generation (new columns read the cached ones); a Placement selects which.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from worldmodel.backbone.config import CONVOLUTION, LoraConfig, ModelConfig
from worldmodel.backbone.layers import (
    OUTPUT_SCALE,
    Attention,
    ConvCache,
    KVCache,
    LayerCache,
    Linear,
    Norm,
    Placement,
    Rotation,
    ShortConv,
    matmul,
    rotation,
    take_tokens,
)


class Layer(nnx.Module):
    """A token mixer and a gated feed-forward, each on a normalised residual."""

    def __init__(
        self, config: ModelConfig, kind: str, rngs: nnx.Rngs, lora: LoraConfig | None
    ):
        c, width = config, config.hidden_size

        def linear(name: str, *shape: Any, **options: Any) -> Linear:
            if lora is not None and name in lora.targets:
                options |= {"rank": lora.rank, "scale": lora.alpha / lora.rank}
            return Linear(*shape, **options)

        self.input_norm = Norm(width, c.rms_norm_eps)
        mixer = ShortConv if kind == CONVOLUTION else Attention
        self.mixer = mixer(config, kind, linear, rngs)
        self.post_norm = Norm(width, c.rms_norm_eps)
        inner, biased = c.intermediate_size, c.mlp_bias
        self.gate = linear("gate", width, inner, rngs, bias=biased)
        self.up = linear("up", width, inner, rngs, bias=biased)
        self.down = linear("down", inner, width, rngs, gain=OUTPUT_SCALE, bias=biased)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        placement: Placement,
        by: Rotation,
        cache: Any,
        read: Int[Array, "B R"] | None = None,
    ) -> tuple[Float[Array, "B R D"], Any]:
        """Return the layer's output and its cache with the run in it.

        With `read` only the outputs of these tokens of each run are computed.
        """
        mixed, cache = self.mixer(self.input_norm(x), placement, by, cache, read)
        x = (x if read is None else take_tokens(x, read)) + mixed
        h = self.post_norm(x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h)), cache


class Decoder(nnx.Module):
    """A decoder-only transformer."""

    def __init__(
        self, config: ModelConfig, *, rngs: nnx.Rngs, lora: LoraConfig | None = None
    ):
        self.config = config
        init = nnx.initializers.normal(stddev=0.02)
        shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(init(rngs.params(), shape))
        self.layers = nnx.List(
            [Layer(config, kind, rngs, lora) for kind in config.mixers]
        )
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = nnx.Param(init(rngs.params(), shape))

    def __call__(
        self,
        ids: Int[Array, "B T"],
        placement: Placement,
        cache: tuple[LayerCache, ...] | None = None,
        *,
        remat: bool = False,
        read: Int[Array, "B R"] | None = None,
    ) -> tuple[Float[Array, "B R D"], tuple[LayerCache, ...] | None]:
        """Return hidden states after the last norm, and the updated cache.

        With `read`, indices of R tokens of each run, only the hidden states of these
        are returned: of the others the last layer computes no more than the next tokens
        need, its keys and values.
        With `remat` a backward pass stores only the residual stream between layers and
        computes each layer again.
        """
        # Not scaled by the square root of the width: that is Gemma's way, no family's
        # here.
        x = jnp.take(self.embed[...], ids, axis=0)
        by = rotation(self.config, placement.positions)
        caches = []
        for i, layer in enumerate(self.layers):
            tokens = read if i == len(self.layers) - 1 else None
            if remat:
                x = _rematerialized(layer, x, placement, by, tokens)
                continue
            layer_cache = None if cache is None else cache[i]
            x, layer_cache = layer(x, placement, by, layer_cache, tokens)
            caches.append(layer_cache)
        return self.norm(x), None if cache is None else tuple(caches)

    @property
    def table(self) -> Float[Array, "V D"]:
        """The rows that hidden states are scored against."""
        table = self.embed if self.config.tie_word_embeddings else self.head
        return table[...]

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Return vocabulary scores in float32."""
        return matmul(hidden, self.table.T, True)


def _rematerialized(
    layer: Layer, x: Array, placement: Placement, by: Rotation, read: Array | None
) -> Array:
    definition, params = nnx.split(layer)

    # Around a layer each: memory grows with layers by the residual stream alone.
    @jax.checkpoint
    def run(params: Any, x: Array) -> Array:
        return nnx.merge(definition, params)(x, placement, by, None, read)[0]

    return run(params, x)


class Model(NamedTuple):
    """A decoder as a static definition and a pytree of parameters.

    With a `mesh` the parameters and everything computed with them are laid out on it.
    """

    definition: nnx.GraphDef
    params: nnx.State
    config: ModelConfig
    lora: LoraConfig | None = None
    mesh: Mesh | None = None


def empty_cache(
    config: ModelConfig, batch: int, capacity: int, dtype: Any
) -> tuple[LayerCache, ...]:
    """Return a cache of `capacity` columns for each layer."""
    kv, size = config.num_key_value_heads, config.head_dim

    def zeros(*shape: int) -> Array:
        return jnp.zeros((batch, *shape), dtype)

    return tuple(
        ConvCache(zeros(capacity, config.hidden_size))
        if kind == CONVOLUTION
        else KVCache(zeros(kv, capacity, size), zeros(kv, capacity, size))
        for kind in config.mixers
    )


def create(config: ModelConfig, *, seed: int) -> Model:
    """Return a decoder with fresh parameters, equal for equal seeds."""
    definition, params = nnx.split(Decoder(config, rngs=nnx.Rngs(seed)))
    return Model(definition, params, config)


def abstract_model(
    config: ModelConfig, lora: LoraConfig | None = None
) -> tuple[nnx.GraphDef, nnx.State]:
    """Return a decoder's definition and parameter shapes; nothing is allocated."""
    definition, shapes = _abstract_model(config, lora)
    return definition, jax.tree.map(lambda leaf: leaf, shapes)  # a state can be changed


@functools.lru_cache(maxsize=16)
def _abstract_model(config, lora):
    return nnx.split(
        nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), lora=lora))
    )


class DecoderOutput(NamedTuple):
    """Hidden states of packed rows and the table that scores them: logits on demand.

    They are those of all T tokens of a row, or of the R that were read.
    """

    hidden: Float[Array, "B R D"]
    table: Float[Array, "V D"]

    def logits(self) -> Float[Array, "B R V"]:
        """Return vocabulary scores in float32."""
        return matmul(self.hidden, self.table.T, True)


def apply_decoder(
    definition: nnx.GraphDef,
    params: nnx.State,
    ids: Int[Array | np.ndarray, "B T"],
    positions: Int[Array | np.ndarray, "B T"],
    segments: Int[Array | np.ndarray, "B T"],
    *,
    remat: bool = False,
    read: Int[Array | np.ndarray, "B R"] | None = None,
) -> DecoderOutput:
    """Return the decoder's output for packed rows, from which losses are computed.

    With `read` it is the output of these columns of each row.
    """
    decoder = nnx.merge(definition, params)
    placement = Placement(jnp.asarray(positions), jnp.asarray(segments))
    columns = None if read is None else jnp.asarray(read)
    hidden, _ = decoder(jnp.asarray(ids), placement, remat=remat, read=columns)
    return DecoderOutput(hidden, decoder.table)


def forward(
    definition: nnx.GraphDef,
    params: nnx.State,
    ids: Int[Array | np.ndarray, "B T"],
    positions: Int[Array | np.ndarray, "B T"],
    segments: Int[Array | np.ndarray, "B T"],
) -> Float[Array, "B T V"]:
    """Return the logits of packed rows."""
    return apply_decoder(definition, params, ids, positions, segments).logits()
