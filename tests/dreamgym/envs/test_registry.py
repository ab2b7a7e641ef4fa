import pytest

from dreamgym.envs import registry
from tests import doubles


def test_make_by_name_and_by_path():
    assert type(registry.make("tests.doubles:Corridor")) is doubles.Corridor
    assert registry.make("tests.doubles:Corridor", max_steps=3).max_steps == 3
    with pytest.raises(ValueError, match=r"unknown environment 'txtworld'.*textworld"):
        registry.make("txtworld")
    with pytest.raises(ValueError, match=r"tests.doubles:Nowhere.*Nowhere"):
        registry.make("tests.doubles:Nowhere")
    with pytest.raises(ValueError, match=r"no.such.module:Env.*no"):
        registry.make("no.such.module:Env")
