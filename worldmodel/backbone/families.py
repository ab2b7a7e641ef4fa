"""Model families: how Transformers names their options and tensors.

config.json -> ModelConfig -> config.json, and a parameter's path -> a tensor's name. A
new family of the same parts (config.py) is one more entry of FAMILIES.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from worldmodel.backbone.config import (
    ATTENTION,
    CONVOLUTION,
    SLIDING,
    ModelConfig,
    RopeScaling,
)

Raw = dict[str, Any]


class Family(NamedTuple):
    """One family.

    `layer` maps a layer's parameters to tensors, `options` reads the family's own
    options from a config.json, and `to_raw` returns them for one.
    """

    architecture: str
    layer: dict[str, str]
    norm: str
    options: Callable[[Raw], Raw]
    to_raw: Callable[[ModelConfig], Raw]


_LLAMA = {
    "input_norm.scale": "input_layernorm.weight",
    "mixer.q.kernel": "self_attn.q_proj.weight",
    "mixer.k.kernel": "self_attn.k_proj.weight",
    "mixer.v.kernel": "self_attn.v_proj.weight",
    "mixer.o.kernel": "self_attn.o_proj.weight",
    "post_norm.scale": "post_attention_layernorm.weight",
    "gate.kernel": "mlp.gate_proj.weight",
    "up.kernel": "mlp.up_proj.weight",
    "down.kernel": "mlp.down_proj.weight",
}
_QKV_BIAS = {f"mixer.{n}.bias": f"self_attn.{n}_proj.bias" for n in "qkv"}
_QKVO_BIAS = _QKV_BIAS | {"mixer.o.bias": "self_attn.o_proj.bias"}
_MLP_BIAS = {f"{n}.bias": f"mlp.{n}_proj.bias" for n in ("gate", "up", "down")}
_QK_NORM = {f"mixer.{n}_norm.scale": f"self_attn.{n}_norm.weight" for n in "qk"}
_LFM2 = {
    "input_norm.scale": "operator_norm.weight",
    "mixer.q.kernel": "self_attn.q_proj.weight",
    "mixer.k.kernel": "self_attn.k_proj.weight",
    "mixer.v.kernel": "self_attn.v_proj.weight",
    "mixer.o.kernel": "self_attn.out_proj.weight",
    "mixer.q_norm.scale": "self_attn.q_layernorm.weight",
    "mixer.k_norm.scale": "self_attn.k_layernorm.weight",
    "mixer.into.kernel": "conv.in_proj.weight",
    "mixer.taps": "conv.conv.weight",
    "mixer.out.kernel": "conv.out_proj.weight",
    "post_norm.scale": "ffn_norm.weight",
    "gate.kernel": "feed_forward.w1.weight",
    "up.kernel": "feed_forward.w3.weight",
    "down.kernel": "feed_forward.w2.weight",
}


def _llama(raw: Raw) -> Raw:
    return {
        "attention_bias": "qkvo" if raw.get("attention_bias") else "",
        "mlp_bias": bool(raw.get("mlp_bias")),
    }


def _windows(raw: Raw, *, always: bool) -> Raw:
    """Return which layers read a sliding window, and its length."""
    layers, size = raw["num_hidden_layers"], raw.get("sliding_window", 4096)
    if size is None or not (always or raw.get("use_sliding_window")):
        return {}
    start = 0 if always else raw.get("max_window_layers", 28)
    kinds = raw.get("layer_types") or [
        SLIDING if i >= start else ATTENTION for i in range(layers)
    ]
    return {"layer_types": tuple(kinds), "sliding_window": size}


def _qwen2(raw: Raw) -> Raw:
    return {"attention_bias": "qkv"} | _windows(raw, always=False)


def _qwen3(raw: Raw) -> Raw:
    bias = "qkvo" if raw.get("attention_bias") else ""
    return {"attention_bias": bias, "qk_norm": True} | _windows(raw, always=False)


def _lfm2(raw: Raw) -> Raw:
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
    tied = raw.get("tie_embedding", raw.get("tie_word_embeddings", True))
    return {
        "intermediate_size": size,
        "rms_norm_eps": raw.get("norm_eps", 1e-5),
        "tie_word_embeddings": tied,
        "layer_types": tuple(kinds),
        "conv_L_cache": raw.get("conv_L_cache", 3),
        "qk_norm": True,
    }


def _write_llama(c: ModelConfig) -> Raw:
    return {"attention_bias": bool(c.attention_bias), "mlp_bias": c.mlp_bias}


def _write_windows(c: ModelConfig) -> Raw:
    slides = SLIDING in c.mixers
    return {
        "use_sliding_window": slides,
        "sliding_window": c.sliding_window if slides else None,
        "layer_types": c.mixers,
        # Transformers before layer_types: full attention first, then windows.
        "max_window_layers": c.mixers.index(SLIDING) if slides else len(c.mixers),
    }


def _write_qwen3(c: ModelConfig) -> Raw:
    return _write_windows(c) | {"attention_bias": bool(c.attention_bias)}


def _write_mistral(c: ModelConfig) -> Raw:
    return {"sliding_window": c.sliding_window if SLIDING in c.mixers else None}


def _write_lfm2(c: ModelConfig) -> Raw:
    return {
        "norm_eps": c.rms_norm_eps,
        "layer_types": c.mixers,
        "conv_L_cache": c.conv_L_cache,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    }


FAMILIES = {
    "llama": Family(
        "LlamaForCausalLM",
        _LLAMA | _QKVO_BIAS | _MLP_BIAS,
        "model.norm.weight",
        _llama,
        _write_llama,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        _LLAMA,
        "model.norm.weight",
        lambda raw: _windows(raw, always=True),
        _write_mistral,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        _LLAMA | _QKV_BIAS,
        "model.norm.weight",
        _qwen2,
        _write_windows,
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        _LLAMA | _QKVO_BIAS | _QK_NORM,
        "model.norm.weight",
        _qwen3,
        _write_qwen3,
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM", _LFM2, "model.embedding_norm.weight", _lfm2, _write_lfm2
    ),
}


def family(model_type: str | None) -> Family:
    """Return the family of that name.

    Raises:
      ValueError: the name is unknown; the message lists the known ones.
    """
    if model_type not in FAMILIES:
        raise ValueError(
            f"model_type must be one of {sorted(FAMILIES)}, got {model_type!r}"
        )
    return FAMILIES[model_type]


_DEFAULTED = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "tie_word_embeddings",
)
"""Options of all families whose default is not the same in each of them."""
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def with_defaults(raw: Raw) -> Raw:
    """Return the contents of a config.json with what it leaves out of its family.

    Transformers writes no option that has its family's default, and defaults differ:
    LFM2 has a rope_theta of a million, Mistral eight key-value heads. Its own
    AutoConfig knows them. Options that are there stay as they are, and none is added
    that this decoder requires.

    Raises:
      ValueError: Transformers cannot read it either.
    """
    missing = [name for name in _DEFAULTED if name not in raw]
    rope = all(raw.get(name) in (None, {}) for name in _ROPE)
    if not (missing or rope) or raw.get("model_type") not in FAMILIES:
        return raw
    # Imported here: it takes seconds, and directories written here leave nothing out.
    from transformers import AutoConfig

    options = {k: v for k, v in raw.items() if k != "model_type"}
    try:
        default = AutoConfig.for_model(raw["model_type"], **options).to_dict()
    except Exception as error:  # whatever its checks raise
        raise ValueError(f"Transformers cannot read it: {error}") from error
    added = {name: default[name] for name in missing if default.get(name) is not None}
    if rope:
        # rope_parameters since Transformers 5, rope_theta before.
        added |= {name: default[name] for name in _ROPE if default.get(name)}
    return raw | added


def read_config(raw: Raw) -> ModelConfig:
    """Return a decoder's shape from the contents of a config.json.

    Raises:
      ValueError: this decoder lacks the family or an option, or an option is missing.
    """
    kind = family(raw.get("model_type"))
    if raw.get("conv_bias"):
        raise ValueError("conv_bias is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {raw['hidden_act']!r}")
    required = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    for name in required:
        if name not in raw:
            raise ValueError(f"{name} is missing")
    num_heads = raw["num_attention_heads"]
    shared = {name: raw[name] for name in required} | {
        "num_key_value_heads": _option(raw, "num_key_value_heads", num_heads),
        "head_dim": raw["hidden_size"] // num_heads
        if raw.get("head_dim") is None
        else raw["head_dim"],
        "intermediate_size": raw.get("intermediate_size"),
        "max_position_embeddings": _option(raw, "max_position_embeddings", 4096),
        "rms_norm_eps": raw.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": raw.get("tie_word_embeddings", False),
        "model_type": raw["model_type"],
    }
    options = shared | _rope(raw) | kind.options(raw)
    if options["intermediate_size"] is None:
        raise ValueError("intermediate_size is missing")
    return ModelConfig(**options)


def _option(raw: Raw, name: str, default: Any) -> Any:
    """Return an option, the default where it is missing or null; a zero is neither."""
    value = raw.get(name)
    return default if value is None else value


def _rope(raw: Raw) -> Raw:
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(raw.get(name) or {}, Mapping):
            raise ValueError(f"{name} must be an object, got {raw[name]!r:.60}")
    # rope_parameters since Transformers 5; rope_theta and rope_scaling before.
    rope = (raw.get("rope_scaling") or {}) | (raw.get("rope_parameters") or {})
    theta = _option(rope, "rope_theta", _option(raw, "rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type"))
    if kind in (None, "default"):
        return {"rope_theta": theta}
    if kind == "yarn" and (rope.get("mscale") or rope.get("truncate") is False):
        raise ValueError("yarn with mscale or without truncation is not supported")
    field_names = {f.name for f in dataclasses.fields(RopeScaling)}
    # A null is as good as nothing, as in Transformers.
    given = {k: v for k, v in rope.items() if k in field_names and v is not None}
    settings: Raw = given | {"rope_type": kind}
    if "factor" not in settings:
        raise ValueError(f"rope_type {kind!r} needs a factor")
    if kind != "linear":
        settings.setdefault(
            "original_max_position_embeddings", raw.get("max_position_embeddings", 0)
        )
    return {"rope_theta": theta, "rope_scaling": RopeScaling(**settings)}


def write_config(c: ModelConfig) -> Raw:
    """Return the contents of a config.json that Transformers loads as the same decoder.

    Raises:
      ValueError: the family has no name for a part of this decoder.
    """
    kind = family(c.model_type)
    shape = dataclasses.asdict(c)
    for name in (
        "qk_norm",
        "attention_bias",
        "mlp_bias",
        "layer_types",
        "sliding_window",
        "conv_L_cache",
        "rope_scaling",
    ):
        del shape[name]
    if c.rope_scaling is not None:
        scaling = dataclasses.asdict(c.rope_scaling)
        scaling = {k: v for k, v in scaling.items() if v is not None}
        shape["rope_scaling"] = {
            k: scaling[k] for k in _SCALING[scaling["rope_type"]] if k in scaling
        }
    raw = {
        "architectures": [kind.architecture],
        "hidden_act": "silu",
        **shape,
        **kind.to_raw(c),
    }
    if _canonical(read_config(raw)) != _canonical(c):
        raise ValueError(f"{c.model_type} has no name for a part of {c}")
    return raw


def _canonical(c: ModelConfig) -> ModelConfig:
    """Return the same decoder with standard sizes for parts that it lacks."""
    return dataclasses.replace(
        c,
        layer_types=c.mixers,
        sliding_window=c.sliding_window if SLIDING in c.mixers else 1,
        conv_L_cache=c.conv_L_cache if CONVOLUTION in c.mixers else 1,
    )


_SCALING = {
    "linear": ("rope_type", "factor"),
    "llama3": (
        "rope_type",
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
    "yarn": (
        "rope_type",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
    ),
}


def tensor_name(path: tuple[Any, ...], model_type: str) -> str:
    """Return the name in a file of the parameter at `path`."""
    kind = family(model_type)
    name = ".".join(map(str, path[2:] if path[0] == "layers" else path))
    if path[0] == "layers":
        if name not in kind.layer:
            raise ValueError(f"{model_type} has no tensor for {name!r}")
        return f"model.layers.{path[1]}.{kind.layer[name]}"
    return {
        "embed": "model.embed_tokens.weight",
        "norm.scale": kind.norm,
        "head": "lm_head.weight",
    }[name]
