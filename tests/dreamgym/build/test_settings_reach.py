"""Settings that one stage writes and another reads: uncertainty, shares, reasoning."""

import dataclasses

import pytest

from dreamgym.build import episodes as run_episodes
from dreamgym.build.experience import training_share, uncertainty_gate
from dreamgym.config.overrides import changed
from dreamgym.config.presets import preset
from dreamgym.config.stages import UncertaintyConfig
from dreamgym.envs.dream import UncertaintyGate
from dreamgym.run.directory import Run, RunError
from tests import helpers
from worldmodel.data.records import write_episodes
from worldmodel.experience.config import ExperienceConfig


def run(tmp_path, **settings) -> Run:
    return Run(tmp_path / "r", preset("tiny", **settings))


def test_the_gate_takes_what_was_measured_on_dev_games(tmp_path):
    made = run(
        tmp_path, uncertainty=UncertaintyConfig(false_abort_rate=0.1, penalty=0.5)
    )
    with pytest.raises(RunError, match="stage 'fidelity' has not been run"):
        uncertainty_gate(made)
    made.write_json("fidelity.json", {"threshold": 0.3})
    made.stage("fidelity", dict)
    assert uncertainty_gate(made) == UncertaintyGate(threshold=0.3, penalty=0.5)


def test_without_a_gate_nothing_is_cut(tmp_path):
    made = run(tmp_path, uncertainty=UncertaintyConfig(penalty=0.5))
    assert uncertainty_gate(made) == UncertaintyGate(threshold=0.0, penalty=0.5)


def test_a_share_of_the_episodes_is_told_and_never_none(tmp_path):
    episodes = [helpers.lamp_and_door(f"room-{i}") for i in range(8)]

    def share_of(share):
        config = changed(preset("tiny"), "pretrain.data_share", share)
        made = Run(tmp_path / f"{share}", config)
        return training_share(made, episodes)

    assert share_of(0.25) == episodes[:2]
    assert share_of(0.01) == episodes[:1]
    assert share_of(1.0) == episodes


@pytest.mark.parametrize("reasoning", [True, False])
def test_traces_are_there_as_the_settings_say(tmp_path, reasoning):
    made = run(tmp_path, experience=ExperienceConfig(reasoning=reasoning))
    one = helpers.lamp_and_door()
    other = dataclasses.replace(one, id="other")
    write_episodes(made.path("episodes.jsonl"), [one])
    write_episodes(made.path("dev.jsonl"), [other])
    for episodes in run_episodes.read(made):
        for t in episodes[0].transitions:
            assert bool(t.reasoning) == reasoning
