"""A small fuzz of model directories: every damage is detected, or harmless."""

import json
import random
import re
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import helpers
from worldmodel.backbone import weights
from worldmodel.text.tokenizer import Vocabulary

TEXTS = {"empty": b"", "list": b"[]", "null": b"null", "object": b"{}"}
DAMAGES = ("truncated", "flipped", *TEXTS)


def damaged(kind, raw, rng):
    place = rng.randrange(len(raw))
    if kind == "truncated":
        return raw[:place]
    return _flipped(raw, place) if kind == "flipped" else TEXTS[kind]


def _flipped(raw, place):
    return raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :]


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tok):
    root = tmp_path_factory.mktemp("model")
    model = helpers.lively_model(helpers.config(tok.vocab_size))
    weights.save_model(root, model, tok)
    return root


def load(root):
    model, _ = weights.load_model(root)
    _ = Vocabulary.load(root).chat_template
    return model


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_every_damage_is_one_line_with_the_name_of_the_file(
    saved, tmp_path, kind, name
):
    root = tmp_path / "model"
    shutil.copytree(saved, root)
    path, rng = root / name, random.Random(kind + name)
    path.write_bytes(damaged(kind, path.read_bytes(), rng))
    with pytest.raises(ValueError, match=name) as caught:
        load(root)
    assert "\n" not in str(caught.value)
    if kind == "flipped":  # which only a checksum can see everywhere
        return
    (root / "checksums.json").unlink()
    with pytest.raises(ValueError, match=name) as caught:
        load(root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "value", [None, [], {}, "x", "8", 1.5, True, float("inf"), float("nan"), 0, -1]
)
@pytest.mark.parametrize(
    "name", ["hidden_size", "vocab_size", "intermediate_size", "num_hidden_layers"]
)
def test_sizes_of_wrong_types_name_their_file(saved, tmp_path, name, value):
    config = json.loads((saved / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
    with pytest.raises(ValueError, match=r"config\.json"):
        weights.load_config(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"words": 3, "numbers": true}',
        b'{"words": [1], "numbers": true}',
        b'{"words": ["a"], "numbers": true, "template": "a"}',
        b"\xff",
    ],
)
def test_damaged_references_name_their_file(saved, tmp_path, text):
    root = tmp_path / "model"
    shutil.copytree(saved, root)
    (root / "checksums.json").unlink()
    (root / "references.json").write_bytes(text)
    path = re.escape(str(root / "references.json"))
    for read in (load, Vocabulary.load):  # the second one as `dreamgym generate` does
        with pytest.raises(ValueError, match=path) as caught:
            read(root)
        assert "\n" not in str(caught.value)


def test_a_directory_without_checksums_loads(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "m")
    (tmp_path / "m/checksums.json").unlink()
    ours, theirs = load(saved).params, load(tmp_path / "m").params
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(saved, tmp_path, bad):
    root = tmp_path / "m"
    shutil.copytree(saved, root)
    (root / "checksums.json").unlink()
    tensors = load_file(root / "model.safetensors")
    name = sorted(tensors)[0]
    tensors[name] = tensors[name].copy()
    tensors[name].flat[0] = bad
    save_file(tensors, root / "model.safetensors")
    with pytest.raises(ValueError, match=f"{name}.*NaN or infinity"):
        load(root)


@pytest.mark.parametrize("name", ["../model.safetensors", "/tmp/x.safetensors", ".."])
def test_an_index_stays_in_its_directory(saved, tmp_path, name):
    root = tmp_path / "m"
    shutil.copytree(saved, root)
    (root / "model.safetensors").rename(tmp_path / "model.safetensors")
    (root / "checksums.json").unlink()
    index = root / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {{"a": "{name}"}}}}')
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json.*directory"):
        load(root)
