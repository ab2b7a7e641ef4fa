"""Members of an ensemble: of one trunk, each of a resample, sure of what was seen."""

import numpy as np
import pytest

from tests import helpers
from worldmodel import completion
from worldmodel.backbone.model import create
from worldmodel.experience.config import EnsembleConfig
from worldmodel.experience.ensemble import members
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig, OptimizerConfig
from worldmodel.fitting.supervised import fit

BASE = FitConfig(
    steps=60,
    batch_rows=4,
    row_tokens=32,
    eval_every=60,
    optimizer=OptimizerConfig(learning_rate=1e-2),
)
SHAPE = EnsembleConfig(members=3, rank=2, steps=40, learning_rate=2e-2)
SEEN = [Example([1, q, 2, q + 20], [False] * 3 + [True], [0] * 4) for q in range(3, 13)]
UNSEEN = [[1, q, 2, q + 20] for q in range(13, 23)]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    model = create(helpers.config(48, num_hidden_layers=1), seed=0)
    fitted, _ = fit(model, SEEN, BASE, seed=0, directory=tmp_path_factory.mktemp("t"))
    return fitted


def fitted(trunk, folder, config=SHAPE, seed=0):
    return members(trunk, SEEN, BASE, config, seed=seed, directory=folder)


@pytest.fixture(scope="module")
def three(trunk, tmp_path_factory):
    return fitted(trunk, tmp_path_factory.mktemp("three"))


def last(model, texts):
    """log p of the last id of each text."""
    return np.array([item.logp[-1] for item in completion.score(model, texts)])


@pytest.mark.medium
def test_members_differ_from_the_trunk_and_from_each_other(trunk, three):
    assert len(three) == 3
    every = [trunk, *three]
    for i, a in enumerate(every):
        for b in every[:i]:
            assert helpers.distance(a.params, b.params) > 1e-3
    # Merged: a member is a model like any other, as large as the trunk.
    assert all(m.config == trunk.config for m in three)


def test_they_agree_on_what_they_saw_and_less_on_what_they_did_not(three):
    def spread(texts):
        return np.std([last(m, texts) for m in three], axis=0).mean()

    assert spread([list(e.ids) for e in SEEN]) < 0.5 * spread(UNSEEN)


@pytest.mark.slow
def test_the_same_seed_fits_the_same_members_also_after_a_stop(trunk, three, tmp_path):
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    one = EnsembleConfig(members=1, rank=2, steps=40, learning_rate=2e-2)
    fitted(trunk, tmp_path, one)  # the first is done, the second is cut short
    with pytest.raises(Stop):
        members(trunk, SEEN, BASE, SHAPE, seed=0, directory=tmp_path, progress=stop)
    for a, b in zip(three, fitted(trunk, tmp_path), strict=True):
        helpers.assert_trees_equal(a.params, b.params)
    other = fitted(trunk, tmp_path / "other", one, seed=1)[0]
    assert helpers.distance(other.params, three[0].params) > 1e-3


@pytest.mark.parametrize("wrong", [{"members": -1}, {"rank": 0}, {"steps": 0}])
def test_what_no_ensemble_can_be(wrong):
    with pytest.raises(ValueError, match="members must be >= 0, rank and steps >= 1"):
        EnsembleConfig(**wrong)
