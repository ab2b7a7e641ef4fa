"""Settings that contradict each other, or that would have no effect."""

import pytest

from curriculum.config import CurriculumConfig, DemonstrationStartsConfig, ValueConfig
from dreamgym.config.presets import preset
from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import TrainConfig
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.config import (
    CriticConfig,
    KLPenaltyConfig,
    ShapingConfig,
    SurrogateConfig,
    UpdateConfig,
)
from dreamgym.run.directory import Run
from dreamgym.training.config import (
    ForkConfig,
    LoopConfig,
    MonitorConfig,
    ReplayConfig,
)


def begun_in_demonstrations(**settings):
    starts = DemonstrationStartsConfig(**settings)
    return CurriculumConfig(demonstration_starts=starts)


DPO = UpdateConfig(
    advantage_estimator="preference_pairs",
    surrogate=SurrogateConfig(importance_level="none", loss_aggregation="episode"),
)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"group_size": 1},
            "group_size must be >= 2 for advantage_estimator 'group_mean', got 1",
        ),
        ({"max_resample_rounds": -1}, "keep_rollouts must be >= 0"),
        (
            {
                "replay": ReplayConfig(ratio=0.5),
                "update": UpdateConfig(
                    surrogate=SurrogateConfig(importance_level="none")
                ),
            },
            "replay.ratio learns from turns of earlier policies",
        ),
        (
            {
                "tasks_per_update": 1,
                "group_size": 1,
                "update": UpdateConfig(advantage_estimator="batch_mean"),
            },
            "advantage_estimator = batch_mean compares",
        ),
        (
            {"fork": ForkConfig(preference="first_action"), "forks_per_update": 1},
            "fork.preference is about pairs of forks",
        ),
        (
            {"fork": ForkConfig(preference="first_action"), "update": DPO},
            "forks_per_update is 0",
        ),
        (
            {"curriculum": begun_in_demonstrations(distance=2)},
            "curriculum.demonstration_starts.share is 0",
        ),
        (
            {
                "tasks_per_update": 1,
                "curriculum": begun_in_demonstrations(share=0.5),
            },
            "tasks_per_update must be >= 2, got 1",
        ),
        (
            {"fork": ForkConfig(by="entropy")},
            "forks_per_update is 0: set it to >= 1, or leave fork out",
        ),
        (
            {
                "forks_per_update": 2,
                "fork": ForkConfig(weight=0.5),
                "update": UpdateConfig(advantage_estimator="gae"),
            },
            "fork.weight below 1 compares .* one of .'group_mean', .* got 'gae'",
        ),
        (
            {
                "forks_per_update": 2,
                "fork": ForkConfig(prefix_mean=True),
                "update": UpdateConfig(credit="episode"),
            },
            "update.credit must be turn .* got episode and 'group_mean'",
        ),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ValueError, match=message):
        LoopConfig(**settings)
    with pytest.raises(ValueError, match="group_size must be >= 2, got 1"):
        LoopConfig(
            group_size=1,
            forks_per_update=1,
            update=UpdateConfig(advantage_estimator="gae"),
        )
    assert LoopConfig(group_size=1, update=UpdateConfig(advantage_estimator="gae"))
    lone = UpdateConfig(
        advantage_estimator="batch_mean", shaping=ShapingConfig(early_call=2.0)
    )
    with pytest.raises(ValueError, match=r"early_call are about groups: .*0, 0, 2\.0"):
        LoopConfig(group_size=1, update=lone)
    assert LoopConfig(group_size=2, update=lone)
    with pytest.raises(ValueError, match=r"by must be one of .* got 'surprise'"):
        ForkConfig(by="surprise")
    with pytest.raises(ValueError, match=r"weight must be in \[0, 1\], got 1.5"):
        ForkConfig(weight=1.5)
    with pytest.raises(ValueError, match=r"share must be in \[0, 1\), got 1.0"):
        DemonstrationStartsConfig(share=1.0)
    with pytest.raises(ValueError, match="distance must be >= 1, got 0"):
        DemonstrationStartsConfig(distance=0)
    with pytest.raises(ValueError, match=r"shrink_below <= grow_above .* got 0.6 and"):
        DemonstrationStartsConfig(shrink_below=0.6)
    with pytest.raises(
        ValueError, match=r"demonstration_starts.share must be 0, got 0 a"
    ):
        TrainConfig(
            environment="real",
            curriculum=begun_in_demonstrations(share=0.5),
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"monitor": MonitorConfig(response="revert", remedies=("rewards",))},
            'train.monitor.remedies: "rewards" scales',
        ),
        (
            {
                "monitor": MonitorConfig(response="revert", remedies=("rewards",)),
                "reward": RewardConfig(outcome_weight=0.5),  # an outcome's, all of it
            },
            'train.monitor.remedies: "rewards" scales',
        ),
        (
            {
                "reward": RewardConfig(outcome_weight=0.5),
                "update": UpdateConfig(
                    advantage_estimator="success_filter",
                    kl_penalty=KLPenaltyConfig(coefficient=0.0),
                    surrogate=SurrogateConfig(importance_level="none"),
                ),
            },
            "train.reward .* learns from success alone",
        ),
        (
            {"update": UpdateConfig(critic=CriticConfig(ensemble_size=4))},
            r"train.update.critic.ensemble_size = 4 .* group_mean fits no critic, gae",
        ),
        (
            {"update": UpdateConfig(critic=CriticConfig(step_limit="cut"))},
            r"train.update.critic.step_limit = cut has no effect",
        ),
    ],
)
def test_dead_settings_are_refused_of_a_new_run_and_an_old_one_goes_on(
    settings, message, tmp_path, monkeypatch
):
    """A version before may have begun with them, and its runs must open."""
    config = preset("tiny", train=TrainConfig(**settings))
    with pytest.raises(ValueError, match=message):
        Run(tmp_path / "new", config)
    assert not (tmp_path / "new").exists()
    with monkeypatch.context() as then:
        then.setattr(RunConfig, "check_new", lambda _: None)
        Run(tmp_path / "old", config).close()
    assert Run.open(tmp_path / "old").config == config
    Run(tmp_path / "old", config).close()  # the same command goes on


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "chance"}, "by must be one of"),
        ({"preference": "prefix"}, "preference must be one of"),
        ({"weight": 1.5}, r"weight must be in \[0, 1\], got 1.5"),
    ],
)
def test_settings_of_forks_that_do_not_exist(settings, message):
    with pytest.raises(ValueError, match=message):
        ForkConfig(**settings)


@pytest.mark.parametrize(
    ("curriculum", "group_size", "refused"),
    [
        ({}, 1, True),
        ({}, 2, False),
        ({"uniform_share": 1.0}, 1, False),
        ({"target_success": 0.5}, 1, False),
        ({"value": ValueConfig(pooling="lexical")}, 1, False),
        ({"value": ValueConfig(estimator="posterior")}, 1, False),
    ],
)
def test_values_need_two_outcomes_or_clusters(curriculum, group_size, refused):
    loop = LoopConfig(
        group_size=group_size,
        curriculum=CurriculumConfig(**curriculum),
        update=UpdateConfig(advantage_estimator="gae", normalize_advantages="none"),
    )
    message = "curriculum.value.pooling = task draws tasks by the variance"
    assert ((loop.dead() or "").startswith(message)) == refused
