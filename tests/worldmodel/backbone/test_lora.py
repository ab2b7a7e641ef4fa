"""Additions change nothing at first, and merged they change the same."""

import jax
import numpy as np
import pytest
from flax import nnx

from tests import helpers
from worldmodel.backbone import lora
from worldmodel.backbone.config import LoraConfig

IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def test_fresh_additions_change_nothing(family_model):
    adapted = lora.attach(family_model, LoraConfig(rank=2), seed=0)
    assert lora.is_adapter(("layers", 0, "gate", "lora_a"))
    got = helpers.full_pass(adapted, IDS)
    np.testing.assert_allclose(got, helpers.full_pass(family_model, IDS), atol=1e-6)
    again = lora.attach(family_model, LoraConfig(rank=2), seed=0)
    helpers.assert_trees_equal(again.params, adapted.params)
    other = lora.attach(family_model, LoraConfig(rank=2), seed=1)
    assert helpers.distance(other.params, adapted.params) > 1e-2


def test_merged_is_applied(family_model):
    config = LoraConfig(rank=3, alpha=5.0, targets=("q", "v", "into", "down"))
    adapted = helpers.stirred_lora(lora.attach(family_model, config, seed=0))
    want = helpers.full_pass(adapted, IDS)
    assert np.abs(want - helpers.full_pass(family_model, IDS)).max() > 0.05
    merged = lora.merge(adapted)
    assert merged.lora is None
    paths = [p for p, _ in nnx.to_flat_state(merged.params)]
    assert not any(lora.is_adapter(p) for p in paths)
    np.testing.assert_allclose(helpers.full_pass(merged, IDS), want, atol=1e-4)
    assert lora.merge(family_model) is family_model


def test_a_merge_by_hand():
    model = helpers.lively_model(helpers.config(13, num_hidden_layers=1))
    config = LoraConfig(rank=2, alpha=6.0, targets=("o",))
    adapted = helpers.stirred_lora(lora.attach(model, config, seed=0))
    part = adapted.params["layers"][0]["mixer"]["o"]
    a, b, w = (np.asarray(part[n][...]) for n in ("lora_a", "lora_b", "kernel"))
    got = lora.merge(adapted).params["layers"][0]["mixer"]["o"]["kernel"][...]
    np.testing.assert_allclose(got, w + 6.0 / 2 * a @ b, atol=1e-6)
    assert (
        len(jax.tree.leaves(adapted.params)) == len(jax.tree.leaves(model.params)) + 2
    )


def test_wrong_additions_are_errors(small_model):
    with pytest.raises(ValueError, match=r"targets must be some of .*, got \['head'\]"):
        LoraConfig(targets=("q", "head"))
    with pytest.raises(ValueError, match="rank must be >= 1"):
        LoraConfig(rank=0)
    with pytest.raises(ValueError, match=r"no projection .* is among \['into'\]"):
        lora.attach(small_model, LoraConfig(targets=("into",)), seed=0)
    adapted = lora.attach(small_model, LoraConfig(), seed=0)
    with pytest.raises(ValueError, match="merge it first"):
        lora.attach(adapted, LoraConfig(), seed=0)
