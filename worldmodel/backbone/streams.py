"""Batches of token streams over one cache: append, sample, rewind.

prompts -> append (prefill) -> sample until the grammar ends -> ids and log-probs. A
stream's columns are its positions, whatever the other streams do: ragged runs leave no
holes, rewinding drops a tail, and a stream rewound to nothing takes the next text. The
noise of a stream comes from its own key and its own token count: at the same compiled
shape its text does not depend on the rest of the batch.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.grammar import Grammar, Quotable
from worldmodel.backbone.layers import UNBLOCKED, LayerCache, Placement
from worldmodel.backbone.mesh import ROWS, TENSOR, device_put_global, sharding_for
from worldmodel.backbone.model import Model, empty_cache
from worldmodel.backbone.sampling import draw, shaped_logits

PROMPT_BUCKET = 64
SAMPLE_BUCKET = 16


class StreamState(NamedTuple):
    """The device side of a batch of streams, with each one's place in its grammar."""

    cache: tuple[LayerCache, ...]
    length: Int[Array, " B"]
    logits: Float[Array, "B V"]
    phase: Int[Array, " B"]
    count: Int[Array, " B"]
    draws: Int[Array, " B"]


class SampledTokens(NamedTuple):
    """Sampled tokens of a batch of streams: N columns, padded on the right.

    `sampled` is false where a token was forced or is padding. `logp` is under the
    distribution sampled from (masks, temperature and cuts applied), 0 where forced.
    """

    ids: Int[np.ndarray, "B N"]
    logp: Float[np.ndarray, "B N"]
    sampled: Bool[np.ndarray, "B N"]
    phase: Int[np.ndarray, "B N"]
    first: Bool[np.ndarray, "B N"]
    length: Int[np.ndarray, " B"]


def _constrain_layout(state: StreamState, mesh: Mesh | None) -> StreamState:
    if mesh is None:
        return state
    return jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(x, _layout(x.shape, mesh)), state
    )


def _layout(shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Return the layout: rows over the data axes, heads (of [B K C H]) over tensor."""
    spec = P(ROWS, TENSOR) if len(shape) == 4 else P(ROWS)
    return sharding_for(spec if shape else P(), shape, mesh)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _fresh(
    config: ModelConfig, batch: int, capacity: int, dtype: str, mesh: Mesh | None
) -> StreamState:
    none = jnp.zeros(batch, jnp.int32)
    cache = empty_cache(config, batch, capacity, dtype)
    logits = jnp.zeros((batch, config.vocab_size), jnp.float32)
    return _constrain_layout(StreamState(cache, none, logits, none, none, none), mesh)


@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=2)
def _append(
    definition: nnx.GraphDef,
    params: nnx.State,
    state: StreamState,
    ids: Int[Array, "B R"],
    count: Int[Array, " B"],
    mesh: Mesh | None,
) -> StreamState:
    positions = state.length[:, None] + jnp.arange(ids.shape[1])[None]
    decoder = nnx.merge(definition, params)
    # Only the last token of a run is scored: logits of all would be B x R x V floats.
    place, last = Placement(positions, count=count), jnp.maximum(count - 1, 0)
    hidden, cache = decoder(ids, place, state.cache, read=last[:, None])
    logits = decoder.logits(hidden[:, 0])
    logits = jnp.where((count > 0)[:, None], logits, state.logits)
    length = state.length + count
    return _constrain_layout(
        state._replace(cache=cache, length=length, logits=logits), mesh
    )


def _choose(
    state: StreamState,
    grammar: Grammar,
    keys: Array,
    banned: Array | None,
    quotable: Quotable | None,
    places: Array | None,
):
    """Return (token, log-probability, whether it was sampled) of each stream."""
    phase, first = state.phase, state.count == 0
    allowed = jnp.where(first[:, None], grammar.first[phase], grammar.allowed[phase])
    if banned is not None:
        allowed &= ~banned
    if quotable is not None and places is not None:
        quoted = allowed & quotable.allowed_tokens(places, allowed.shape[1])
        possible = (phase == 0) & quoted.any(-1)
        allowed = jnp.where(possible[:, None], quoted, allowed)
    temperature = jnp.asarray(grammar.temperature)[phase]
    shaped = shaped_logits(
        state.logits,
        allowed,
        temperature,
        jnp.asarray(grammar.min_p)[phase],
        top_k=None if grammar.top_k is None else jnp.asarray(grammar.top_k)[phase],
        top_p=None if grammar.top_p is None else jnp.asarray(grammar.top_p)[phase],
    )
    # By the stream's own number of draws, not by a chain of split keys: the noise does
    # not depend on pauses, on the batch, or on when the stream began.
    uniform = jax.vmap(
        lambda key, draws: jax.random.uniform(jax.random.fold_in(key, draws), (2,))
    )(keys, state.draws)
    greedy = jnp.argmax(shaped, -1).astype(jnp.int32)
    token = jnp.where(temperature > 0, draw(shaped, uniform), greedy)
    logp = jnp.take_along_axis(shaped, token[:, None], axis=1)[:, 0]
    logp -= jax.nn.logsumexp(shaped, axis=-1)
    # A token that the limit of a phase forces was no choice: log 1 = 0.
    forced = state.count >= jnp.asarray(grammar.max_tokens)[phase]
    token = jnp.where(forced, jnp.asarray(grammar.forced_token)[phase], token)
    return token, jnp.where(forced, 0.0, logp), ~forced


def _next_phase(
    grammar: Grammar, phase: Array, token: Array, closed: Array, on: Array
) -> tuple[Array, Array]:
    """Return the phase of each stream behind a token, and whether its text has ended.

    `closed` are the streams whose token closes a phase, `on` those that run.
    """
    if grammar.next_phase is None:
        last = len(grammar.max_tokens) - 1
        return jnp.minimum(phase + closed, last), closed & (phase == last)
    following = jnp.asarray(grammar.next_phase)[phase, token].astype(jnp.int32)
    ended = (following < 0) & on
    return jnp.where(on & ~ended, following, phase), ended


@functools.partial(jax.jit, static_argnums=(0, 7, 12), donate_argnums=2)
def _sample(
    definition: nnx.GraphDef,
    params: nnx.State,
    state: StreamState,
    grammar: Grammar,
    keys: Array,
    limit: Int[Array, " B"],
    enough: Int[Array, ""] | int,
    width: int,
    active: Bool[Array, " B"],
    banned: Bool[Array, "B V"] | None,
    quotable: Quotable | None,
    places: Bool[Array, "B Q"] | None,
    mesh: Mesh | None,
):
    """Sample until at most `enough` streams run.

    Returns state, places of quotes, unended rows and tokens.
    """
    decoder = nnx.merge(definition, params)
    batch = state.logits.shape[0]
    grammar = jax.tree.map(jnp.asarray, grammar)
    put_column = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)

    def running(live: Array, length: Array) -> Array:
        return live & (length < limit)

    def body(carry):
        t, state, places, live, out = carry
        on = running(live, out[-1])
        if quotable is not None:  # a stream that took another prompt quotes nothing yet
            places &= (state.draws > 0)[:, None]
        token, logp, free = _choose(state, grammar, keys, banned, quotable, places)
        if quotable is not None:
            places = jnp.where(on[:, None], quotable.advance(places, token), places)
        rows = (token, logp, free & on, state.phase, (state.count == 0) & on)
        columns = (
            put_column(o, jnp.where(on, r, jnp.zeros_like(r))[:, None], t)
            for o, r in zip(out[:-1], rows, strict=True)
        )
        out = (*columns, out[-1] + on)
        closed = grammar.closing_tokens[state.phase, token] & on
        place = Placement(state.length[:, None], count=on.astype(jnp.int32))
        hidden, cache = decoder(token[:, None], place, state.cache)
        logits = jnp.where(on[:, None], decoder.logits(hidden[:, 0]), state.logits)
        # Streams that have ended run along: shapes are fixed, and `on` masks them.
        phase, ended = _next_phase(grammar, state.phase, token, closed, on)
        state = StreamState(
            cache,
            state.length + on,
            logits,
            phase,
            jnp.where(closed, 0, state.count + on),
            state.draws + on,
        )
        state = _constrain_layout(state, mesh)
        return t + 1, state, places, live & ~ended, out

    zeros = jnp.zeros((batch, width), jnp.int32)
    out = (
        zeros,
        zeros.astype(jnp.float32),
        zeros.astype(bool),
        zeros,
        zeros.astype(bool),
        jnp.zeros(batch, jnp.int32),
    )
    _, state, places, live, out = jax.lax.while_loop(
        lambda c: running(c[3], c[4][-1]).sum() > enough,
        body,
        (0, state, places, active, out),
    )
    if mesh is not None:  # every process reads all rows
        replicated = NamedSharding(mesh, P())
        live, out = jax.lax.with_sharding_constraint((live, out), replicated)
    return state, places, live, out


@functools.partial(jax.jit, static_argnums=4, donate_argnums=0)
def _replace_rows(
    state: StreamState,
    source: StreamState,
    rows: Int[Array, " B"],
    replaced: Bool[Array, " B"],
    mesh: Mesh | None,
) -> StreamState:
    """Return `state` with row i replaced by row `rows[i]` of `source`, where asked."""

    def one(old: Array, new: Array) -> Array:
        mask = replaced.reshape(-1, *[1] * (old.ndim - 1))
        return jnp.where(mask, jnp.take(new, rows, axis=0), old)

    return _constrain_layout(jax.tree.map(one, state, source), mesh)


class Streams:
    """A batch of token streams of one model, `capacity` tokens each at most.

    Where the model lies on a mesh, streams are spread over its data axes and heads
    over its tensor axis.
    """

    def __init__(self, model: Model, batch: int, capacity: int):
        capacity = bucket(capacity, UNBLOCKED) if capacity > UNBLOCKED else capacity
        self._model, self._mesh = model, model.mesh
        self.batch, self.capacity = batch, capacity
        dtype = str(model.params["embed"][...].dtype)
        self._state = _fresh(model.config, batch, capacity, dtype, model.mesh)
        self._length = np.zeros(batch, np.int32)
        self._ready = np.zeros(batch, bool)
        self.live = np.zeros(batch, bool)
        self._places: Array | None = None  # of quotes, see Quotable

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each stream, int [B]."""
        return self._length.copy()

    def _require_capacity(self, extra: np.ndarray) -> None:
        needed = self._length + extra
        if (needed > self.capacity).any():
            b = int(np.argmax(needed))
            raise ValueError(
                f"stream {b}: {extra[b]} more tokens do not fit, {self._length[b]} of "
                f"{self.capacity} are used; rewind, or make Streams larger"
            )

    def _place(self, x: np.ndarray) -> np.ndarray | Array:
        if self._mesh is None:
            return x
        return device_put_global(x, _layout(x.shape, self._mesh))

    def append(self, runs: Sequence[Sequence[int]], *, columns: int | None = None):
        """Append one run of ids to each stream; an empty run leaves it as it is.

        `columns` pads the runs to a fixed width, so that few shapes compile.

        Raises:
          ValueError: there are not as many runs as streams, a run is longer than
            `columns`, or the capacity is exceeded.
        """
        if len(runs) != self.batch:
            raise ValueError(f"expected {self.batch} runs, got {len(runs)}")
        longest = max(len(run) for run in runs)
        columns = max(longest, 1) if columns is None else columns
        if longest > columns:
            raise ValueError(f"a run of {longest} ids in {columns} columns")
        count = np.array([len(run) for run in runs], np.int32)
        self._require_capacity(count)
        columns = min(columns, self.capacity)
        ids = np.zeros((self.batch, columns), np.int32)
        for row, run in zip(ids, runs, strict=True):
            row[: len(run)] = run
        m = self._model
        self._state = _append(
            m.definition,
            m.params,
            self._state,
            self._place(ids),
            self._place(count),
            self._mesh,
        )
        self._length = self._length + count
        self._ready |= count > 0

    def sample(
        self,
        grammar: Grammar,
        keys: Array | np.ndarray,
        *,
        max_tokens: int,
        limit: np.ndarray | None = None,
        enough: int = 0,
        active: np.ndarray | None = None,
        banned: np.ndarray | None = None,
        quotable: Quotable | None = None,
        resume: bool = False,
    ) -> SampledTokens:
        """Sample the active streams until the grammar ends, or `max_tokens` tokens.

        Args:
          keys: one PRNG key a stream, or its data.
          limit: the token limit of each stream, int [B], where it is below
            `max_tokens`.
          enough: sampling pauses as soon as this many streams run, or fewer.
          banned: bool [B, V], removes tokens from those that the grammar allows.
          quotable: what the first phase may quote, a row for each stream.
          resume: streams continue in grammar and noise where the last call left them;
            `live` tells which of them had not ended.

        Raises:
          ValueError: a stream is empty, or its capacity is exceeded.
        """
        active = np.ones(self.batch, bool) if active is None else np.asarray(active)
        if (active & ~self._ready).any():
            b = int(np.argmax(active & ~self._ready))
            raise ValueError(f"stream {b} has nothing to continue from: append first")
        whole = np.full(self.batch, max_tokens, np.int32)
        limit = whole if limit is None else np.minimum(limit, whole).astype(np.int32)
        self._require_capacity(np.where(active, limit, 0))
        if not resume:
            self._state = self._state._replace(
                **{
                    name: self._place(np.zeros(self.batch, np.int32))
                    for name in ("phase", "count", "draws")
                }
            )
        m = self._model
        banned_array = None if banned is None else self._place(banned)
        places = self._places if resume else None
        if quotable is not None:
            if places is None:
                places = self._place(np.zeros(quotable.tokens.shape, bool))
            quotable = Quotable(*(self._place(np.asarray(x)) for x in quotable))
        self._state, self._places, live, out = _sample(
            m.definition,
            m.params,
            self._state,
            grammar,
            keys,
            self._place(limit),
            enough,
            bucket(max_tokens, SAMPLE_BUCKET),
            self._place(active),
            banned_array,
            quotable,
            places,
            self._mesh,
        )
        tokens = SampledTokens(*(np.asarray(x) for x in out))
        cut = {n: x[:, :max_tokens] for n, x in tokens._asdict().items() if x.ndim > 1}
        sampled = tokens._replace(**cut)
        self._length = self._length + sampled.length
        self.live = np.asarray(live)
        return sampled

    def replace(
        self, rows: Sequence[int], source: "Streams", source_rows: Sequence[int]
    ):
        """Replace streams by streams of another batch of the same shape.

        Raises:
          ValueError: the shapes differ.
        """
        if (source.batch, source.capacity) != (self.batch, self.capacity):
            raise ValueError(
                f"expected {self.batch} streams of {self.capacity} tokens, got "
                f"{source.batch} of {source.capacity}"
            )
        index, replaced = np.zeros(self.batch, np.int32), np.zeros(self.batch, bool)
        index[rows], replaced[rows] = source_rows, True
        self._state = _replace_rows(
            self._state,
            source._state,
            self._place(index),
            self._place(replaced),
            self._mesh,
        )
        self._length = np.where(replaced, source._length[index], self._length)
        self._ready = np.where(replaced, source._ready[index], self._ready)

    def rewind(self, lengths: Sequence[int]) -> None:
        """Drop all but the first `lengths[b]` tokens of each stream.

        A shortened stream needs a token appended before it is sampled from.
        """
        keep = np.asarray(lengths, np.int32)
        if keep.shape != (self.batch,) or (keep > self._length).any() or keep.min() < 0:
            raise ValueError(f"lengths must be [B] within {self._length}, got {keep}")
        self._ready &= keep == self._length
        self._length = keep
        self._state = self._state._replace(length=self._place(keep))


def bucket(n: int, size: int = PROMPT_BUCKET) -> int:
    """Return the least multiple of `size` that holds n, so that few shapes compile."""
    return max(size, -(-n // size) * size)
