"""A run with an ensemble, and the room that its replies have."""

import dataclasses

import pytest

from dreamgym.build import experience as run_experience
from dreamgym.config.presets import preset
from dreamgym.config.stages import UncertaintyConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import collect, ensemble, pretrain
from tests import doubles
from worldmodel.experience.base import Query
from worldmodel.experience.config import EnsembleConfig


def test_without_members_there_is_nothing_to_fit(tmp_path):
    run = Run(tmp_path / "run", preset("tiny"))  # not even pretrained
    assert ensemble.body(run) == {"members": 0}
    assert not run.path("ensemble").exists()


@pytest.mark.slow
def test_a_run_trusts_its_members_once_they_are_fitted(tmp_path):
    config = preset(
        "tiny",
        {"env.id": "tests.doubles:Corridor"},
        uncertainty=UncertaintyConfig(signal="ensemble"),
        ensemble=EnsembleConfig(members=2, rank=2, steps=5),
    )
    shape = dataclasses.replace(config.experience, reasoning_tokens=1, state_tokens=1)
    run = Run(tmp_path / "run", dataclasses.replace(config, experience=shape))
    run.stage("collect", lambda: collect.body(run))
    numbers = run.stage("pretrain", lambda: pretrain.body(run))["numbers"]
    with pytest.raises(RunError, match="stage 'ensemble' has not been run"):
        run_experience.load_experience(run)
    run.stage("ensemble", lambda: ensemble.body(run))
    model = run_experience.load_experience(run)
    task = doubles.task(2, 4, 6)
    queries = [Query(task, (), task.initial_state, "right")]
    (answer,) = model.predict(queries)
    assert len(model.members) == 2
    assert model.signals(queries)["ensemble"] == [answer.confidence]
    # Replies have room for what was learned, whatever the settings say.
    assert numbers["reasoning_tokens"] > 1
    assert numbers["state_tokens"] > 1
    assert model.config == dataclasses.replace(
        shape,
        reasoning_tokens=numbers["reasoning_tokens"],
        state_tokens=numbers["state_tokens"],
    )
