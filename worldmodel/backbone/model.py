"""The decoder (flax.nnx): token ids and where they stand to logits.

One set of weights serves training (a packed row reads within its segments) and
generation (new columns read the cached ones); both say so with a Place and call here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.config import CONVOLUTION, ModelConfig

OUTPUT_SCALE = 0.02
"""Layers start close to silent, so that the token's own embedding does not drown in
them: a lower loss after the same examples (docs/LOG.md, 2026-11-21, one seed)."""


class KeyValues(NamedTuple):
    """What an attention layer keeps of each column."""

    k: Float[Array, "B C K H"]
    v: Float[Array, "B C K H"]


class Inputs(NamedTuple):
    """What a convolution keeps of each column: its gated input."""

    x: Float[Array, "B C D"]


LayerCache = KeyValues | Inputs


class Place(NamedTuple):
    """Where a run of T tokens stands, and which of C columns each may read.

    With a cache, `column` holds the position of every column (-1: unused), those of
    the run included, which is written from column `cursor` on. Without one the columns
    are the run itself, and positions restart with each segment.
    """

    positions: Int[Array, "B T"]
    mask: Bool[Array, "B T C"]
    column: Int[Array, "B C"] | None = None
    cursor: Int[Array, ""] | int = 0


def place_in_cache(
    positions: Int[Array, "B T"],
    column: Int[Array, "B C"],
    cursor: Int[Array, ""] | int,
) -> Place:
    """A run that reads every used column up to its own position."""
    seen = (column[:, None, :] >= 0) & (column[:, None, :] <= positions[:, :, None])
    return Place(positions, seen, column, cursor)


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

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """The normalised and scaled input."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + self.eps)
        scale = jnp.expand_dims(self.scale[...], range(x.ndim - 1))
        return (wide * scale).astype(x.dtype)


def _linear(n_in: int, n_out: int, rngs: nnx.Rngs, *, scale: float = 1.0) -> nnx.Linear:
    init = nnx.initializers.normal(stddev=scale * n_in**-0.5)
    return nnx.Linear(n_in, n_out, use_bias=False, kernel_init=init, rngs=rngs)


class Attention(nnx.Module):
    """Rotary attention over earlier columns, with normalised q and k or not."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        c, width = config, config.hidden_size
        heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads
        self.config = config
        self.q = _linear(width, heads, rngs)
        self.k = _linear(width, kv * c.head_dim, rngs)
        self.v = _linear(width, kv * c.head_dim, rngs)
        self.o = _linear(heads, width, rngs, scale=OUTPUT_SCALE)
        if c.qk_norm:
            self.q_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.k_norm = Norm(c.head_dim, c.rms_norm_eps)

    def __call__(
        self, h: Float[Array, "B T D"], place: Place, cache: KeyValues | None
    ) -> tuple[Float[Array, "B T D"], KeyValues | None]:
        """What the run reads, and the cache with the run in it."""
        c = self.config
        batch, steps = place.positions.shape
        q = self.q(h).reshape(batch, steps, c.num_attention_heads, c.head_dim)
        k = self.k(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        if c.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q = rotate(q, place.positions, c.rope_theta)
        k = rotate(k, place.positions, c.rope_theta)
        if cache is not None:
            cache = KeyValues(
                _put(cache.k, k, place.cursor), _put(cache.v, v, place.cursor)
            )
            k, v = cache
        return self.o(attend(q, k, v, place.mask).reshape(batch, steps, -1)), cache


class ShortConv(nnx.Module):
    """A gated causal convolution over the last few tokens (LFM2, arXiv:2511.23404).

    Each token sees the ones just before it, so that one attention layer above can look
    a word up and read what stood behind it (docs/LOG.md, 2026-11-21).
    """

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, size = config.hidden_size, config.conv_L_cache
        self.size = size
        self.into = _linear(width, 3 * width, rngs)
        taps = nnx.initializers.normal(stddev=size**-0.5)
        self.taps = nnx.Param(taps(rngs.params(), (size, width)))
        self.out = _linear(width, width, rngs, scale=OUTPUT_SCALE)

    def __call__(
        self, h: Float[Array, "B T D"], place: Place, cache: Inputs | None
    ) -> tuple[Float[Array, "B T D"], Inputs | None]:
        """What the run reads, and the cache with the run in it."""
        before, after, x = jnp.split(self.into(h), 3, axis=-1)
        x = before * x
        row = jnp.concatenate([self._past(x, place, cache), x], axis=1)
        if cache is not None:
            cache = Inputs(_put(cache.x, x, place.cursor))
        mixed = jnp.zeros_like(x)
        for back in range(self.size):
            start = self.size - 1 - back
            seen = jax.lax.slice_in_dim(row, start, start + x.shape[1], axis=1)
            real = (place.positions >= back)[..., None]
            mixed += jnp.where(real, seen, 0) * self.taps[...][start][None, None]
        return self.out(after * mixed), cache

    def _past(
        self, x: Float[Array, "B T D"], place: Place, cache: Inputs | None
    ) -> Float[Array, "B P D"]:
        """The inputs just before the run, oldest first, found by their positions."""
        back = jnp.arange(self.size - 1, 0, -1)
        if cache is None or place.column is None:
            return jnp.zeros((x.shape[0], self.size - 1, x.shape[2]), x.dtype)
        wanted = place.positions[:, :1] - back[None]
        at = jnp.argmax(place.column[:, None, :] == wanted[..., None], axis=-1)
        return jnp.take_along_axis(cache.x, at[..., None], axis=1)


def _put(cached: Array, run: Array, cursor: Int[Array, ""] | int) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(
        cached, run.astype(cached.dtype), cursor, axis=1
    )


class Layer(nnx.Module):
    """A mixer of tokens and a gated feed-forward, each on a normalised residual."""

    def __init__(self, config: ModelConfig, kind: str, rngs: nnx.Rngs):
        c, width = config, config.hidden_size
        self.input_norm = Norm(width, c.rms_norm_eps)
        mixer = ShortConv if kind == CONVOLUTION else Attention
        self.mixer = mixer(config, rngs)
        self.post_norm = Norm(width, c.rms_norm_eps)
        self.gate = _linear(width, c.intermediate_size, rngs)
        self.up = _linear(width, c.intermediate_size, rngs)
        self.down = _linear(c.intermediate_size, width, rngs, scale=OUTPUT_SCALE)

    def __call__(
        self, x: Float[Array, "B T D"], place: Place, cache: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The layer's output, and its cache with the run in it."""
        mixed, cache = self.mixer(self.input_norm(x), place, cache)
        x = x + mixed
        h = self.post_norm(x)
        return x + self.down(jax.nn.silu(self.gate(h)) * self.up(h)), cache


class Decoder(nnx.Module):
    """A decoder-only transformer."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        init = nnx.initializers.normal(stddev=0.02)
        shape = (config.vocab_size, config.hidden_size)
        self.embed = nnx.Param(init(rngs.params(), shape))
        self.layers = nnx.List([Layer(config, kind, rngs) for kind in config.mixers])
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.head = nnx.Param(init(rngs.params(), shape))

    def __call__(
        self,
        ids: Int[Array, "B T"],
        place: Place,
        cache: tuple[LayerCache, ...] | None = None,
    ) -> tuple[Float[Array, "B T D"], tuple[LayerCache, ...] | None]:
        """Hidden states after the last norm, and the updated cache."""
        x = jnp.take(self.embed[...], ids, axis=0)
        caches = []
        for i, layer in enumerate(self.layers):
            x, layer_cache = layer(x, place, None if cache is None else cache[i])
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


def empty_cache(
    config: ModelConfig, batch: int, capacity: int, dtype: Any
) -> tuple[LayerCache, ...]:
    """A cache of `capacity` columns for each layer."""

    def zeros(*shape: int) -> Array:
        return jnp.zeros((batch, capacity, *shape), dtype)

    heads = (config.num_key_value_heads, config.head_dim)
    return tuple(
        Inputs(zeros(config.hidden_size))
        if kind == CONVOLUTION
        else KeyValues(zeros(*heads), zeros(*heads))
        for kind in config.mixers
    )


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
    mask = segment_mask(jnp.asarray(segments))
    hidden, _ = decoder(jnp.asarray(ids), Place(jnp.asarray(positions), mask))
    return decoder.logits(hidden)
