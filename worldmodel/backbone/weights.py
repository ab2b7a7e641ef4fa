"""Model directories: config.json, model.safetensors, tokenizer.json (Hugging Face).

A directory written here loads with transformers.AutoModelForCausalLM; one of the
families Llama and LFM2 from elsewhere loads here. A missing, extra or misshapen tensor
is an error that names it.
"""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file

from worldmodel.backbone.config import ATTENTION, CONVOLUTION, ModelConfig
from worldmodel.backbone.model import Decoder, Model
from worldmodel.text.records import replacing
from worldmodel.text.tokenizer import TextTokenizer


class _Family(NamedTuple):
    """How Transformers names a family: its class, its epsilon and its tensors."""

    architecture: str
    epsilon: str
    layer: dict[str, str]
    norm: str


_FAMILIES = {
    "llama": _Family(
        "LlamaForCausalLM",
        "rms_norm_eps",
        {
            "input_norm.scale": "input_layernorm",
            "mixer.q.kernel": "self_attn.q_proj",
            "mixer.k.kernel": "self_attn.k_proj",
            "mixer.v.kernel": "self_attn.v_proj",
            "mixer.o.kernel": "self_attn.o_proj",
            "post_norm.scale": "post_attention_layernorm",
            "gate.kernel": "mlp.gate_proj",
            "up.kernel": "mlp.up_proj",
            "down.kernel": "mlp.down_proj",
        },
        "model.norm.weight",
    ),
    "lfm2": _Family(
        "Lfm2ForCausalLM",
        "norm_eps",
        {
            "input_norm.scale": "operator_norm",
            "mixer.q.kernel": "self_attn.q_proj",
            "mixer.k.kernel": "self_attn.k_proj",
            "mixer.v.kernel": "self_attn.v_proj",
            "mixer.o.kernel": "self_attn.out_proj",
            "mixer.q_norm.scale": "self_attn.q_layernorm",
            "mixer.k_norm.scale": "self_attn.k_layernorm",
            "mixer.into.kernel": "conv.in_proj",
            "mixer.taps": "conv.conv",
            "mixer.out.kernel": "conv.out_proj",
            "post_norm.scale": "ffn_norm",
            "gate.kernel": "feed_forward.w1",
            "up.kernel": "feed_forward.w3",
            "down.kernel": "feed_forward.w2",
        },
        "model.embedding_norm.weight",
    ),
}


_FIXED: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": False, "mlp_bias": False},
    "lfm2": {"conv_bias": False, "block_auto_adjust_ff_dim": False},
}
"""Options of a family that this decoder has at one value only, written out."""


def _hf_name(path: tuple[Any, ...], family: _Family) -> str:
    name = ".".join(map(str, path[2:] if path[0] == "layers" else path))
    if path[0] == "layers":
        return f"model.layers.{path[1]}.{family.layer[name]}.weight"
    return {
        "embed": "model.embed_tokens.weight",
        "norm.scale": family.norm,
        "head": "lm_head.weight",
    }[name]


def _to_file(path: tuple[Any, ...], value: np.ndarray) -> np.ndarray:
    if path[-1] == "kernel":
        return value.T  # nnx keeps [in, out], the file [out, in]
    return value.T[:, None] if path[-1] == "taps" else value  # [size, D]: [D, 1, size]


def _from_file(path: tuple[Any, ...], value: np.ndarray) -> np.ndarray:
    if path[-1] == "taps" and value.ndim == 3 and value.shape[1] == 1:
        return value[:, 0].T
    return value.T if path[-1] == "kernel" else value


def save_model(
    directory: str | os.PathLike, model: Model, tokenizer: TextTokenizer
) -> None:
    """Write a directory that Transformers loads as a model of the config's family."""
    root, c = Path(directory), model.config
    family = _FAMILIES[c.model_type]
    root.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, leaf in nnx.to_flat_state(model.params):
        value = np.asarray(leaf[...])
        tensors[_hf_name(path, family)] = np.ascontiguousarray(_to_file(path, value))
    temporary = root / ".model.safetensors.tmp"
    save_file(tensors, temporary, metadata={"format": "pt"})
    temporary.replace(root / "model.safetensors")
    tokenizer.save(root)
    shape = dataclasses.asdict(c) | {"layer_types": c.mixers}
    if c.model_type == "llama":
        del shape["layer_types"], shape["conv_L_cache"]
    config = {
        "architectures": [family.architecture],
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "torch_dtype": "float32",
        "pad_token_id": tokenizer.control("pad"),
        "bos_token_id": None,
        "eos_token_id": tokenizer.control("end"),
        **shape,
        family.epsilon: c.rms_norm_eps,
        **_FIXED[c.model_type],
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
    kind = raw.get("model_type")
    if kind not in _FAMILIES:
        raise ValueError(
            f"{path}: model_type must be one of {sorted(_FAMILIES)}, got {kind!r}"
        )
    for option in ("attention_bias", "mlp_bias", "conv_bias"):
        if raw.get(option):
            raise ValueError(f"{path}: {option} is not supported")
    scaling = raw.get("rope_scaling") or {}
    rope = raw.get("rope_parameters") or {}
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"{path}: hidden_act must be 'silu', got {raw['hidden_act']!r}"
        )
    for rule in (scaling.get("rope_type"), scaling.get("type"), rope.get("rope_type")):
        if rule not in (None, "default"):
            raise ValueError(f"{path}: rope_type {rule!r} is not supported")
    heads = raw["num_attention_heads"]
    return ModelConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        rope_theta=rope.get("rope_theta") or raw.get("rope_theta", 10_000.0),
        model_type=kind,
        **(_lfm2(raw) if kind == "lfm2" else _llama(raw)),
    )


def _llama(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "intermediate_size": raw["intermediate_size"],
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
    }


def _lfm2(raw: dict[str, Any]) -> dict[str, Any]:
    layers, size = raw["num_hidden_layers"], raw.get("block_ff_dim")
    size = raw["intermediate_size"] if size is None else size
    if raw.get("block_auto_adjust_ff_dim", True):
        size, step = int(2 * size / 3), raw.get("block_multiple_of", 256)
        size = int(raw.get("block_ffn_dim_multiplier", 1.0) * size)
        size = -(-size // step) * step
    where = raw.get("full_attn_idxs")
    where = range(layers) if where is None else where
    kinds = raw.get("layer_types") or [
        ATTENTION if i in where else CONVOLUTION for i in range(layers)
    ]
    return {
        "intermediate_size": size,
        "rms_norm_eps": raw.get("norm_eps", 1e-5),
        "tie_word_embeddings": raw.get(
            "tie_embedding", raw.get("tie_word_embeddings", True)
        ),
        "layer_types": tuple(kinds),
        "conv_L_cache": raw.get("conv_L_cache", 3),
    }


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
    """A model directory as float32; our control tokens get embedding rows if new.

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
        name = _hf_name(path, _FAMILIES[config.model_type])
        if name not in tensors:
            raise ValueError(f"{root}: tensor {name!r} is missing")
        value = tensors.pop(name)
        value = _from_file(path, value)
        if value.shape != leaf.shape:
            raise ValueError(
                f"{root}: tensor {name!r} must be {leaf.shape}, got {value.shape}"
            )
        flat.append((path, leaf.replace(jnp.asarray(value, jnp.float32))))
    extra = sorted(n for n in tensors if not n.endswith("rotary_emb.inv_freq"))
    if extra:
        raise ValueError(
            f"{root}: tensors {extra[:3]} have no place in a model "
            f"of type {config.model_type}"
        )
    template = create_definition(config)
    return Model(template, nnx.from_flat_state(flat), config), tokenizer


def create_definition(config: ModelConfig) -> nnx.GraphDef:
    """The static half of a decoder, without allocating its parameters."""
    return nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[0]
