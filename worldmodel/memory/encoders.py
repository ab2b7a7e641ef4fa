"""phi(state, action): unit vectors by which transitions are looked up.

Lexical: hashed character n-grams, no model needed. Hidden: what a fitted model holds
at the end of reading state and action.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from worldmodel.backbone.generate import bucket
from worldmodel.backbone.model import Model, read
from worldmodel.text import prompts
from worldmodel.text.records import State
from worldmodel.text.tokenizer import TextTokenizer

DIMENSIONS = 256
ROWS = 32
"""Texts that a model reads at a time."""


@runtime_checkable
class Encoder(Protocol):
    """Turns (state, action) into unit vectors; `name` is kept beside stored ones."""

    name: str
    dimensions: int

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """One unit vector a pair."""
        ...


def _unit(x: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def _grams(text: str, size: int = 3) -> list[str]:
    padded = f" {text.lower()} "
    return [padded[i : i + size] for i in range(max(len(padded) - size + 1, 1))]


class Lexical:
    """Hashed character trigrams; the action weighs as much as the whole state."""

    name = "lexical"

    def __init__(self, dimensions: int = DIMENSIONS):
        self.dimensions = dimensions
        self._codes: dict[tuple[str, str], int] = {}
        self._states: dict[State, np.ndarray] = {}

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """One unit vector a pair."""
        out = np.zeros((len(pairs), self.dimensions), np.float32)
        for i, (state, action) in enumerate(pairs):
            if state not in self._states:
                if len(self._states) > 20_000:
                    self._states.clear()
                self._states[state] = self._half("\n".join(state), "s")
            out[i] = self._half(action, "a") + self._states[state]
        return _unit(out)

    def _half(self, text: str, salt: str) -> Float[np.ndarray, " D"]:
        """A unit vector of signed counts."""
        codes = np.array([self._code(salt, gram) for gram in _grams(text)], np.int64)
        signs = np.where(codes & 0x40000000, 1.0, -1.0)
        counts = np.bincount(codes % self.dimensions, signs, self.dimensions)
        return _unit(counts.astype(np.float32))

    def _code(self, salt: str, gram: str) -> int:
        key = (salt, gram)
        if key not in self._codes:
            if len(self._codes) > 500_000:
                self._codes.clear()
            self._codes[key] = zlib.crc32((salt + gram).encode())
        return self._codes[key]


class Hidden:
    """The last hidden state of a model that has read state and action.

    Worth asking of a model that was fitted to such states; `name` should say which.
    """

    def __init__(self, model: Model, tokenizer: TextTokenizer, *, name: str = "hidden"):
        self.name, self._tok = name, tokenizer
        self.dimensions = model.config.hidden_size
        self._params = model.params

        def last(params, ids: Int[Array, "B T"], length: Int[Array, " B"]):
            at = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
            inside = (at < length[:, None]).astype(jnp.int32)
            hidden = read(model.definition, params, ids, at, inside).hidden
            place = jnp.maximum(length - 1, 0)[:, None, None]
            return jnp.take_along_axis(hidden, place, axis=1)[:, 0]

        self._last = jax.jit(last)

    def encode(self, pairs: Sequence[tuple[State, str]]) -> Float[np.ndarray, "N D"]:
        """One unit vector a pair."""
        out = np.zeros((len(pairs), self.dimensions), np.float32)
        texts = [
            [
                *prompts.state_ids(self._tok, state),
                self._tok.control("action"), *self._tok.encode(action),
            ]
            for state, action in pairs
        ]  # fmt: skip
        order = np.argsort([len(t) for t in texts], kind="stable")
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            width = bucket(max(len(texts[i]) for i in rows))
            ids = np.zeros((ROWS, width), np.int32)
            length = np.zeros(ROWS, np.int32)
            for b, i in enumerate(rows):
                ids[b, : len(texts[i])], length[b] = texts[i], len(texts[i])
            found = self._last(self._params, ids, length)
            out[rows] = np.asarray(found, np.float32)[: len(rows)]
        return _unit(out)
