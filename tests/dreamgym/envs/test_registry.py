import sys

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


class Demanding(doubles.Corridor):
    def __init__(self, path):
        del path
        super().__init__()


def test_a_class_that_wants_arguments_and_a_module_with_a_mistake_are_named(
    tmp_path, monkeypatch
):
    name = f"{__name__}:Demanding"
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    with pytest.raises(ValueError, match=r"cannot be made: missing .*'path'; it must"):
        registry.make(name)
    monkeypatch.syspath_prepend(tmp_path)
    for text, kind in (("def f(:", "SyntaxError"), ("x = unknown", "NameError")):
        module = f"mistaken_{kind.lower()}"
        (tmp_path / f"{module}.py").write_text(text)
        with pytest.raises(ValueError, match=f"cannot be imported: {kind}: "):
            registry.make(f"{module}:Env")
