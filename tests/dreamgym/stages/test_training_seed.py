"""Trainings of one warm start share all that comes before them."""

import pytest

from dreamgym.config.presets import preset
from dreamgym.stages.table import STAGES

ENV = {"env.id": "tests.doubles:Corridor"}
TRAININGS = {"expert_iteration", "train", "s2r", "real_only", "real_only_total"}


def test_a_training_seed_changes_the_trainings_after_the_warm_start():
    """A stage's key covers those that it needs, so that what follows changes, too."""
    first, second = (preset("default", ENV | {"train.seed": seed}) for seed in (0, 1))
    changed = {x for x in STAGES if STAGES.key(x, first) != STAGES.key(x, second)}
    of_trainings = {
        x.name for x in STAGES.values() if {"train", "train.seed"} & set(x.reads)
    }
    assert of_trainings == TRAININGS
    assert changed >= TRAININGS
    before = {"collect", "pretrain", "fidelity", "bc", "warmstart", "dream_check"}
    assert not changed & (before | {"evaluate/warmstart"})


def test_a_negative_training_seed_is_refused():
    with pytest.raises(ValueError, match=r"seed must be >= 0, got -1"):
        preset("default", ENV | {"train.seed": -1})
