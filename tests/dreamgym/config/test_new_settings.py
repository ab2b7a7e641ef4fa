"""Settings that need a fitted experience model, an environment, or other settings."""

import pytest

from dreamgym.config.presets import preset
from dreamgym.config.stages import ServerConfig
from tests import doubles
from worldmodel.chat.config import ChatConfig
from worldmodel.data.records import write_episodes

SERVER = ServerConfig(chat=ChatConfig(base_url="http://127.0.0.1:1/v1"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pretrain.permute_outcomes", True),
        ("ensemble.members", 2),
        ("experience.history", 4),
        ("experience.history_states", True),
        ("experience.keep_facts", True),
        ("experience.full_state", True),
    ],
)
def test_a_setting_of_a_fitted_model_is_refused(name, value):
    preset("tiny", {name: value}).check_new()
    preset("tiny", server=SERVER).check_new()
    with pytest.raises(ValueError, match=rf"^{name} is about a fitted experience mod"):
        preset("tiny", {name: value}, server=SERVER).check_new()


def test_train_tasks_that_nobody_played_need_an_environment(tmp_path):
    name = {"train.curriculum.generator": "train"}
    preset("tiny", name | {"env.id": "tests.doubles:Corridor"}).check_new()
    file = tmp_path / "e.jsonl"
    write_episodes(file, [doubles.expert(doubles.tasks("train")[0])])
    with pytest.raises(ValueError, match="generator = train takes tasks of an environ"):
        preset("tiny", name | {"data.episodes": str(file), "env.id": ""}).check_new()


def test_a_limit_of_memory_needs_worker_processes():
    limit = {"env.worker_memory_gb": 0.5}
    preset("tiny", limit | {"env.workers": 2}).check_new()
    config = preset("tiny", limit)  # an existing run goes on
    with pytest.raises(ValueError, match=r"set env\.workers to 1 or more .* 0\.5 GB"):
        config.check_new()


def test_a_refit_without_its_reward_model_names_the_setting_that_adds_it():
    refit = {"train.reward.reward_model.refit.every": 1}
    remedy = r"""--set 'train\.reward\.sources=\["rule", "reward_model"\]'"""
    with pytest.raises(ValueError, match=remedy):
        preset("tiny", refit).check_new()
    sources = {"train.reward.sources": ["rule", "reward_model"]}
    preset("tiny", refit | sources).check_new()
