"""Fits and trainings that differ in their seed share all that comes before them."""

import pytest

from dreamgym.build import loop
from dreamgym.config.presets import preset
from dreamgym.run.directory import Run
from dreamgym.stages.table import STAGES
from worldmodel.data.hashing import content_seed

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


def test_a_seed_of_fits_changes_what_is_fitted_to_demonstrations_and_after():
    first, second = (preset("default", ENV | {"bc.seed": seed}) for seed in (0, 1))
    changed = {x for x in STAGES if STAGES.key(x, first) != STAGES.key(x, second)}
    assert changed >= {"bc", "warmstart", *TRAININGS}
    assert not changed & {"collect", "pretrain", "fidelity", "reward_model"}
    assert first.warmstart_seed == first.seed
    assert second.seed == first.seed != second.warmstart_seed


@pytest.mark.parametrize("name", ["dream", "s2r/round-1"])
def test_a_loop_draws_by_the_training_seed(tmp_path, name):
    """Without one by the run's own, as before."""
    runs = [
        Run(tmp_path / str(i), preset("tiny", ENV | {"train.seed": i, "seed": seed}))
        for i, seed in ((0, 7), (1, 7), (2, 7))
    ]
    seeds = [loop._seed(run, name) for run in runs]
    assert len(set(seeds)) == 3
    assert seeds[0] == (7 if name == "dream" else content_seed(7, name))
    assert all(run.config.seed == 7 for run in runs)


@pytest.mark.parametrize("setting", ["bc.seed", "train.seed"])
def test_a_negative_seed_of_fits_or_trainings_is_refused(setting):
    with pytest.raises(ValueError, match=r"seed must be >= 0, got -1"):
        preset("default", ENV | {setting: -1})
