"""Settings that contradict each other, or that would have no effect."""

import pytest

from dreamgym.config.presets import preset
from dreamgym.config.settings import RunConfig
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.config import SurrogateConfig, UpdateConfig
from dreamgym.run.directory import Run
from dreamgym.training import (
    LoopConfig,
    ReplayConfig,
)
from dreamgym.training.monitor import WatchConfig


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"group_size": 1}, "group_size must be >= 2 for a baseline of 'group', got 1"),
        ({"resample": -1}, "resample, forks and limit must be >= 0"),
        (
            {
                "replay": ReplayConfig(share=0.5),
                "update": UpdateConfig(surrogate=SurrogateConfig(ratio="none")),
            },
            "replay.share learns from turns of earlier policies",
        ),
        (
            {"tasks": 1, "group_size": 1, "update": UpdateConfig(baseline="batch")},
            "baseline = batch compares",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(settings, said):
    with pytest.raises(ValueError, match=said):
        LoopConfig(**settings)
    with pytest.raises(ValueError, match="group_size must be >= 2, got 1"):
        LoopConfig(group_size=1, forks=1, update=UpdateConfig(baseline="critic"))
    assert LoopConfig(group_size=1, update=UpdateConfig(baseline="critic"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"watch": WatchConfig(answer="back", remedies=("rewards",))},
            'dream.watch.remedies: "rewards" turns down',
        ),
        (
            {
                "watch": WatchConfig(answer="back", remedies=("rewards",)),
                "reward": RewardConfig(alpha=0.5),  # an outcome's, all of it
            },
            'dream.watch.remedies: "rewards" turns down',
        ),
        (
            {
                "reward": RewardConfig(alpha=0.5),
                "update": UpdateConfig(
                    baseline="success", kl=0.0, surrogate=SurrogateConfig(ratio="none")
                ),
            },
            "dream.reward .* learns from who won alone",
        ),
        (
            {"updates": 4, "watch": WatchConfig(probe=5, keep=True)},
            "dream.watch.probe .*at most updates = 4, got 5",
        ),
    ],
)
def test_dead_settings_are_refused_of_a_new_run_and_an_old_one_goes_on(
    settings, said, tmp_path, monkeypatch
):
    """A version before may have begun with them, and its runs must open."""
    config = preset("tiny", dream=LoopConfig(**settings))
    with pytest.raises(ValueError, match=said):
        Run(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
    with monkeypatch.context() as then:
        then.setattr(RunConfig, "check_new", lambda _: None)
        Run(tmp_path / "old", config).close()
    assert Run.open(tmp_path / "old").config == config
    Run(tmp_path / "old", config).close()  # the same command goes on
