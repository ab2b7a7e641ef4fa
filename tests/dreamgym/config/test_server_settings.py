"""Settings of a fitted experience model beside a server, which is not fitted."""

import pytest

from dreamgym.config.presets import preset
from dreamgym.config.stages import ServerConfig
from worldmodel.chat.config import ChatConfig

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
