"""Rewards as settings of a run: by --set, and through the manifest's JSON."""

import dataclasses
import json

import pytest

from dreamgym.config.overrides import changed, restored
from dreamgym.rewards.config import (
    JudgeConfig,
    LearnedConfig,
    MilestoneConfig,
    RewardConfig,
    ToolConfig,
    ToolWeightsConfig,
)

FULL = RewardConfig(
    alpha=0.5, success=10.0, failure=-0.5, gated=True, environment=0.0, invalid=0.1,
    kept=("doubt", "cost"),
    milestones=(
        MilestoneConfig(name="lit", pattern="^lamp on$", weight=0.25),
        MilestoneConfig(name="press", pattern="press", weight=1.0, over="action"),
    ),
    tools=ToolConfig(
        enabled=True, tool=(2.0, -0.3), weights=ToolWeightsConfig(when=2.0)
    ),
    tiers=("rule", "learned", "judge"), blend=(0.5, 0.25, 0.25),
    learned=LearnedConfig(model="runs/a/reward"), judge=JudgeConfig(good=3.0),
)  # fmt: skip


@pytest.mark.parametrize("config", [RewardConfig(), FULL])
def test_settings_come_back_from_json(config):
    told = json.loads(json.dumps(dataclasses.asdict(config)))
    assert restored(RewardConfig, told) == config


def test_every_setting_can_be_set_from_the_command_line():
    rows = [
        {"name": "lit", "pattern": "^lamp on$", "weight": 0.25},
        {"name": "press", "pattern": "press", "weight": 1, "over": "action"},
    ]
    c = RewardConfig()
    for name, value in (
        ("alpha", 0.5), ("success", 10), ("failure", -0.5), ("gated", True),
        ("environment", 0), ("invalid", 0.1), ("kept", ["doubt", "cost"]),
        ("milestones", rows), ("tools.enabled", True), ("tools.tool", [2.0, -0.3]),
        ("tools.weights.when", 2), ("tiers", ["rule", "learned", "judge"]),
        ("blend", [0.5, 0.25, 0.25]), ("learned.model", "runs/a/reward"),
        ("judge.good", 3),
    ):  # fmt: skip
        c = changed(c, name, value)
    assert c == FULL


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("milestones", [{"name": "a", "pattern": "("}], "weight"),
        ("milestones", [{"name": "a", "pattern": "(", "weight": 1}], "pattern"),
        ("milestones", [{"nam": "a"}], "nam"),
        ("milestones", ["a"], "MilestoneConfig.*'a'"),
        ("alpha", 2.0, "alpha"),
        ("tools.call", [1.0], "call"),
    ],
)
def test_settings_of_no_sense_are_refused(name, value, told):
    with pytest.raises(ValueError, match=told):
        changed(RewardConfig(), name, value)
