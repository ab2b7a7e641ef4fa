"""Settings that need a fitted experience model, or an environment."""

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
