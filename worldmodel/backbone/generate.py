"""Batches of token streams over one cache: append, sample, rewind.

prompts -> append (prefill) -> sample until the grammar closes -> ids and log-probs.
All streams share the cache's columns: a run appended to B streams takes as many columns
as its longest member, and padding is masked by position, so no step scatters. The noise
of a stream comes from its own key and its own count of tokens: at the same compiled
shape its text does not depend on what else is in the batch.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.model import LayerCache, Model, empty_cache, place_in_cache

PROMPT_BUCKET = 64
BATCHES = (16, 64)


class Grammar(NamedTuple):
    """What may be sampled, phase by phase. P phases over V tokens.

    A phase samples from `allowed` (its first token from `first`) until it samples a
    token of `close`; after `limit` tokens `closing` is forced. The stream ends with the
    last phase. Temperature 0 is greedy; tokens less probable than `min_p` times the
    most probable one are cut.
    """

    allowed: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    first: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    close: Bool[Array, "P V"] | Bool[np.ndarray, "P V"]
    closing: Int[Array, " P"] | Int[np.ndarray, " P"]
    limit: Int[Array, " P"] | Int[np.ndarray, " P"]
    temperature: Float[Array, " P"] | Float[np.ndarray, " P"]
    min_p: Float[Array, " P"] | Float[np.ndarray, " P"]


class StreamState(NamedTuple):
    """The device side of a batch of streams; `position` is -1 in unused columns."""

    cache: tuple[LayerCache, ...]
    position: Int[Array, "B C"]
    length: Int[Array, " B"]
    cursor: Int[Array, ""]
    logits: Float[Array, "B V"]


class Sampled(NamedTuple):
    """What a batch of streams wrote: N columns, padded on the right.

    `sampled` is false where a token was forced or is padding; `logp` is under the
    distribution sampled from (masks, temperature and min_p applied), 0 where forced.
    """

    ids: Int[np.ndarray, "B N"]
    logp: Float[np.ndarray, "B N"]
    sampled: Bool[np.ndarray, "B N"]
    phase: Int[np.ndarray, "B N"]
    first: Bool[np.ndarray, "B N"]
    length: Int[np.ndarray, " B"]


def shaped_logits(
    logits: Float[Array, "*B V"],
    allowed: Bool[Array, "*B V"],
    temperature: Float[Array | np.ndarray, "*B"],
    min_p: Float[Array | np.ndarray, "*B"],
) -> Float[Array, "*B V"]:
    """Logits of the distribution sampled from; the learner applies the same."""
    scaled = logits / jnp.where(temperature > 0, temperature, 1.0)[..., None]
    scaled = jnp.where(allowed, scaled, -jnp.inf)
    floor = (
        scaled.max(-1, keepdims=True) + jnp.log(jnp.maximum(min_p, 1e-30))[..., None]
    )
    return jnp.where(scaled >= floor, scaled, -jnp.inf)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _append(
    definition: nnx.GraphDef,
    params: nnx.State,
    state: StreamState,
    ids: Int[Array, "B R"],
    count: Int[Array, " B"],
) -> StreamState:
    run = jnp.arange(ids.shape[1])
    real = run[None] < count[:, None]
    positions = state.length[:, None] + run[None]
    put = jax.lax.dynamic_update_slice_in_dim
    column = put(state.position, jnp.where(real, positions, -1), state.cursor, axis=1)
    decoder = nnx.merge(definition, params)
    place = place_in_cache(positions, column, state.cursor)
    hidden, cache = decoder(ids, place, state.cache)
    last = jnp.take_along_axis(
        hidden, jnp.maximum(count - 1, 0)[:, None, None], axis=1
    )[:, 0]
    logits = jnp.where((count > 0)[:, None], decoder.logits(last), state.logits)
    return StreamState(
        cache, column, state.length + count, state.cursor + ids.shape[1], logits
    )


@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=2)
def _sample(
    definition: nnx.GraphDef,
    params: nnx.State,
    state: StreamState,
    grammar: Grammar,
    keys: Array,
    most: int,
    active: Bool[Array, " B"],
    banned: Bool[Array, "B V"],
):
    decoder = nnx.merge(definition, params)
    batch, vocab = state.logits.shape
    last_phase = grammar.limit.shape[0] - 1
    put = jax.lax.dynamic_update_slice_in_dim

    def choose(t, logits, phase, count):
        allowed = jnp.where(
            (count == 0)[:, None], grammar.first[phase], grammar.allowed[phase]
        )
        allowed &= ~banned
        temperature = grammar.temperature[phase]
        shaped = shaped_logits(logits, allowed, temperature, grammar.min_p[phase])
        noise = jax.vmap(
            lambda key: jax.random.gumbel(jax.random.fold_in(key, t), (vocab,))
        )(keys)
        noisy = shaped + jnp.where((temperature > 0)[:, None], noise, 0.0)
        token = jnp.argmax(noisy, -1).astype(jnp.int32)
        logp = jnp.take_along_axis(jax.nn.log_softmax(shaped), token[:, None], axis=1)[
            :, 0
        ]
        forced = count >= grammar.limit[phase]
        token = jnp.where(forced, grammar.closing[phase], token)
        return token, jnp.where(forced, 0.0, logp), ~forced

    def body(carry):
        t, state, phase, count, live, out = carry
        token, logp, free = choose(t, state.logits, phase, count)
        rows = (token, logp, free & live, phase, (count == 0) & live)
        written = (
            put(o, jnp.where(live, r, jnp.zeros_like(r))[:, None], t, axis=1)
            for o, r in zip(out[:-1], rows, strict=True)
        )
        out = (*written, out[-1] + live)
        closed = grammar.close[phase, token]
        positions = state.length[:, None]
        column = put(
            state.position, jnp.where(live[:, None], positions, -1), state.cursor, 1
        )
        place = place_in_cache(positions, column, state.cursor)
        hidden, cache = decoder(token[:, None], place, state.cache)
        logits = jnp.where(live[:, None], decoder.logits(hidden[:, 0]), state.logits)
        state = StreamState(
            cache, column, state.length + live, state.cursor + 1, logits
        )
        live = live & ~(closed & (phase == last_phase))
        count = jnp.where(closed, 0, count + 1)
        phase = jnp.minimum(phase + closed, last_phase)
        return t + 1, state, phase, count, live, out

    zeros = jnp.zeros((batch, most), jnp.int32)
    out = (
        zeros, zeros.astype(jnp.float32), zeros.astype(bool), zeros,
        zeros.astype(bool), jnp.zeros(batch, jnp.int32),
    )  # fmt: skip
    start = (
        0, state, jnp.zeros(batch, jnp.int32), jnp.zeros(batch, jnp.int32), active, out,
    )  # fmt: skip
    _, state, _, _, _, out = jax.lax.while_loop(
        lambda c: (c[0] < most) & c[4].any(), body, start
    )
    return state, out


class Streams:
    """A batch of token streams of one model, `capacity` columns at most."""

    def __init__(self, model: Model, batch: int, capacity: int):
        self._model, self.batch, self.capacity = model, batch, capacity
        c = model.config
        dtype = jax.tree.leaves(model.params)[0].dtype
        self._used = 0
        self._fresh = True
        self._state = StreamState(
            empty_cache(c, batch, capacity, dtype),
            jnp.full((batch, capacity), -1, jnp.int32),
            jnp.zeros(batch, jnp.int32),
            jnp.zeros((), jnp.int32),
            jnp.zeros((batch, c.vocab_size), jnp.float32),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each stream, int [B]."""
        return np.asarray(self._state.length)

    def _take(self, columns: int) -> None:
        if self._used + columns > self.capacity:
            raise ValueError(
                f"{columns} more columns do not fit: {self._used} of "
                f"{self.capacity} used; rewind, or make Streams with more"
            )
        self._used += columns

    def append(self, runs: Sequence[Sequence[int]], *, columns: int | None = None):
        """Append one run of ids to each stream (an empty run leaves it as it is).

        `columns` pads the runs to a fixed width, so that few shapes compile.

        Raises:
          ValueError: the number of runs is not the batch, a run is longer than
            `columns`, or the capacity is used up.
        """
        if len(runs) != self.batch:
            raise ValueError(f"expected {self.batch} runs, got {len(runs)}")
        longest = max(len(run) for run in runs)
        columns = max(longest, 1) if columns is None else columns
        if longest > columns:
            raise ValueError(f"a run of {longest} ids in {columns} columns")
        self._take(columns)
        ids = np.zeros((self.batch, columns), np.int32)
        for row, run in zip(ids, runs, strict=True):
            row[: len(run)] = run
        count = np.array([len(run) for run in runs], np.int32)
        if self._fresh and not count.all():
            raise ValueError("after a rewind or at the start every run needs an id")
        m = self._model
        self._state = _append(m.definition, m.params, self._state, ids, count)
        self._fresh = False

    def sample(
        self,
        grammar: Grammar,
        keys: Array,
        *,
        most: int,
        active: np.ndarray | None = None,
        banned: np.ndarray | None = None,
    ) -> Sampled:
        """Let the active streams write until the grammar closes, or `most` tokens.

        `keys` is one PRNG key a stream; `banned`, bool [B, V], takes tokens from what
        the grammar allows a stream. Raises ValueError where there is nothing to
        continue from, or no room.
        """
        if self._fresh:
            raise ValueError("nothing to continue from: append to the streams first")
        self._take(most)
        m = self._model
        active = np.ones(self.batch, bool) if active is None else active
        if banned is None:
            banned = np.zeros((self.batch, m.config.vocab_size), bool)
        self._state, out = _sample(
            m.definition, m.params, self._state, grammar, keys, most, active, banned
        )
        return Sampled(*(np.asarray(x) for x in out))

    def rewind(self, lengths: Sequence[int]) -> None:
        """Forget what stands after the first `lengths[b]` tokens of each stream."""
        kept = np.asarray(lengths, np.int32)
        if kept.shape != (self.batch,) or (kept > self.lengths).any() or kept.min() < 0:
            raise ValueError(f"lengths must be [B] within {self.lengths}, got {kept}")
        position = np.asarray(self._state.position)
        position = np.where(position < kept[:, None], position, -1)
        used = np.flatnonzero((position >= 0).any(0))
        self._used = int(used[-1]) + 1 if used.size else 0
        self._state = self._state._replace(
            position=jnp.asarray(position),
            length=jnp.asarray(kept),
            cursor=jnp.asarray(self._used, jnp.int32),
        )
        self._fresh = True


def bucket(n: int, size: int = PROMPT_BUCKET) -> int:
    """The least multiple of `size` that holds n, so that few shapes compile."""
    return max(size, -(-n // size) * size)


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    grammar: Grammar,
    keys: Array,
    *,
    most: int,
    banned: np.ndarray | None = None,
) -> list[Sampled]:
    """One Sampled (B = 1) for each prompt, in a handful of compiled shapes.

    `keys` holds one PRNG key a prompt, `banned` one row a prompt (see Streams.sample).
    """
    out: list[Sampled] = []
    start = 0
    while start < len(prompts):
        left = len(prompts) - start
        batch = next((b for b in BATCHES if left <= b), BATCHES[-1])
        chunk = list(prompts[start : start + batch])
        index = np.minimum(start + np.arange(batch), len(prompts) - 1)
        columns = bucket(max(len(p) for p in chunk))
        active = np.arange(batch) < len(chunk)
        streams = Streams(model, batch, columns + most)
        padded = chunk + [chunk[-1]] * (batch - len(chunk))
        streams.append(padded, columns=columns)
        done = streams.sample(
            grammar, keys[index], most=most, active=active,
            banned=None if banned is None else banned[index],
        )  # fmt: skip
        for b in range(len(chunk)):
            out.append(Sampled(*(field[b : b + 1] for field in done)))
        start += len(chunk)
    return out
