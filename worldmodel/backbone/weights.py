"""Model directories: config.json, model.safetensors, tokenizer.json (Hugging Face).

A directory written here loads with transformers.AutoModelForCausalLM; a Llama
directory from elsewhere loads here. A missing, extra or misshapen tensor is an error
that names it.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import Decoder, Model
from worldmodel.text.records import replacing
from worldmodel.text.tokenizer import TextTokenizer

_LAYER = {
    "input_norm.scale": "input_layernorm.weight",
    "q.kernel": "self_attn.q_proj.weight",
    "k.kernel": "self_attn.k_proj.weight",
    "v.kernel": "self_attn.v_proj.weight",
    "o.kernel": "self_attn.o_proj.weight",
    "post_norm.scale": "post_attention_layernorm.weight",
    "gate.kernel": "mlp.gate_proj.weight",
    "up.kernel": "mlp.up_proj.weight",
    "down.kernel": "mlp.down_proj.weight",
}
_TOP = {
    "embed": "model.embed_tokens.weight",
    "norm.scale": "model.norm.weight",
    "head": "lm_head.weight",
}


def _hf_name(path: tuple[Any, ...]) -> str:
    if path[0] == "layers":
        return f"model.layers.{path[1]}.{_LAYER['.'.join(map(str, path[2:]))]}"
    return _TOP[".".join(map(str, path))]


def _is_kernel(path: tuple[Any, ...]) -> bool:
    return path[-1] == "kernel"  # nnx keeps [in, out], the file [out, in]


def save_model(
    directory: str | os.PathLike, model: Model, tokenizer: TextTokenizer
) -> None:
    """Write a directory that Transformers loads as a Llama model."""
    root, c = Path(directory), model.config
    root.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, leaf in nnx.to_flat_state(model.params):
        value = np.asarray(leaf[...])
        tensors[_hf_name(path)] = np.ascontiguousarray(
            value.T if _is_kernel(path) else value
        )
    temporary = root / ".model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.replace(root / "model.safetensors")
    tokenizer.save(root)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 4096,
        "torch_dtype": "float32",
        "pad_token_id": tokenizer.control("pad"),
        "bos_token_id": None,
        "eos_token_id": tokenizer.control("end"),
        **{k: getattr(c, k) for k in ModelConfig.__dataclass_fields__},
    }
    with replacing(root / "config.json") as file:
        json.dump(config, file, indent=2)


def load_config(directory: str | os.PathLike) -> ModelConfig:
    """The shape in a directory's config.json.

    Raises:
      FileNotFoundError: no config.json there.
      ValueError: an architecture or option that this decoder does not have.
    """
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: expected a Hugging Face model directory")
    raw = json.loads(path.read_text())
    if raw.get("model_type") != "llama":
        raise ValueError(
            f"{path}: model_type must be 'llama', got {raw.get('model_type')!r}"
        )
    for option in ("attention_bias", "mlp_bias"):
        if raw.get(option):
            raise ValueError(f"{path}: {option} is not supported")
    scaling = raw.get("rope_scaling") or {}
    rope = raw.get("rope_parameters") or {}
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"{path}: hidden_act must be 'silu', got {raw['hidden_act']!r}"
        )
    for kind in (scaling.get("rope_type"), scaling.get("type"), rope.get("rope_type")):
        if kind not in (None, "default"):
            raise ValueError(f"{path}: rope_type {kind!r} is not supported")
    heads = raw["num_attention_heads"]
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        intermediate_size=raw["intermediate_size"],
        rope_theta=rope.get("rope_theta") or raw.get("rope_theta", 10_000.0),
        rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
        tie_word_embeddings=raw.get("tie_word_embeddings", False),
    )


def _grown(table: np.ndarray, rows: int) -> np.ndarray:
    """An embedding with rows for new tokens: the mean of the known ones."""
    if table.shape[0] >= rows:
        return table
    extra = np.repeat(table.mean(0, keepdims=True), rows - table.shape[0], axis=0)
    return np.concatenate([table, extra.astype(table.dtype)])


def _read_tensors(root: Path) -> dict[str, np.ndarray]:
    files = sorted(root.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{root}: expected *.safetensors")
    tensors: dict[str, np.ndarray] = {}
    for file in files:
        tensors |= load_file(file)
    return tensors


def load_model(directory: str | os.PathLike) -> tuple[Model, TextTokenizer]:
    """A Llama directory as float32; our control tokens get embedding rows if new.

    Raises:
      FileNotFoundError: a file of the directory is missing.
      ValueError: a tensor is missing, extra or misshapen; the message names it.
    """
    root = Path(directory)
    config, tokenizer = load_config(root), TextTokenizer.load(root)
    tensors = _read_tensors(root)
    vocab = max(config.vocab_size, tokenizer.vocab_size)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in tensors:
            tensors[name] = _grown(tensors[name], vocab)
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    config = dataclasses.replace(config, vocab_size=vocab)
    shapes = nnx.eval_shape(lambda: nnx.state(Decoder(config, rngs=nnx.Rngs(0))))
    flat = []
    for path, leaf in nnx.to_flat_state(shapes):
        name = _hf_name(path)
        if name not in tensors:
            raise ValueError(f"{root}: tensor {name!r} is missing")
        value = tensors.pop(name)
        value = value.T if _is_kernel(path) else value
        if value.shape != leaf.shape:
            raise ValueError(
                f"{root}: tensor {name!r} must be {leaf.shape}, got {value.shape}"
            )
        flat.append((path, leaf.replace(jnp.asarray(value, jnp.float32))))
    extra = sorted(n for n in tensors if not n.endswith("rotary_emb.inv_freq"))
    if extra:
        raise ValueError(f"{root}: tensors {extra[:3]} have no place in a Llama model")
    template = create_definition(config)
    return Model(template, nnx.from_flat_state(flat), config), tokenizer


def create_definition(config: ModelConfig) -> nnx.GraphDef:
    """The static half of a decoder, without allocating its parameters."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[0]
