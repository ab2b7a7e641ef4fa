import json
import shutil
import sys

import jax
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file

from tests import helpers
from worldmodel.backbone import weights
from worldmodel.data.json_reading import RecordError

IDS = [5, 300, 17, 8, 250, 5, 301]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tok):
    """A saved model of two layers with an untied head, its directory and its logits."""
    shape = helpers.config(
        tok.vocab_size, tie_word_embeddings=False, rope_theta=500.0, rms_norm_eps=1e-3
    )
    model = helpers.lively_model(shape)
    root = tmp_path_factory.mktemp("model")
    weights.save_model(root, model, tok)
    return root, model, helpers.full_pass(model, IDS)


@pytest.fixture
def broken(saved, tmp_path):
    """Spoils a copy of the directory (its tensors, its config) and returns it."""
    for file in saved[0].iterdir():
        if file.name == "checksums.json":
            continue  # what is spoiled here was written elsewhere
        (tmp_path / file.name).write_bytes(file.read_bytes())

    def spoil(tensors=None, **changes):
        if tensors is not None:
            held = load_file(tmp_path / "model.safetensors")
            save_file(tensors(held), tmp_path / "model.safetensors")
        config = json.loads((tmp_path / "config.json").read_text()) | changes
        config = {k: v for k, v in config.items() if v is not ...}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return spoil


def llama_logits(root, ids) -> np.ndarray:
    """Llama in NumPy loops, from the files alone, with weights [out, in]."""
    c = json.loads((root / "config.json").read_text())
    w = {k: v.astype(float) for k, v in load_file(root / "model.safetensors").items()}
    size, heads = c["head_dim"], c["num_attention_heads"]
    group, half = heads // c["num_key_value_heads"], size // 2

    def norm(x, name):
        return x / np.sqrt((x * x).mean() + c["rms_norm_eps"]) * w[name]

    def turned(x, position):  # the pair (i, i + half) is one complex number
        rate = c["rope_theta"] ** (-np.arange(half) * 2.0 / size)
        z = (x[:half] + 1j * x[half:]) * np.exp(1j * position * rate)
        return np.concatenate([z.real, z.imag])

    xs = [w["model.embed_tokens.weight"][i] for i in ids]
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        rows = []
        for t, x in enumerate(xs):
            h = norm(x, at + "input_layernorm.weight")
            q, k, v = (
                (w[f"{at}self_attn.{n}_proj.weight"] @ h).reshape(-1, size)
                for n in "qkv"
            )
            rows.append(([turned(r, t) for r in q], [turned(r, t) for r in k], v))
        out = []
        for t, x in enumerate(xs):
            mixed = []
            for n in range(heads):
                scores = np.array(
                    [rows[t][0][n] @ rows[s][1][n // group] for s in range(t + 1)]
                )
                p = np.exp(scores / size**0.5)
                values = np.array([rows[s][2][n // group] for s in range(t + 1)])
                mixed.append(p @ values / p.sum())
            y = x + w[at + "self_attn.o_proj.weight"] @ np.concatenate(mixed)
            h = norm(y, at + "post_attention_layernorm.weight")
            gate = w[at + "mlp.gate_proj.weight"] @ h
            up = w[at + "mlp.up_proj.weight"] @ h
            silu = gate / (1 + np.exp(-gate))
            out.append(y + w[at + "mlp.down_proj.weight"] @ (silu * up))
        xs = out
    head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
    return np.array([w[head + ".weight"] @ norm(x, "model.norm.weight") for x in xs])


def test_a_saved_directory_is_a_llama(saved):
    root, _, logits = saved
    assert np.abs(logits).max() > 0.5
    np.testing.assert_allclose(llama_logits(root, IDS), logits, atol=2e-4)


def test_a_tied_directory_is_a_llama(text_model, tok, tmp_path):
    weights.save_model(tmp_path, text_model, tok)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    logits = helpers.full_pass(text_model, IDS)
    np.testing.assert_allclose(llama_logits(tmp_path, IDS), logits, atol=2e-4)


def test_transformers_gives_the_same_logits(saved):
    torch = pytest.importorskip("torch", reason="torch is not in the test extra")
    transformers = pytest.importorskip("transformers")
    root, _, logits = saved
    model = transformers.AutoModelForCausalLM.from_pretrained(root).eval()
    with torch.no_grad():
        got = model(torch.tensor([IDS])).logits[0].numpy()
    np.testing.assert_allclose(got, logits, atol=2e-4)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory, tok):
    """A saved LFM2 of a convolution and an attention layer, and its logits."""
    shape = helpers.config(
        tok.vocab_size,
        **helpers.HYBRID,
        rope_theta=500.0,
        rms_norm_eps=1e-3,
        conv_L_cache=4,
    )
    model = helpers.lively_model(shape, embed=4.0)
    root = tmp_path_factory.mktemp("hybrid")
    weights.save_model(root, model, tok)
    return root, model, helpers.full_pass(model, IDS)


def test_transformers_gives_the_same_logits_of_a_hybrid(hybrid):
    torch = pytest.importorskip("torch", reason="torch is not in the test extra")
    transformers = pytest.importorskip("transformers")
    root, _, logits = hybrid
    model = transformers.AutoModelForCausalLM.from_pretrained(root).eval()
    assert type(model).__name__ == "Lfm2ForCausalLM"
    with torch.no_grad():
        got = model(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(logits).max() > 0.5
    np.testing.assert_allclose(got, logits, atol=2e-4)


def lfm2_logits(root, ids) -> np.ndarray:
    """LFM2 in NumPy loops, from the files alone, with weights [out, in]."""
    c = json.loads((root / "config.json").read_text())
    w = {k: v.astype(float) for k, v in load_file(root / "model.safetensors").items()}
    size, heads = c["head_dim"], c["num_attention_heads"]
    group, half = heads // c["num_key_value_heads"], size // 2

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["norm_eps"]) * w[name]

    def turned(x, position):  # the pair (i, i + half) is one complex number
        rate = c["rope_theta"] ** (-np.arange(half) * 2.0 / size)
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * position * rate)
        return np.concatenate([z.real, z.imag], -1)

    def convolve(hs, at):
        kernel = w[at + "conv.conv.weight"][:, 0]  # [channels, taps], the oldest first
        b, after, x = np.split(hs @ w[at + "conv.in_proj.weight"].T, 3, axis=1)
        rows = np.concatenate([np.zeros((kernel.shape[1] - 1, b.shape[1])), b * x])
        mixed = [
            (rows[t : t + kernel.shape[1]] * kernel.T).sum(0) for t in range(len(hs))
        ]
        return (after * np.array(mixed)) @ w[at + "conv.out_proj.weight"].T

    def attend(hs, at):
        at += "self_attn."
        q, k, v = (
            (hs @ w[f"{at}{n}_proj.weight"].T).reshape(len(hs), -1, size) for n in "qkv"
        )
        q, k = norm(q, at + "q_layernorm.weight"), norm(k, at + "k_layernorm.weight")
        q, k = (np.array([turned(x, t) for t, x in enumerate(y)]) for y in (q, k))
        out = np.zeros((len(hs), heads, size))
        for t, n in np.ndindex(len(hs), heads):
            p = np.exp(k[: t + 1, n // group] @ q[t, n] / size**0.5)
            out[t, n] = p @ v[: t + 1, n // group] / p.sum()
        return out.reshape(len(hs), -1) @ w[at + "out_proj.weight"].T

    xs = w["model.embed_tokens.weight"][ids]
    for layer, kind in enumerate(c["layer_types"]):
        at = f"model.layers.{layer}."
        mix = convolve if kind == "conv" else attend
        xs = xs + mix(norm(xs, at + "operator_norm.weight"), at)
        h = norm(xs, at + "ffn_norm.weight")
        gate, up = (h @ w[f"{at}feed_forward.w{n}.weight"].T for n in (1, 3))
        silu = gate / (1 + np.exp(-gate))
        xs = xs + (silu * up) @ w[at + "feed_forward.w2.weight"].T
    xs = norm(xs, "model.embedding_norm.weight")
    return xs @ w["model.embed_tokens.weight"].T


def test_a_saved_hybrid_is_an_lfm2(hybrid):
    root, _, logits = hybrid
    assert np.abs(logits).max() > 0.5
    np.testing.assert_allclose(lfm2_logits(root, IDS), logits, atol=2e-4)


def test_a_saved_hybrid_is_loaded_again(hybrid):
    root, model, logits = hybrid
    again, _ = weights.load_model(root)
    assert again.config == model.config
    np.testing.assert_array_equal(helpers.full_pass(again, IDS), logits)
    taps = load_file(root / "model.safetensors")["model.layers.0.conv.conv.weight"]
    assert taps.shape == (16, 1, 4)  # [channels, 1, taps], as a Conv1d keeps them
    got = np.asarray(model.params["layers"][0]["mixer"]["taps"][...])
    np.testing.assert_array_equal(taps[:, 0].T, got)


def test_the_names_of_real_hybrid_configs(hybrid, tmp_path):
    # LFM2-350M's config.json says block_ff_dim 6656 adjusted by 2/3 to a multiple of
    # 256, and which layers attend by their indices.
    config = json.loads((hybrid[0] / "config.json").read_text())
    del config["layer_types"], config["tie_word_embeddings"]
    config |= {
        "block_ff_dim": 6656,
        "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "full_attn_idxs": [0],
        "tie_embedding": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = weights.load_config(tmp_path)
    assert got.intermediate_size == 4608
    assert got.layer_types == ("full_attention", "conv")
    assert got.tie_word_embeddings is False


def test_transformers_reads_the_same_shape(saved):
    transformers = pytest.importorskip("transformers")
    root, model, _ = saved
    got = transformers.AutoConfig.from_pretrained(root)
    assert type(got).__name__ == "LlamaConfig"
    for name in ("hidden_size", "num_key_value_heads", "head_dim", "rms_norm_eps"):
        assert getattr(got, name) == getattr(model.config, name), name


def test_loaded_is_saved(saved, tok):
    root, model, logits = saved
    again, tokenizer = weights.load_model(root)
    assert again.config == model.config
    helpers.assert_trees_equal(again.params, model.params)
    np.testing.assert_array_equal(helpers.full_pass(again, IDS), logits)
    assert tokenizer.encode("the lamp is off") == tok.encode("the lamp is off")


def test_the_temporary_file_is_gone(saved):
    names = sorted(p.name for p in saved[0].iterdir())
    assert names == [
        "checksums.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


def test_a_model_that_finds_no_room_leaves_the_one_before(saved, tok, tmp_path):
    root, model, logits = saved
    shutil.copytree(root, tmp_path / "copy")
    with (
        helpers.file_size_limit(1000),
        pytest.raises(OSError, match=r"model-0\.tmp: .*File too large"),
    ):
        weights.save_model(tmp_path / "copy", model, tok)
    again, _ = weights.load_model(tmp_path / "copy")
    np.testing.assert_array_equal(helpers.full_pass(again, IDS), logits)


def test_sharded_files_are_one_model(saved, broken):
    root = broken()
    tensors = load_file(root / "model.safetensors")
    (root / "model.safetensors").unlink()
    names = sorted(tensors)
    for i, part in enumerate((names[:4], names[4:])):
        save_file({n: tensors[n] for n in part}, root / f"model-{i}.safetensors")
    helpers.assert_trees_equal(weights.load_model(root)[0].params, saved[1].params)


def test_half_precision_files_are_read_as_float32(saved, broken):
    import ml_dtypes

    root = broken(lambda ts: {k: v.astype(ml_dtypes.bfloat16) for k, v in ts.items()})
    got = weights.load_model(root)[0].params
    assert got["embed"][...].dtype == np.float32
    assert 0 < helpers.distance(got, saved[1].params) < 0.02  # 8 bits of mantissa


def test_new_control_tokens_get_the_mean_row(saved, broken):
    # The directory of another tokenizer has no rows for our last tokens.
    known = saved[1].config.vocab_size - 3

    def cut(tensors):
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:known].copy()
        return tensors

    model, _ = weights.load_model(broken(cut, vocab_size=known))
    old = np.asarray(saved[1].params["embed"][...])
    new = np.asarray(model.params["embed"][...])
    assert model.config.vocab_size == known + 3
    np.testing.assert_array_equal(new[:known], old[:known])
    want = np.broadcast_to(old[:known].mean(0), (3, old.shape[1]))
    np.testing.assert_allclose(new[known:], want, atol=1e-6)


def test_text_without_a_row_is_another_models(broken):
    def cut(tensors):
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors[name][:200].copy()
        return tensors

    with pytest.raises(ValueError, match=r"tokens of text beyond the 200 .*another"):
        weights.load_model(broken(cut, vocab_size=200))


def test_a_table_has_the_rows_of_its_config(saved, broken):
    rows = saved[1].config.vocab_size + 1
    with pytest.raises(ValueError, match=rf"embed_tokens.weight' must be \({rows}, "):
        weights.load_model(broken(vocab_size=rows))


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_that_differs_is_not_tied(saved, broken, equal):
    """As in Transformers, whatever config.json says."""

    def tie(tensors):
        if equal:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        return tensors

    model, _ = weights.load_model(broken(tie, tie_word_embeddings=True))
    assert model.config.tie_word_embeddings == equal
    got = helpers.full_pass(model, IDS)
    assert np.allclose(got, saved[2], atol=1e-5) != equal


def test_the_end_of_a_turn_is_that_of_sampling_too(broken, tmp_path):
    """What a model's own settings of sampling say has precedence elsewhere."""
    root = broken()
    settings = {"eos_token_id": 1, "bos_token_id": 0, "top_p": 0.9}
    (root / "generation_config.json").write_text(json.dumps(settings))
    model, tokenizer = weights.load_model(root)
    weights.save_model(tmp_path / "policy", model, tokenizer)
    config = transformers.GenerationConfig.from_pretrained(tmp_path / "policy")
    assert config.eos_token_id == tokenizer.control("end") != 1
    assert config.pad_token_id == tokenizer.control("pad")
    assert (config.bos_token_id, config.top_p) == (None, 0.9)
    ends = weights.Vocabulary.load(tmp_path / "policy").ends
    assert ends["eos"] == [tokenizer.control("end")]


def test_a_tied_head_of_another_shape_is_named(broken):
    head = _with("lm_head.weight", np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"lm_head.weight' must be .* \(3,\)"):
        weights.load_model(broken(head, tie_word_embeddings=True))


def test_damaged_settings_of_sampling_are_refused_before_a_fit(broken):
    root = broken()
    (root / "generation_config.json").write_text('{"eos_token_id": 1,')
    with pytest.raises(RecordError, match=r"generation_config\.json"):
        weights.load_model(root)


def _without(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def _with(name, value):
    return lambda tensors: tensors | {name: value}


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without(UP), f"{UP}' is missing"),
        (_without("lm_head.weight"), "lm_head.weight' is missing"),
        (_with(UP, np.zeros((3, 16), np.float32)), rf"{UP}' must be .*\(16, 3\)"),
        (
            _with("model.layers.0.self_attn.q_proj.bias", np.zeros(32, np.float32)),
            "q_proj.bias'.* have no place",
        ),
        (
            _with("model.layers.2.mlp.up_proj.weight", np.zeros((1, 1), np.float32)),
            "layers.2.mlp.up_proj.weight'.* have no place",
        ),
    ],
)
def test_a_wrong_tensor_is_named(broken, change, message):
    with pytest.raises(ValueError, match=message):
        weights.load_model(broken(change))


def test_rotary_buffers_of_old_files_are_no_error(saved, broken):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    root = broken(_with(name, np.zeros(4, np.float32)))
    helpers.assert_trees_equal(weights.load_model(root)[0].params, saved[1].params)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "must be one of .*'llama'.*, got 'gpt2'"),
        ({"model_type": "lfm2", "conv_bias": True}, "conv_bias is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 8.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' needs a factor"),
        ({"rope_parameters": {"rope_type": "yarn", "mscale": 1.0}}, "mscale"),
        ({"rope_scaling": ["linear"]}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": "1"}},
            "attention_factor",
        ),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"rope_theta": 0.0}, r"config\.json: rope_theta must be > 0, got 0"),
        ({"rope_parameters": {"rope_theta": 0.0}}, "rope_theta must be > 0, got 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be > 0, got 0"),
        ({"head_dim": 0}, "head_dim must be > 0, got 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be > 0, got 0"),
    ],
)
def test_an_option_we_do_not_have_is_an_error(broken, changes, message):
    with pytest.raises(ValueError, match=message):
        weights.load_config(broken(**changes))


def test_a_null_is_the_default(broken):
    yarn = {"rope_type": "yarn", "factor": 2.0}
    nulls = dict.fromkeys(("beta_fast", "original_max_position_embeddings"))
    with_nulls = weights.load_config(broken(rope_scaling=yarn | nulls))
    assert with_nulls == weights.load_config(broken(rope_scaling=yarn))
    assert with_nulls.rope_scaling.beta_fast == 32.0


def test_what_a_config_leaves_out(broken):
    root = broken(
        num_key_value_heads=...,
        head_dim=...,
        rope_theta=...,
        rms_norm_eps=...,
        tie_word_embeddings=...,
        hidden_size=32,
        num_attention_heads=4,
    )
    got = weights.load_config(root)  # as LlamaConfig of transformers has it
    assert (got.num_key_value_heads, got.head_dim) == (4, 8)
    assert (got.rope_theta, got.rms_norm_eps) == (10_000.0, 1e-6)
    assert got.tie_word_embeddings is False
    root = broken(rope_parameters={"rope_theta": 77.0, "rope_type": "default"})
    assert weights.load_config(root).rope_theta == 77.0


@pytest.mark.parametrize(
    ("family", "missing", "expected"),
    [
        ("lfm2", "rope_theta", 1_000_000.0),
        ("mistral", "num_key_value_heads", 8),
        ("qwen3", "head_dim", 128),
        ("lfm2", "tie_word_embeddings", True),
    ],
)
def test_what_is_left_out_has_the_default_of_its_family(
    tmp_path, family, missing, expected
):
    """Those of Llama, which all families had before, are others."""
    config = {
        "model_type": family,
        "vocab_size": 13,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        "rope_theta": 5000.0,
    }
    del config[missing]
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = weights.load_config(tmp_path)
    assert getattr(got, missing) == expected
    others = ("vocab_size", "hidden_size", "rope_theta", "max_position_embeddings")
    for name in set(others) - {missing}:
        assert getattr(got, name) == config[name], name


def test_a_directory_of_ours_leaves_nothing_out(saved, monkeypatch):
    """Transformers takes seconds to import: a run's own models do without."""
    monkeypatch.setitem(sys.modules, "transformers", None)  # its import fails
    assert weights.load_config(saved[0]) == saved[1].config


def test_what_transformers_refuses_is_an_error_that_names_the_file(broken):
    root = broken(head_dim=..., max_position_embeddings="many")
    with pytest.raises(ValueError, match=r"config\.json: "):
        weights.load_config(root)


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        weights.load_model(tmp_path)
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((saved[0] / name).read_bytes())
    with pytest.raises(FileNotFoundError, match="safetensors"):
        weights.load_model(tmp_path)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileNotFoundError, match=r"00001.*: missing, and .*index\.json"):
        weights.load_model(tmp_path)


def test_a_large_model_is_several_files(saved, tok, tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MAX_SHARD_BYTES", 20_000)
    weights.save_model(tmp_path, saved[1], tok)
    files = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == set(files)
    whole = load_file(saved[0] / "model.safetensors")
    assert index["weight_map"].keys() == whole.keys()
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in whole.values())
    helpers.assert_trees_equal(weights.load_model(tmp_path)[0].params, saved[1].params)
    # A file beside the index is not read: some directories hold the weights twice.
    save_file({"other": np.zeros(1, np.float32)}, tmp_path / "consolidated.safetensors")
    weights.load_model(tmp_path)
    (tmp_path / files[1]).unlink()
    with pytest.raises(FileNotFoundError, match=files[1]):
        weights.load_model(tmp_path)
    # Saved again as one file, nothing of the many is left.
    monkeypatch.setattr(weights, "MAX_SHARD_BYTES", 1 << 30)
    weights.save_model(tmp_path, saved[1], tok)
    names = {p.name for p in tmp_path.glob("model*")}
    assert names == {"model.safetensors"}


def test_a_model_is_loaded_to_its_dtype(saved):
    model = weights.load_decoder(saved[0], dtype="bfloat16")
    assert {str(x.dtype) for x in jax.tree.leaves(model.params)} == {"bfloat16"}
    got = helpers.full_pass(model, IDS).astype(np.float32)
    assert 0 < np.abs(got - saved[2]).max() < 0.2 * np.abs(saved[2]).max()


def test_a_half_precision_model_is_saved_as_such(saved, tok, tmp_path):
    model = weights.load_decoder(saved[0], dtype="bfloat16")
    weights.save_model(tmp_path, model, tok)
    assert (
        json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    )
    again = weights.load_decoder(tmp_path, dtype="bfloat16")
    helpers.assert_trees_equal(again.params, model.params)
