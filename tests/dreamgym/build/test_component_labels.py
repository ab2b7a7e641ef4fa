"""The classifier of tool use of a run: who needs it, what it is fitted to, its use."""

import dataclasses
import json

import pytest

from dreamgym.build import component_labels, rewards
from dreamgym.build.chat import ServerLost, check_server
from dreamgym.config.presets import preset
from dreamgym.rewards.config import JudgeConfig, RewardConfig
from dreamgym.rewards.reward_model_config import RewardModelConfig
from dreamgym.rewards.tool_config import ToolConfig, ToolLabelsConfig
from dreamgym.run.directory import Run, RunError
from dreamgym.stages import reward_model as stage
from dreamgym.stages.table import STAGES
from tests import doubles
from tests.chat_server import ok, serving, status
from tests.dreamgym.rewards.components.common import episode, episodes
from worldmodel.backbone.weights import save_model
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import write_episodes

FIT = RewardModelConfig(
    steps=4, batch_pairs=2, row_tokens=64, learning_rate=1e-2, save_every=2, history=0
)


def labelled(match="step", **labels) -> RewardConfig:
    tools = ToolConfig(enabled=True, match=match, labels=ToolLabelsConfig(**labels))
    return RewardConfig(environment_weight=0.0, tools=tools)


def with_rewards(config, reward, loop="train"):
    changed = dataclasses.replace(getattr(config, loop), reward=reward)
    return dataclasses.replace(config, **{loop: changed})


def made(tmp_path, reward, train=None, dev=None) -> Run:
    config = dataclasses.replace(preset("tiny", {"env.id": ""}), reward_model=FIT)
    run = Run(tmp_path / "r", with_rewards(config, reward))
    write_episodes(
        run.path("episodes.jsonl"), episodes((1, 2)) if train is None else train
    )
    whole = episodes((3,), split="dev") if dev is None else dev
    write_episodes(run.path("dev.jsonl"), whole)
    save_model(run.path("experience"), doubles.model(), doubles.tokenizer())
    run.stage("pretrain", dict)
    return run


@pytest.mark.medium
def test_a_run_fits_it_where_its_rewards_name_it_and_once(tmp_path):
    run = made(tmp_path, labelled(when="classifier"))
    numbers = stage.body(run)
    row = numbers["components"]
    assert (numbers["pairs"], row["episodes"]) == (0, 24)
    assert row["when"]["held_out"] == 12 * 3
    assert row["when"]["majority"] == pytest.approx(2 / 3)
    assert set(row) == {"episodes", "when", "which", "arguments", "digest"}
    assert run.path("curves/component_classifier.jsonl").is_file()
    assert list(run.path("checkpoints").glob("*")) == []
    run.mark("reward_model", numbers)
    before = run.path("component_classifier/reward.json").stat().st_mtime_ns
    assert stage.body(run) == numbers
    after = run.path("component_classifier/reward.json").stat().st_mtime_ns
    assert before == after
    with rewards.reward_function(run, run.config.train.reward, "train") as built:
        (got,) = built.score([episode(3, 1, ("wall",), calls=False)])
    assert -0.2 < got.rewards[0]["tool/when"] < 1.0
    named = dataclasses.replace(
        run.config.train.reward,
        sources=("reward_model",),
        reward_model=dataclasses.replace(
            run.config.train.reward.reward_model,
            model=str(run.path("component_classifier")),
        ),
    )
    with (
        pytest.raises(RunError, match="got a classifier of tool use"),
        rewards.reward_function(run, named, "train"),
    ):
        pass


def test_nobody_needs_it_by_default(tmp_path):
    run = made(tmp_path, RewardConfig())
    assert stage.body(run) == {"pairs": 0}
    assert not run.path("component_classifier").exists()
    config = with_rewards(run.config, labelled(which="classifier"), "transfer")
    assert (run.config.classifier_match, config.classifier_match) == (None, "step")
    assert "component_classifier" in STAGES["reward_model"].writes


def test_what_it_cannot_be_fitted_to_is_said(tmp_path):
    without = [dataclasses.replace(episode(1, 1, ("ok",), calls=False), success=False)]
    run = made(tmp_path, labelled(when="classifier"), train=without)
    with pytest.raises(RunError, match=r"0 episodes to fit a classifier .*12 held out"):
        stage.body(run)
    with (
        pytest.raises(RunError, match=r"reward.json; the stage reward_model fits"),
        rewards.reward_function(run, run.config.train.reward, "train"),
    ):
        pass


def test_both_loops_match_calls_alike():
    config = preset("tiny", {"env.id": ""})
    config = with_rewards(config, labelled(when="classifier"))
    config.check_new()
    other = with_rewards(config, labelled("order", when="classifier"), "transfer")
    with pytest.raises(ValueError, match=r"match must be the same .*'order'"):
        other.check_new()


def test_the_judge_of_the_run_is_asked_and_its_loss_says_what_to_do(tmp_path):
    e = episode(3, 1, ("wall", "ok"))

    def reward(url):
        judge = JudgeConfig(chat=ChatConfig(base_url=url))
        return dataclasses.replace(labelled(when="judge"), judge=judge)

    run = made(tmp_path, RewardConfig(), train=[e], dev=[])
    with serving(ok(json.dumps({"why": "far", "answer": "yes"}))) as server:
        config = reward(server.url)
        for _ in range(2):  # the second answers stand in the run
            with rewards.reward_function(run, config, "train") as built:
                (got,) = built.score([e])
        assert len(server.posts) == 2
    assert [x["tool/when"] for x in got.rewards] == [1.0, -0.2]
    usage = json.loads(run.path("stages/train.usage.json").read_text())["judge"]
    assert (usage["requests"], usage["cached"]) == (4, 2)
    with serving(status(401)) as server:
        config = reward(server.url)
        with (
            pytest.raises(ServerLost, match=r"refused: .*401.*the judge.*goes on"),
            rewards.reward_function(run, config, "train") as built,
        ):
            built.score([episode(4, 1, ("wall",))])


def test_a_judge_of_components_needs_a_url():
    config = with_rewards(preset("tiny", {"env.id": ""}), labelled(when="judge"))
    with pytest.raises(
        ValueError, match=r"train.reward.judge.chat.base_url must be set"
    ):
        check_server(config)
    assert component_labels.DIRECTORY == "component_classifier"
