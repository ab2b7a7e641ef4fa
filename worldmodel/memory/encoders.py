"""Encoders phi(state, action): unit vectors by which transitions are retrieved.

Lexical: hashed character n-grams, without a model. Hidden: the last hidden state of a
fitted model that has read state and action.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from worldmodel.backbone.mesh import to_host
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.streams import bucket
from worldmodel.data.records import State
from worldmodel.text import prompts
from worldmodel.text.ngrams import HashedNgrams, unit
from worldmodel.text.tokenizer import TextTokenizer

DIMENSIONS = 256
ROWS = 32
"""Number of texts that the model reads in one batch."""


@runtime_checkable
class Encoder(Protocol):
    """Turns (state, action) into unit vectors; `name` is saved with them."""

    name: str
    dimensions: int

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """Return one unit vector a pair."""
        ...


class Lexical:
    """Hashed character trigrams; the action has the same weight as the whole state."""

    name = "lexical"

    def __init__(self, dimensions: int = DIMENSIONS):
        self.dimensions, self._hashed = dimensions, HashedNgrams(dimensions)
        self._states: dict[State, np.ndarray] = {}

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """Return one unit vector a pair."""
        out = np.zeros((len(pairs), self.dimensions), np.float32)
        for i, (state, action) in enumerate(pairs):
            if state not in self._states:
                if len(self._states) > 20_000:  # bounds the cache of state vectors
                    self._states.clear()
                self._states[state] = self._hashed.vector("\n".join(state), "s")
            out[i] = self._hashed.vector(action, "a") + self._states[state]
        return unit(out)


class Hidden:
    """The last hidden state of a model that has read state and action.

    The model should be fitted to such states; `name` should identify it.
    """

    def __init__(self, model: Model, tokenizer: TextTokenizer, *, name: str = "hidden"):
        self.name, self._tok = name, tokenizer
        self.dimensions = model.config.hidden_size
        self._params = model.params

        def last(params, ids: Int[Array, "B T"], length: Int[Array, " B"]):
            at = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
            inside = (at < length[:, None]).astype(jnp.int32)
            hidden = apply_decoder(model.definition, params, ids, at, inside).hidden
            place = jnp.maximum(length - 1, 0)[:, None, None]
            return jnp.take_along_axis(hidden, place, axis=1)[:, 0]

        self._last = jax.jit(last)

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """Return one unit vector a pair."""
        out = np.zeros((len(pairs), self.dimensions), np.float32)
        texts = [
            [
                *prompts.state_ids(self._tok, state),
                self._tok.control("action"),
                *self._tok.encode(action),
            ]
            for state, action in pairs
        ]
        # Texts of similar length share a batch: each is padded to its longest.
        order = np.argsort([len(t) for t in texts], kind="stable")
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            width = bucket(max(len(texts[i]) for i in rows))
            ids = np.zeros((ROWS, width), np.int32)
            length = np.zeros(ROWS, np.int32)
            for b, i in enumerate(rows):
                ids[b, : len(texts[i])], length[b] = texts[i], len(texts[i])
            hidden = self._last(self._params, ids, length)
            out[rows] = to_host(hidden).astype(np.float32)[: len(rows)]
        return unit(out)
