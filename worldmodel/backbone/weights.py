"""Model directories: config.json, *.safetensors, tokenizer files (Hugging Face).

A directory written here loads with transformers.AutoModelForCausalLM, and directories
of the families of families.py load here. Tensors are read one at a time, each directly
to its dtype and its place on a mesh. A missing, extra or misshapen tensor is an error
that names it.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from worldmodel.backbone import families, lora
from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.mesh import parameter_sharding, to_host
from worldmodel.backbone.model import Model, abstract_model
from worldmodel.data import checksums, processes
from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.records import atomic_write
from worldmodel.text.tokenizer import EXTRA_FILES, TextTokenizer, Vocabulary

MAX_SHARD_BYTES = 2 << 30
"""Bytes of one file; a larger model is written as several and an index."""

ROWS_READ = 4096
"""Rows of a table that are compared at once."""

Index = tuple[slice, ...]


class _Files:
    """The tensors of a directory, by name, read in slices."""

    def __init__(self, root: Path):
        self._open: dict[str, Any] = {}
        self.names: set[str] = set()
        for file in _tensor_files(root):
            try:
                handle = safe_open(file, framework="np")
            except (SafetensorError, OSError, ValueError) as error:
                raise RecordError(f"{file}: no safetensors file ({error})") from None
            for name in handle.keys():
                self._open[name] = handle
                self.names.add(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor in its file."""
        return tuple(self._open[name].get_slice(name).get_shape())

    def read(self, name: str, index: Index) -> np.ndarray:
        """Return a slice of a tensor."""
        return self._open[name].get_slice(name)[index]


def _tensor_files(root: Path) -> list[Path]:
    index = root / "model.safetensors.index.json"
    if index.is_file():
        files = _indexed_files(root, index)
    elif (root / "model.safetensors").is_file():
        files = [root / "model.safetensors"]
    else:
        files = list(root.glob("*.safetensors"))
    missing = [f for f in files if not f.is_file()]
    if missing or not files:
        if missing and index.is_file():
            raise FileNotFoundError(f"{missing[0]}: missing, and {index.name} names it")
        raise FileNotFoundError(f"{root}: no *.safetensors")
    return sorted(files)


def _indexed_files(root: Path, index: Path) -> list[Path]:
    """Return the files of an index; one outside of the directory is an error."""
    names = read_json_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(n, str) for n in names.values()
    ):
        raise RecordError(f"{index}: expected a weight_map of file names")
    for name in set(names.values()):
        if Path(name).name != name or name in ("", ".", ".."):
            raise RecordError(
                f"{index}: expected names of files in this directory, got {name!r}"
            )
    return [root / name for name in set(names.values())]


def _equal(files: _Files, names: tuple[str, str]) -> bool:
    """Return whether two tensors are equal; one of them may be missing."""
    if not set(names) <= files.names:
        return True
    shapes = [files.shape(name) for name in names]
    if shapes[0] != shapes[1]:
        return False
    rows = shapes[0][0]
    blocks = (slice(i, min(i + ROWS_READ, rows)) for i in range(0, rows, ROWS_READ))
    a, b = names
    return all(np.array_equal(files.read(a, (x,)), files.read(b, (x,))) for x in blocks)


def _parameter_shape(path: tuple[Any, ...], shape: Sequence[int]) -> tuple[int, ...]:
    """Return a parameter's shape from the shape of its tensor."""
    if path[-1] == "taps" and len(shape) == 3 and shape[1] == 1:
        return (shape[2], shape[0])  # [D, 1, size] in the file
    return tuple(shape[::-1]) if path[-1] == "kernel" else tuple(shape)


def _slice(files: _Files, name: str, path: tuple[Any, ...], index: Index) -> np.ndarray:
    """Return a slice of a parameter, read from its tensor."""
    if path[-1] == "kernel":
        return files.read(name, index[::-1]).T  # here [in, out], in the file [out, in]
    if path[-1] == "taps":
        return files.read(name, (index[1], slice(None), index[0]))[:, 0].T
    return files.read(name, index)


def load_config(directory: str | os.PathLike) -> ModelConfig:
    """Return the shape in a directory's config.json.

    Raises:
      FileNotFoundError: the directory has no config.json.
      ValueError: this decoder lacks the architecture or an option.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a Hugging Face model directory")
    raw = read_json_object(path)
    try:
        return families.read_config(families.with_defaults(raw))
    except (ValueError, TypeError, ArithmeticError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from error


def load_decoder(
    directory: str | os.PathLike,
    *,
    vocab_size: int = 0,
    dtype: str = "float32",
    mesh: Mesh | None = None,
) -> Model:
    """Return the decoder of a model directory, laid out on `mesh` if given.

    Where `vocab_size` exceeds the directory's, embeddings get rows for the new tokens:
    the mean of the existing ones.

    Raises:
      FileNotFoundError: a file of the directory is missing.
      RecordError: a file is damaged; the message names it.
      ValueError: a tensor is missing, extra, misshapen, or holds NaN or infinity; the
        message names it.
    """
    checksums.verify_checksums(Path(directory))
    return _load_decoder(Path(directory), vocab_size, dtype, mesh)


def _load_decoder(root: Path, vocab_size: int, dtype: str, mesh: Mesh | None) -> Model:
    config = load_config(root)
    files, file_vocab_size = _Files(root), config.vocab_size
    config = dataclasses.replace(config, vocab_size=max(file_vocab_size, vocab_size))
    used = set()
    if config.tie_word_embeddings and "lm_head.weight" in files.names:
        used.add("lm_head.weight")
        # As in Transformers: a table of another content is a head of its own.
        tied = _equal(files, ("lm_head.weight", "model.embed_tokens.weight"))
        config = dataclasses.replace(config, tie_word_embeddings=tied)
    definition, shapes = abstract_model(config)
    flat = []
    for path, leaf in nnx.to_flat_state(shapes):
        name = families.tensor_name(path, config.model_type)
        used.add(name)
        expected = leaf.shape
        if path[-1] in ("embed", "head"):
            expected = (file_vocab_size, *leaf.shape[1:])
        value = _parameter(root, files, name, path, expected, leaf.shape, dtype, mesh)
        flat.append((path, leaf.replace(value)))
    extra = sorted(
        n for n in files.names - used if not n.endswith("rotary_emb.inv_freq")
    )
    if extra:
        raise ValueError(
            f"{root}: tensors {extra[:3]} have no place in a model "
            f"of type {config.model_type}"
        )
    return Model(definition, nnx.from_flat_state(flat), config, mesh=mesh)


def _parameter(
    root: Path,
    files: _Files,
    name: str,
    path: tuple[Any, ...],
    expected: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: str,
    mesh: Mesh | None,
) -> jax.Array:
    """Return a parameter of a shape from a tensor of the `expected` shape.

    They differ by the rows of new tokens.
    """
    if name not in files.names:
        raise ValueError(f"{root}: tensor {name!r} is missing")
    file_shape = _parameter_shape(path, files.shape(name))
    if file_shape != expected:
        raise ValueError(
            f"{root}: tensor {name!r} must be {expected} by config.json, got "
            f"{file_shape}"
        )
    target = jnp.dtype(dtype)
    grown: np.ndarray | None = None
    if expected != shape:
        grown = _grow_rows(
            _slice(files, name, path, (slice(None),) * len(file_shape)), shape[0]
        )

    def read(index: Index | None) -> np.ndarray:
        index = (slice(None),) * len(shape) if index is None else index
        part = _slice(files, name, path, index) if grown is None else grown[index]
        if not np.isfinite(part.astype(np.float32)).all():
            raise ValueError(f"{root}: tensor {name!r} holds NaN or infinity")
        return np.ascontiguousarray(part).astype(target)

    if mesh is None:
        return jnp.asarray(read(None))
    placed = parameter_sharding(path, shape, mesh)
    return jax.make_array_from_callback(shape, placed, read)


def _grow_rows(table: np.ndarray, rows: int) -> np.ndarray:
    mean = table.astype(np.float32).mean(0, keepdims=True)
    extra = np.repeat(mean, rows - table.shape[0], axis=0)
    return np.concatenate([table, extra.astype(table.dtype)])


def load_model(
    directory: str | os.PathLike, *, dtype: str = "float32", mesh: Mesh | None = None
) -> tuple[Model, TextTokenizer]:
    """Return a directory's model for our grammar, with rows for its control tokens.

    Raises:
      FileNotFoundError: a file of the directory is missing.
      ValueError: a tensor is missing, extra or misshapen, or tokens of the tokenizer
        have no row; the message names it.
    """
    checksums.verify_checksums(Path(directory))
    tokenizer = check_model_directory(directory)
    size = tokenizer.vocab_size
    return _load_decoder(Path(directory), size, dtype, mesh), tokenizer


def check_model_directory(directory: str | os.PathLike) -> TextTokenizer:
    """Return the tokenizer of a model's directory; no tensor is read.

    Raises:
      FileNotFoundError: a file of the directory is missing.
      ValueError: this decoder lacks the architecture or an option, or tokens of the
        tokenizer have no row.
    """
    rows = load_config(directory).vocab_size
    tokenizer = TextTokenizer.load(directory)
    _tensor_files(Path(directory))
    if unfit := int(tokenizer.text_mask()[rows:].sum()):
        raise ValueError(
            f"{directory}: the tokenizer has {unfit:,} tokens of text beyond the "
            f"{rows:,} of the model (vocab_size): is it another model's?"
        )
    return tokenizer


def save_model(
    directory: str | os.PathLike, model: Model, tokenizer: TextTokenizer | Vocabulary
) -> None:
    """Write a directory that Transformers loads as a model of the config's family.

    Low-rank additions are merged. On several hosts all of them call, the first writes.

    Raises:
      OSError: a file cannot be written; a model that was there before still is.
      ValueError: the family has no name for a part of this decoder.
    """
    root, model = Path(directory), lora.merge(model)
    shape = families.write_config(model.config)
    writes = processes.is_first_process()
    root.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, int]] = []
    pending: dict[str, np.ndarray] = {}
    for path, leaf in nnx.to_flat_state(model.params):
        value = _to_file(path, to_host(leaf[...]))
        if (
            pending
            and sum(x.nbytes for x in pending.values()) + value.nbytes > MAX_SHARD_BYTES
        ):
            shards.append(_write_shard(root, len(shards), pending, writes=writes))
            pending = {}
        pending[families.tensor_name(path, model.config.model_type)] = value
    shards.append(_write_shard(root, len(shards), pending, writes=writes))
    ends: dict[str, Any] = {}
    for name, ids in tokenizer.ends.items():
        ends[f"{name}_token_id"] = ids[0] if len(ids) == 1 else (ids or None)
    stored = str(jax.tree.leaves(model.params)[0].dtype)
    with processes.first_process_writes("model"):
        if not writes:
            return
        (root / checksums.NAME).unlink(missing_ok=True)  # of an earlier model
        _put_in_place(root, shards)
        tokenizer.save(root)
        _write_generation_config(root / "generation_config.json", ends)
        with atomic_write(root / "config.json") as file:
            json.dump(shape | ends | {"torch_dtype": stored}, file, indent=2)
        checksums.write_checksums(root, _model_files(root))


def _write_generation_config(path: Path, ends: Mapping[str, Any]) -> None:
    """Give a model's settings of sampling, where it has such, the ends of its texts.

    They have precedence over those of config.json, and a fitted policy ends a turn with
    another token than the model that it began as.
    """
    if path.is_file():
        settings = read_json_object(path)
        with atomic_write(path) as file:
            json.dump({**settings, **ends}, file, indent=2)


def _model_files(root: Path) -> list[Path]:
    """Return the files of a model that were written into a directory."""
    names = ("config.json", "tokenizer.json", *EXTRA_FILES)
    files = [root / name for name in names if (root / name).is_file()]
    return files + list(root.glob("model*.safetensors*"))


def _to_file(path: tuple[Any, ...], value: np.ndarray) -> np.ndarray:
    if path[-1] == "taps":
        value = value.T[:, None]
    return np.ascontiguousarray(value.T if path[-1] == "kernel" else value)


def _write_shard(
    root: Path, number: int, tensors: dict[str, np.ndarray], *, writes: bool
) -> dict[str, int]:
    if writes:
        file = root / f".model-{number}.tmp"
        try:
            save_file(tensors, file, metadata={"format": "pt"})
        except SafetensorError as error:  # also where a disk is full
            raise OSError(f"{file}: {error}") from error
    return {name: value.nbytes for name, value in tensors.items()}


def _put_in_place(root: Path, written: Sequence[dict[str, int]]) -> None:
    """Rename the written files, and delete those of an earlier model."""
    count, names = len(written), {}
    for number, tensors in enumerate(written):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        name = "model.safetensors" if count == 1 else name
        (root / f".model-{number}.tmp").replace(root / name)
        names |= dict.fromkeys(tensors, name)
    for old in root.glob("model*.safetensors*"):
        if old.name not in names.values():
            old.unlink()
    if count > 1:
        size = sum(sum(tensors.values()) for tensors in written)
        with atomic_write(root / "model.safetensors.index.json") as file:
            json.dump({"metadata": {"total_size": size}, "weight_map": names}, file)
