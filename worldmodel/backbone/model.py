"""The decoder (flax.nnx): token ids, positions and an attention mask to logits.

One set of weights serves training (a packed row attends within its segments) and
generation (new columns attend to the cached ones); both build a mask and call here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.config import ModelConfig

OUTPUT_SCALE = 0.02
"""Layers start close to silent, so that the token's own embedding does not drown in
them: a lower loss after the same examples (docs/LOG.md, 2026-11-21, one seed)."""


class LayerCache(NamedTuple):
    """Keys and values of one layer's columns."""

    k: Float[Array, "B C K H"]
    v: Float[Array, "B C K H"]


def rotate(
    x: Float[Array, "B T N H"], positions: Int[Array, "B T"], theta: float
) -> Float[Array, "B T N H"]:
    """Rotary embedding (arXiv:2104.09864), the half-split layout of Llama."""
    half = x.shape[-1] // 2
    rates = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (positions[..., None].astype(jnp.float32) * rates[None, None])[
        :, :, None, :
    ]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B C K H"],
    v: Float[Array, "B C K H"],
    mask: Bool[Array, "B T C"],
) -> Float[Array, "B T N H"]:
    """Softmax attention of grouped query heads, in float32."""
    batch, steps, heads, size = q.shape
    grouped = q.reshape(batch, steps, k.shape[2], heads // k.shape[2], size)
    scores = jnp.einsum(
        "btkgh,bckh->bkgtc", grouped, k, preferred_element_type=jnp.float32
    )
    scores = jnp.where(mask[:, None, None], scores * size**-0.5, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out = jnp.einsum("bkgtc,bckh->btkgh", weights, v)
    return out.reshape(batch, steps, heads, size)


class Norm(nnx.Module):
    """RMSNorm (arXiv:1910.07467), reduced in float32."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.ones((size,)))
        self.eps = eps

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """The normalised and scaled input."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + self.eps)
        return (wide * self.scale[...][None, None]).astype(x.dtype)


def _linear(n_in: int, n_out: int, rngs: nnx.Rngs, *, scale: float = 1.0) -> nnx.Linear:
    init = nnx.initializers.normal(stddev=scale * n_in**-0.5)
    return nnx.Linear(n_in, n_out, use_bias=False, kernel_init=init, rngs=rngs)


class Layer(nnx.Module):
    """Attention and a gated feed-forward, each on a normalised residual."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        c, width = config, config.hidden_size
        heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads
        self.config = config
        self.input_norm = Norm(width, c.rms_norm_eps)
        self.q = _linear(width, heads, rngs)
        self.k = _linear(width, kv * c.head_dim, rngs)
        self.v = _linear(width, kv * c.head_dim, rngs)
        self.o = _linear(heads, width, rngs, scale=OUTPUT_SCALE)
        self.post_norm = Norm(width, c.rms_norm_eps)
        self.gate = _linear(width, c.intermediate_size, rngs)
        self.up = _linear(width, c.intermediate_size, rngs)
        self.down = _linear(c.intermediate_size, width, rngs, scale=OUTPUT_SCALE)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        mask: Bool[Array, "B T C"],
        cache: LayerCache | None,
        cursor: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """The layer's output, and the cache with the new columns at `cursor`."""
        c = self.config
        batch, steps = positions.shape
        h = self.input_norm(x)
        q = self.q(h).reshape(batch, steps, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        q = rotate(q, positions, c.rope_theta)
        k = rotate(k, positions, c.rope_theta)
        if cache is not None:
            put = jax.lax.dynamic_update_slice_in_dim
            cache = LayerCache(
                put(cache.k, k.astype(cache.k.dtype), cursor, axis=1),
                put(cache.v, v.astype(cache.v.dtype), cursor, axis=1),
            )
            k, v = cache
        x = x + self.o(attend(q, k, v, mask).reshape(batch, steps, -1))
        h = self.post_norm(x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h)), cache


class Decoder(nnx.Module):
    """A decoder-only transformer."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        init = nnx.initializers.normal(stddev=0.02)
        shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(init(rngs.params(), shape))
        self.layers = nnx.List(
            [Layer(config, rngs) for _ in range(config.num_hidden_layers)]
        )
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = nnx.Param(init(rngs.params(), shape))

    def __call__(
        self,
        ids: Int[Array, "B T"],
        positions: Int[Array, "B T"],
        mask: Bool[Array, "B T C"],
        cache: tuple[LayerCache, ...] | None = None,
        cursor: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "B T D"], tuple[LayerCache, ...] | None]:
        """Hidden states after the last norm, and the updated cache."""
        x = jnp.take(self.embed[...], ids, axis=0)
        caches = []
        for i, layer in enumerate(self.layers):
            x, layer_cache = layer(
                x, positions, mask, None if cache is None else cache[i], cursor
            )
            caches.append(layer_cache)
        return self.norm(x), None if cache is None else tuple(caches)

    def logits(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
        """Vocabulary scores in float32."""
        table = self.embed if self.config.tie_word_embeddings else self.head
        return jnp.einsum(
            "...d,vd->...v", hidden, table[...], preferred_element_type=jnp.float32
        )


def segment_mask(segments: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Causal attention within segments; segment 0 is padding and attends to itself."""
    steps = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    return same & jnp.tril(jnp.ones((steps, steps), bool))[None]


class Model(NamedTuple):
    """A decoder as a static definition and a pytree of parameters."""

    definition: nnx.GraphDef
    params: nnx.State
    config: ModelConfig


def create(config: ModelConfig, *, seed: int) -> Model:
    """A decoder with fresh parameters, the same for the same seed."""
    definition, params = nnx.split(Decoder(config, rngs=nnx.Rngs(seed)))
    return Model(definition, params, config)


def forward(
    definition: nnx.GraphDef,
    params: nnx.State,
    ids: Int[Array | np.ndarray, "B T"],
    positions: Int[Array | np.ndarray, "B T"],
    segments: Int[Array | np.ndarray, "B T"],
) -> Float[Array, "B T V"]:
    """Logits of packed rows, the training path."""
    decoder = nnx.merge(definition, params)
    hidden, _ = decoder(
        jnp.asarray(ids), jnp.asarray(positions), segment_mask(jnp.asarray(segments))
    )
    return decoder.logits(hidden)
