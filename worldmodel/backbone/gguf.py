"""Read GGUF files (llama.cpp) as named arrays: metadata and dequantised tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only numpy is needed;
the file is memory-mapped, and a tensor is read on request.
"""

import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_SCALARS = {
    0: "B",
    1: "b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


class _Kind(NamedTuple):
    """A storage type: values in a block, and bytes of a block."""

    name: str
    values: int
    size: int


_KINDS = {
    0: _Kind("F32", 1, 4),
    1: _Kind("F16", 1, 2),
    30: _Kind("BF16", 1, 2),
    2: _Kind("Q4_0", 32, 18),
    3: _Kind("Q4_1", 32, 20),
    8: _Kind("Q8_0", 32, 34),
}


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    kind: int
    offset: int


class _Cursor:
    """Reads scalars, strings and arrays one after the other."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.data, self.at = path, data, 0

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if self.at + size > self.data.size:
            raise ValueError(f"{self.path}: ends in its header, at byte {self.at}")
        self.at += size
        return self.data[self.at - size : self.at].tobytes()

    def scalar(self, kind: int) -> Any:
        """Return a number or a truth value."""
        if kind not in _SCALARS:
            raise ValueError(f"{self.path}: unknown metadata type {kind}")
        form = _SCALARS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def string(self) -> str:
        """Return a length-prefixed UTF-8 string."""
        return self.take(self.scalar(10)).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """Return a metadata value: a scalar, a string or a list of either."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar(4), self.scalar(10)
            return [self.value(inner) for _ in range(count)]
        return self.scalar(kind)


class Gguf:
    """An open GGUF file.

    `metadata` maps keys to values, `names` lists the tensors, `tensor` dequantises one.

    Raises:
      ValueError: not a GGUF file of version 2 or 3, or one that ends early.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if self.path.stat().st_size < 24:
            raise ValueError(f"{self.path}: not a GGUF file")
        self._data = np.memmap(self.path, np.uint8, "r")
        c = _Cursor(self.path, self._data)
        if c.take(4) != b"GGUF":
            raise ValueError(f"{self.path}: not a GGUF file")
        version, tensors, pairs = c.scalar(4), c.scalar(10), c.scalar(10)
        if version not in (2, 3):
            raise ValueError(f"{self.path}: GGUF version must be 2 or 3, got {version}")
        self.metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key, kind = c.string(), c.scalar(4)
            self.metadata[key] = c.value(kind)
        self._tensors: dict[str, _Tensor] = {}
        for _ in range(tensors):
            name = c.string()
            shape = tuple(c.scalar(10) for _ in range(c.scalar(4)))
            kind, offset = c.scalar(4), c.scalar(10)
            self._tensors[name] = _Tensor(shape[::-1], kind, offset)  # innermost first
        align = self.metadata.get("general.alignment", 32)
        self._start = -(-c.at // align) * align

    @property
    def names(self) -> list[str]:
        """The tensors' names, as in the file."""
        return list(self._tensors)

    def tensor(self, name: str) -> np.ndarray:
        """Return one tensor as float32, in the shape [out, in].

        Raises:
          ValueError: the storage type is not supported, or the file ends early; the
            message names the tensor.
        """
        shape, number, offset = self._tensors[name]
        if number not in _KINDS:
            type_names = ", ".join(k.name for k in _KINDS.values())
            raise ValueError(
                f"{self.path}: tensor {name!r} must be stored as one of {type_names}, "
                f"got type {number}"
            )
        kind = _KINDS[number]
        size = int(np.prod(shape)) // kind.values * kind.size
        start = self._start + offset
        raw = self._data[start : start + size]
        if raw.size != size:
            raise ValueError(f"{self.path}: ends inside tensor {name!r}")
        return _dequantise(kind.name, raw.reshape(-1, kind.size)).reshape(shape)


def _halves(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """Turn bytes [N, 16] into [N, 32]: low halves first, then high halves."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.float32)


def _dequantise(kind: str, raw: np.ndarray) -> np.ndarray:
    """Turn blocks [N, bytes] into float32 [N, values]."""
    if kind == "F32":
        return np.ascontiguousarray(raw).view(np.float32)
    if kind == "F16":
        return _halves(raw)
    if kind == "BF16":
        wide = np.ascontiguousarray(raw).view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    scale = _halves(raw[:, :2])
    if kind == "Q8_0":
        return scale * np.ascontiguousarray(raw[:, 2:]).view(np.int8)
    if kind == "Q4_0":
        return scale * (_nibbles(raw[:, 2:]) - 8)
    return scale * _nibbles(raw[:, 4:]) + _halves(raw[:, 2:4])  # Q4_1
