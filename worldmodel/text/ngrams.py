"""Texts as vectors without a model: hashed character trigrams (feature hashing).

text -> its trigrams -> a hash of each, which gives a sign and a position -> a unit
vector of counts.
"""

import zlib

import numpy as np
from jaxtyping import Float

CACHE_SIZE = 500_000
"""Hashes in the cache; it is cleared when there are more."""


def unit(x: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
    """Return the vectors at length one; zero vectors stay zero."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def ngrams(text: str, size: int = 3) -> list[str]:
    """Return all runs of `size` characters of the padded, lower-cased text."""
    padded = f" {text.lower()} "
    return [padded[i : i + size] for i in range(max(len(padded) - size + 1, 1))]


class HashedNgrams:
    """Unit vectors of signed trigram counts; the hashes of trigrams are cached."""

    def __init__(self, dimensions: int):
        if dimensions < 1:
            raise ValueError(f"dimensions must be >= 1, got {dimensions}")
        self.dimensions = dimensions
        self._codes: dict[tuple[str, str], int] = {}

    def vector(self, text: str, salt: str = "") -> Float[np.ndarray, " D"]:
        """Return the text's vector; other salts move trigrams to other positions."""
        codes = np.array([self._code(salt, gram) for gram in ngrams(text)], np.int64)
        signs = np.where(codes & 0x40000000, 1.0, -1.0)
        counts = np.bincount(codes % self.dimensions, signs, self.dimensions)
        return unit(counts.astype(np.float32))

    def _code(self, salt: str, gram: str) -> int:
        key = (salt, gram)
        if key not in self._codes:
            if len(self._codes) > CACHE_SIZE:
                self._codes.clear()
            self._codes[key] = zlib.crc32((salt + gram).encode())
        return self._codes[key]
