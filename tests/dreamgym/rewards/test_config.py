"""Rewards as settings of a run: by --set, and through the manifest's JSON."""

import dataclasses
import json

import pytest

from dreamgym.config.overrides import changed, restored
from dreamgym.rewards.config import (
    JudgeConfig,
    MilestoneConfig,
    RewardConfig,
    RewardModelSourceConfig,
)
from dreamgym.rewards.tool_config import ToolConfig, ToolWeightsConfig

FULL = RewardConfig(
    outcome_weight=0.5,
    success_reward=10.0,
    failure_reward=-0.5,
    process_requires_success=True,
    environment_weight=0.0,
    invalid_penalty=0.1,
    unscaled_components=("uncertainty_penalty", "cost"),
    milestones=(
        MilestoneConfig(name="lit", pattern="^lamp on$", weight=0.25),
        MilestoneConfig(name="press", pattern="press", weight=1.0, search_in="action"),
    ),
    tools=ToolConfig(
        enabled=True, tool=(2.0, -0.3), weights=ToolWeightsConfig(when=2.0)
    ),
    sources=("rule", "reward_model", "judge"),
    source_weights=(0.5, 0.25, 0.25),
    reward_model=RewardModelSourceConfig(model="runs/a/reward"),
    judge=JudgeConfig(max_reward=3.0),
)


@pytest.mark.parametrize("config", [RewardConfig(), FULL])
def test_settings_come_back_from_json(config):
    data = json.loads(json.dumps(dataclasses.asdict(config)))
    assert restored(RewardConfig, data) == config


def test_every_setting_can_be_set_from_the_command_line():
    rows = [
        {"name": "lit", "pattern": "^lamp on$", "weight": 0.25},
        {"name": "press", "pattern": "press", "weight": 1, "search_in": "action"},
    ]
    c = RewardConfig()
    for name, value in (
        ("outcome_weight", 0.5),
        ("success_reward", 10),
        ("failure_reward", -0.5),
        ("process_requires_success", True),
        ("environment_weight", 0),
        ("invalid_penalty", 0.1),
        ("unscaled_components", ["uncertainty_penalty", "cost"]),
        ("milestones", rows),
        ("tools.enabled", True),
        ("tools.tool", [2.0, -0.3]),
        ("tools.weights.when", 2),
        ("sources", ["rule", "reward_model", "judge"]),
        ("source_weights", [0.5, 0.25, 0.25]),
        ("reward_model.model", "runs/a/reward"),
        ("judge.max_reward", 3),
    ):
        c = changed(c, name, value)
    assert c == FULL


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("milestones", [{"name": "a", "pattern": "("}], "weight"),
        ("milestones", [{"name": "a", "pattern": "(", "weight": 1}], "pattern"),
        ("milestones", [{"nam": "a"}], "nam"),
        ("milestones", ["a"], "MilestoneConfig.*'a'"),
        ("outcome_weight", 2.0, "outcome_weight"),
        ("tools.call", [1.0], "call"),
    ],
)
def test_settings_of_no_sense_are_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        changed(RewardConfig(), name, value)
