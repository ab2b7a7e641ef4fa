"""Parts of a decoder layer (flax.nnx): norms, projections, token mixers.

A mixer reads the run itself (training: within segments) or a cache that the run is
written into (generation); a Placement holds which, and the run's positions.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.config import SLIDING, ModelConfig
from worldmodel.backbone.rope import rope_rates

OUTPUT_SCALE = 0.02
"""Initial gain of the outputs of layers; small, or they drown the token embedding."""

UNBLOCKED = 512
"""Columns up to which a cache is read at once. On a CPU a longer one is read in blocks,
only as far as it is used: cost follows the text, at one compiled shape."""
BLOCK_COLUMNS, SHORT_RUN = 256, 16
"""Columns of a block; a run of fewer tokens than SHORT_RUN reads UNBLOCKED at once."""


class KVCache(NamedTuple):
    """What an attention layer stores of each column."""

    k: Float[Array, "B K C H"]
    v: Float[Array, "B K C H"]


class ConvCache(NamedTuple):
    """What a convolution stores of each column: its gated input."""

    x: Float[Array, "B C D"]


LayerCache = KVCache | ConvCache


class Placement(NamedTuple):
    """The positions of a run of T tokens, and what it may read.

    In training, positions restart with each of `segments`, and a token reads its own
    segment up to itself. With a cache, the first `count` tokens of the run (the others
    are padding) are written to the columns of their positions, and a token reads every
    column up to its own.
    """

    positions: Int[Array, "B T"]
    segments: Int[Array, "B T"] | None = None
    count: Int[Array, " B"] | None = None


def readable(
    positions: Int[Array, "B T"],
    start: Int[Array, ""] | int,
    columns: int,
    window: int | None,
) -> Bool[Array, "B T C"]:
    """Return which of `columns` columns from `start` on a token may read."""
    behind = positions[:, :, None] - start - jnp.arange(columns)[None, None]
    return behind >= 0 if window is None else (behind >= 0) & (behind < window)


class Rotation(NamedTuple):
    """Cosines and sines of each position, for rotary embedding (arXiv:2104.09864)."""

    cos: Float[Array, "B T H"]
    sin: Float[Array, "B T H"]


def rotation(config: ModelConfig, positions: Int[Array, "B T"]) -> Rotation:
    """Return the angles of each position, scaled by the config, in float32."""
    rates = jnp.asarray(rope_rates(config), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * rates[None, None]
    scaling = config.rope_scaling
    scale = 1.0 if scaling is None else scaling.attention_scale
    return Rotation(jnp.cos(angles) * scale, jnp.sin(angles) * scale)


def rotate(x: Float[Array, "B T N D"], by: Rotation) -> Float[Array, "B T N D"]:
    """Apply rotary embedding in the half-split layout of Llama."""
    half = x.shape[-1] // 2
    cos, sin = by.cos[:, :, None, :], by.sin[:, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B K C H"],
    v: Float[Array, "B K C H"],
    mask: Bool[Array, "B T C"],
) -> Float[Array, "B T N H"]:
    """Return softmax attention of grouped query heads, computed in float32."""
    scores = _scores(_group_queries(q, k.shape[1]), k, mask)
    # The maximum only prevents overflow; it cancels in the quotient, so that its
    # gradient would be work for nothing.
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    out = jnp.einsum("bkgtc,bkch->bkgth", weights.astype(v.dtype), v)
    # Divided last, because the outputs are fewer than the weights.
    total = weights.sum(-1, keepdims=True)
    return _join_heads((out / total).astype(q.dtype))


def _group_queries(q: Array, kv: int) -> Float[Array, "B K G T H"]:
    """Return scaled queries by the key head they read; no transpose is left to do."""
    batch, steps, num_heads, size = q.shape
    q = (q * size**-0.5).reshape(batch, steps, kv, num_heads // kv, size)
    return q.transpose(0, 2, 3, 1, 4)


def _join_heads(out: Float[Array, "B K G T H"]) -> Float[Array, "B T N H"]:
    batch, kv, group, steps, size = out.shape
    return out.transpose(0, 3, 1, 2, 4).reshape(batch, steps, kv * group, size)


def _scores(q: Array, k: Array, mask: Array) -> Float[Array, "B K G T C"]:
    scores = jnp.einsum("bkgth,bkch->bkgtc", q, k, preferred_element_type=jnp.float32)
    # Not -inf: in a row where nothing may be read, -inf minus its maximum is NaN.
    return jnp.where(mask[:, None, None], scores, -1e30)


def attend_used(
    q: Float[Array, "B T N H"],
    cache: KVCache,
    placement: Placement,
    window: int | None,
) -> Float[Array, "B T N H"]:
    """Return `attend` over the used columns of a cache.

    On a CPU, blocks are read one after the other as far as the cache is used, with a
    running maximum and sum (arXiv:1805.02867); elsewhere the whole cache is read at
    once.
    """
    (batch, steps, num_heads, size), kv = q.shape, cache.k.shape[1]
    capacity, at = cache.k.shape[2], placement.positions
    if capacity <= UNBLOCKED or jax.default_backend() != "cpu":
        return attend(q, cache.k, cache.v, readable(at, 0, capacity, window))
    assert capacity % UNBLOCKED == 0, "Streams rounds capacities up"
    grouped = _group_queries(q, kv)
    block = BLOCK_COLUMNS if steps >= SHORT_RUN else UNBLOCKED

    def body(i: Array, carry: tuple[Array, Array, Array]):
        top, total, out = carry
        k, v = (
            jax.lax.dynamic_slice_in_dim(x, i * block, block, axis=2) for x in cache
        )
        scores = _scores(grouped, k, readable(at, i * block, block, window))
        higher = jnp.maximum(top, scores.max(-1))
        # Sums so far are relative to the old maximum; `fade` rescales them to the new.
        fade, weights = jnp.exp(top - higher), jnp.exp(scores - higher[..., None])
        new = jnp.einsum("bkgtc,bkch->bkgth", weights.astype(v.dtype), v)
        total = total * fade + weights.sum(-1)
        return higher, total, out * fade[..., None] + new

    shape = (batch, kv, num_heads // kv, steps)
    start = (
        jnp.full(shape, -1e30, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, size), jnp.float32),
    )
    # A loop bound that is computed: columns behind the longest stream cost nothing.
    blocks = jnp.minimum(at.max() // block + 1, capacity // block)
    _, total, out = jax.lax.fori_loop(0, blocks, body, start)
    return _join_heads((out / total[..., None]).astype(q.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(
    x: Float[Array, "*B I"], w: Float[Array, "I O"], wide: bool = False
) -> Float[Array, "*B O"]:
    """Return x W, in float32 if `wide`.

    In the backward pass the weight's gradient sums over all tokens. A CPU has to
    transpose one side of that product in memory; this takes the narrower one, which XLA
    would not choose (docs/LOG.md, 2026-11-22: a step of 1 M parameters takes 0.74 of
    the time).
    """
    return jnp.matmul(x, w, preferred_element_type=jnp.float32 if wide else None)


def _matmul_forward(x: Array, w: Array, wide: bool) -> tuple[Array, Any]:
    return matmul(x, w, wide), (x, w)


def _matmul_backward(wide: bool, residuals: Any, dy: Array) -> tuple[Array, Array]:
    del wide
    x, w = residuals
    dy = dy.astype(x.dtype)
    rows, grads = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    if jax.default_backend() != "cpu":
        return dy @ w.T, rows.T @ grads
    barrier = jax.lax.optimization_barrier
    if rows.shape[1] <= grads.shape[1]:
        return dy @ w.T, barrier(rows.T) @ grads
    return dy @ w.T, barrier(barrier(grads.T) @ rows).T


matmul.defvjp(_matmul_forward, _matmul_backward)


class Norm(nnx.Module):
    """RMSNorm (arXiv:1910.07467), reduced in float32."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.ones((size,)))
        self.eps = eps

    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Return the normalised and scaled input."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + self.eps)
        scale = jnp.expand_dims(self.scale[...], range(x.ndim - 1))
        return (wide * scale).astype(x.dtype)


class Linear(nnx.Module):
    """A projection with optional bias and optional low-rank addition.

    With `rank` the output is x W + scale (x A) B (LoRA, arXiv:2106.09685, eq. 3); B
    starts at zero.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        rngs: nnx.Rngs,
        *,
        gain: float = 1.0,
        bias: bool = False,
        rank: int = 0,
        scale: float = 1.0,
    ):
        normal = nnx.initializers.normal(stddev=gain * n_in**-0.5)
        self.kernel = nnx.Param(normal(rngs.params(), (n_in, n_out)))
        if bias:
            self.bias = nnx.Param(jnp.zeros((n_out,)))
        if rank:
            normal = nnx.initializers.normal(stddev=n_in**-0.5)
            self.lora_a = nnx.Param(normal(rngs.params(), (n_in, rank)))
            self.lora_b = nnx.Param(jnp.zeros((rank, n_out)))
        self.biased, self.rank, self.scale = bias, rank, scale

    def __call__(self, x: Float[Array, "B T I"]) -> Float[Array, "B T O"]:
        """Return the projected input."""
        y: Any = matmul(x, self.kernel[...])
        if self.rank:
            # Two thin products; A B itself would be as large as the kernel.
            added = (x @ self.lora_a[...]) @ self.lora_b[...] * self.scale
            y = y + added.astype(y.dtype)
        if self.biased:
            y = y + self.bias[...][None, None].astype(y.dtype)
        return y


class Attention(nnx.Module):
    """Rotary attention over earlier tokens, with optional normalisation of q and k."""

    def __init__(self, config: ModelConfig, kind: str, linear: Any, rngs: nnx.Rngs):
        c, width = config, config.hidden_size
        query_width, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads
        self.config = config
        self.window = c.sliding_window if kind == SLIDING else None
        biased = c.attention_bias
        self.q = linear("q", width, query_width, rngs, bias="q" in biased)
        self.k = linear("k", width, kv * c.head_dim, rngs, bias="k" in biased)
        self.v = linear("v", width, kv * c.head_dim, rngs, bias="v" in biased)
        self.o = linear(
            "o", query_width, width, rngs, gain=OUTPUT_SCALE, bias="o" in biased
        )
        if c.qk_norm:
            self.q_norm = Norm(c.head_dim, c.rms_norm_eps)
            self.k_norm = Norm(c.head_dim, c.rms_norm_eps)

    def __call__(
        self,
        h: Float[Array, "B T D"],
        placement: Placement,
        by: Rotation,
        cache: KVCache | None,
        read: Int[Array, "B R"] | None = None,
    ) -> tuple[Float[Array, "B R D"], KVCache | None]:
        """Return the run's output and the cache with the run in it.

        With `read` only the outputs of these tokens of each run are computed.
        """
        c = self.config
        batch, steps = placement.positions.shape
        # Of all tokens, even with `read`: later tokens attend to them in the cache.
        k = self.k(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        v = self.v(h).reshape(batch, steps, c.num_key_value_heads, c.head_dim)
        if c.qk_norm:
            k = self.k_norm(k)
        k, v = rotate(k, by).swapaxes(1, 2), v.swapaxes(1, 2)
        if cache is not None:
            cache = KVCache(
                _write_run(cache.k, k, placement, 2),
                _write_run(cache.v, v, placement, 2),
            )
        run = placement
        if read is not None:
            h, by = take_tokens(h, read), Rotation(*(take_tokens(x, read) for x in by))
            at = take_tokens(placement.positions, read)
            placement, steps = placement._replace(positions=at), read.shape[1]
        q = self.q(h).reshape(batch, steps, c.num_attention_heads, c.head_dim)
        q = rotate(self.q_norm(q) if c.qk_norm else q, by)
        if cache is not None:
            out = attend_used(q, cache, placement, self.window)
        else:
            out = attend(q, k, v, run_mask(run, self.window, read))
        return self.o(out.reshape(batch, steps, -1)), cache


def take_tokens(x: Array, index: Int[Array, "B R"]) -> Array:
    """Return R tokens of each run of [B T ...], as [B R ...]."""
    return x[jnp.arange(x.shape[0])[:, None], index]


def run_mask(
    placement: Placement,
    window: int | None = None,
    read: Int[Array, "B R"] | None = None,
) -> Bool[Array, "B R T"]:
    """Return causal attention within segments; padding (segment 0) reads itself.

    With `read` it is that of these tokens of each run, else that of all.
    """
    assert placement.segments is not None, "without a cache a place needs segments"
    segments, column = placement.segments, jnp.arange(placement.segments.shape[1])
    at = column[None] if read is None else read
    read_segments = segments if read is None else take_tokens(segments, read)
    behind = at[..., None] - column[None, None]
    mask = (read_segments[..., None] == segments[:, None]) & (behind >= 0)
    return mask if window is None else mask & (behind < window)


class ShortConv(nnx.Module):
    """A gated causal convolution over the last few tokens (LFM2, arXiv:2511.23404).

    One attention layer above it can look up a word and read what followed it.
    """

    def __init__(self, config: ModelConfig, kind: str, linear: Any, rngs: nnx.Rngs):
        del kind  # one kind of convolution
        width, size = config.hidden_size, config.conv_L_cache
        self.size = size
        self.into = linear("into", width, 3 * width, rngs)
        taps = nnx.initializers.normal(stddev=size**-0.5)
        self.taps = nnx.Param(taps(rngs.params(), (size, width)))
        self.out = linear("out", width, width, rngs, gain=OUTPUT_SCALE)

    def __call__(
        self,
        h: Float[Array, "B T D"],
        placement: Placement,
        by: Rotation,
        cache: ConvCache | None,
        read: Int[Array, "B R"] | None = None,
    ) -> tuple[Float[Array, "B R D"], ConvCache | None]:
        """Return what Attention does, of a convolution."""
        del by  # a convolution depends on the order only, not on positions
        input_gate, output_gate, x = jnp.split(self.into(h), 3, axis=-1)
        x = input_gate * x
        if cache is not None:
            cache = ConvCache(_write_run(cache.x, x, placement, 1))
        # Read after the run is written, which leaves earlier columns as they are: to
        # read the cache as it was would copy all of it at every step.
        row = jnp.concatenate([self._past(x, placement, cache), x], axis=1)
        mixed = jnp.zeros_like(x)
        for back in range(self.size):
            start = self.size - 1 - back
            inputs = jax.lax.slice_in_dim(row, start, start + x.shape[1], axis=1)
            # Packed texts lie side by side: none may read the end of the one before.
            real = (placement.positions >= back)[..., None]
            mixed += jnp.where(real, inputs, 0) * self.taps[...][start][None, None]
        gated = output_gate * mixed
        return self.out(gated if read is None else take_tokens(gated, read)), cache

    def _past(
        self, x: Float[Array, "B T D"], placement: Placement, cache: ConvCache | None
    ) -> Float[Array, "B P D"]:
        """Return the inputs just before the run, oldest first, by their positions."""
        back = jnp.arange(self.size - 1, 0, -1)
        if cache is None:
            return jnp.zeros((x.shape[0], self.size - 1, x.shape[2]), x.dtype)
        at = jnp.maximum(placement.positions[:, :1] - back[None], 0)
        return jnp.take_along_axis(cache.x, at[..., None], axis=1)


def _write_run(cached: Array, run: Array, placement: Placement, axis: int) -> Array:
    """Return the cache with the real tokens of a run in their positions' columns."""
    assert placement.count is not None, "with a cache a place needs counts"
    steps, capacity = run.shape[axis], cached.shape[axis]

    def one(old: Array, new: Array, start: Array, count: Array) -> Array:
        # A slice that would exceed the capacity starts earlier, and the run later.
        at = jnp.minimum(start, capacity - steps)
        token = jnp.arange(steps) - (start - at)
        real = (token >= 0) & (token < count)
        shape = [1] * old.ndim
        shape[axis - 1] = steps
        old_slice = jax.lax.dynamic_slice_in_dim(old, at, steps, axis - 1)
        moved = new.astype(old.dtype)
        if steps > 1:
            twice = jnp.concatenate([jnp.zeros_like(moved), moved], axis - 1)
            back = steps - (start - at)
            moved = jax.lax.dynamic_slice_in_dim(twice, back, steps, axis - 1)
        new_slice = jnp.where(real.reshape(shape), moved, old_slice)
        return jax.lax.dynamic_update_slice_in_dim(old, new_slice, at, axis - 1)

    return jax.vmap(one)(cached, run, placement.positions[:, 0], placement.count)
