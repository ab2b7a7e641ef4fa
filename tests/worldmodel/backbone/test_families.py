"""Every family: its config.json in and out, its logits against Transformers' own."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import helpers
from worldmodel.backbone import families, lora, weights
from worldmodel.backbone.config import LoraConfig
from worldmodel.text.tokenizer import Vocabulary

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 500.0,
}
LINEAR = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}
CASES = {
    "llama2": ("Llama", {"tie_word_embeddings": False, "num_key_value_heads": 4}),
    "llama3": ("Llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral 0.3": ("Mistral", {"sliding_window": None, "rms_norm_eps": 1e-3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2 yarn": ("Qwen2", {"rope_parameters": YARN}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    "qwen3 biases": ("Qwen3", {"attention_bias": True}),
    "lfm2": (
        "Lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_L_cache": 4,
            "block_auto_adjust_ff_dim": False,
            "head_dim": 12,
        },
    ),
}
IDS = np.random.default_rng(0).integers(0, 97, 40).tolist()


def theirs(name: str, root):
    """A random model of Transformers, saved to `root`; its logits of IDS."""
    torch = pytest.importorskip("torch", reason="needs the peers extra")
    transformers = pytest.importorskip("transformers")
    kind, changes = CASES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SHAPE | changes))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms off 1, biases off 0, logits large
            parameter.add_(
                0.3
                * torch.randn_like(parameter)
                * parameter.std().nan_to_num(1).clamp(0.3, 1)
            )
    model.save_pretrained(root)
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def reloaded(root) -> np.ndarray:
    """Transformers' logits of IDS from a directory."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(root).eval()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.fixture
def vocabulary(tok, tmp_path):
    tok.save(tmp_path / "tokenizer")
    return Vocabulary.load(tmp_path / "tokenizer")


@pytest.mark.medium
@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_a_family_is_that_of_transformers(name, tmp_path, vocabulary):
    want = theirs(name, tmp_path / "theirs")
    model = weights.load_decoder(tmp_path / "theirs")
    got = helpers.full_pass(model, IDS, width=40)
    scale = np.abs(want).max()
    assert scale > 1.0
    np.testing.assert_allclose(got, want, atol=3e-5 * scale)
    # And back: our directory, read by Transformers.
    weights.save_model(tmp_path / "ours", model, vocabulary)
    np.testing.assert_allclose(reloaded(tmp_path / "ours"), want, atol=3e-5 * scale)
    one, two = (
        load_file(tmp_path / n / "model.safetensors") for n in ("theirs", "ours")
    )
    assert one.keys() == two.keys()
    for key, value in one.items():
        np.testing.assert_array_equal(value, two[key], err_msg=key)


@pytest.mark.medium
@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama3", "qwen2 windows", "lfm2"])
def test_merged_lora_is_what_transformers_reads(name, tmp_path, vocabulary):
    base = theirs(name, tmp_path / "theirs")
    model = weights.load_decoder(tmp_path / "theirs")
    targets = ("q", "v", "up", "down", "into", "out")
    adapted = lora.attach(model, LoraConfig(rank=3, targets=targets), seed=0)
    adapted = helpers.stirred_lora(adapted)
    want = helpers.full_pass(adapted, IDS, width=40)
    assert np.abs(want - base).max() > 0.1 * np.abs(base).max()
    weights.save_model(tmp_path / "ours", adapted, vocabulary)
    got = reloaded(tmp_path / "ours")
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def minimal(model_type: str, **changes) -> dict:
    raw = {k: v for k, v in SHAPE.items() if k != "head_dim"}
    return raw | {"model_type": model_type} | changes


@pytest.mark.parametrize("kind", families.FAMILIES)
def test_a_config_survives_writing(kind):
    shape = families.read_config(minimal(kind))
    written = json.loads(json.dumps(families.write_config(shape)))
    again = families.read_config(written)
    assert families._canonical(again) == families._canonical(shape)


def test_what_a_family_reads_by_hand():
    # Mistral 7B v0.1 slides everywhere, 4096 tokens where nothing is said; v0.3 says
    # null. Qwen2 has the window in its config but does not use it.
    assert families.read_config(minimal("mistral")).mixers == ("sliding_attention",) * 3
    assert families.read_config(minimal("mistral")).sliding_window == 4096
    shape = families.read_config(minimal("mistral", sliding_window=None))
    assert shape.mixers == ("full_attention",) * 3
    shape = families.read_config(minimal("qwen2", sliding_window=99))
    assert shape.mixers == ("full_attention",) * 3
    assert (shape.attention_bias, shape.qk_norm) == ("qkv", False)
    shape = families.read_config(
        minimal("qwen2", sliding_window=9, use_sliding_window=True, max_window_layers=2)
    )
    assert shape.mixers == ("full_attention",) * 2 + ("sliding_attention",)
    shape = families.read_config(minimal("qwen3"))
    assert (shape.attention_bias, shape.qk_norm) == ("", True)
    # Llama 3.2's rope_scaling, as before Transformers 5.
    raw = minimal(
        "llama",
        rope_theta=5e5,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    shape = families.read_config(raw)
    assert shape.rope_theta == 5e5
    assert shape.rope_scaling is not None
    assert shape.rope_scaling.factor == 32.0
    assert shape.rope_scaling.original_max_position_embeddings == 8192


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_norm": True}, "llama has no name for a part"),
        ({"model_type": "qwen2"}, "qwen2 has no name for a part"),
        ({"attention_bias": "q"}, "llama has no name for a part"),
        ({"model_type": "gpt2"}, "model_type must be one of .*'qwen3'.*, got 'gpt2'"),
    ],
)
def test_a_part_that_a_family_has_no_name_for_is_an_error(changes, message):
    with pytest.raises(ValueError, match=message):
        families.write_config(helpers.config(13, **changes))
