"""Texts as vectors without a model: hashed character trigrams.

text -> its trigrams -> a sign and a place by a hash of each -> a unit vector of counts.
Measured elsewhere to look up as well as semantic embeddings do (papers.md 3.2).
"""

import zlib

import numpy as np
from jaxtyping import Float

CACHE_SIZE = 500_000
"""Hashes that are kept before all are forgotten."""


def unit(x: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
    """The vectors at length one; zero stays zero."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)


def ngrams(text: str, size: int = 3) -> list[str]:
    """Runs of `size` characters, a blank before and after the text."""
    padded = f" {text.lower()} "
    return [padded[i : i + size] for i in range(max(len(padded) - size + 1, 1))]


class HashedNgrams:
    """Unit vectors of signed counts of trigrams; hashes are remembered."""

    def __init__(self, dimensions: int):
        if dimensions < 1:
            raise ValueError(f"dimensions must be >= 1, got {dimensions}")
        self.dimensions = dimensions
        self._codes: dict[tuple[str, str], int] = {}

    def vector(self, text: str, salt: str = "") -> Float[np.ndarray, " D"]:
        """The text's vector; other salts put the same trigrams elsewhere."""
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
