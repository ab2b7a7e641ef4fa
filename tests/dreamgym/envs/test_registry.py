import asyncio
import sys

import numpy as np
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


def test_a_name_that_ends_after_its_colon_is_told_what_may_follow():
    with pytest.raises(ValueError, match=r"^scenario:: expected a seed >= 0 after"):
        registry.make("scenario:")


@pytest.mark.parametrize(
    "name",
    ["scenario:7?depth=2&depth=3", "http://127.0.0.1:9#deadline=1&depth=2&depth=2"],
)
def test_a_setting_stands_in_a_name_once(name):
    with pytest.raises(ValueError, match="each setting once, got depth more than once"):
        registry.make(name)


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


class Plain:
    """No environment at all."""


CRASHES = """import gymnasium
class Env(gymnasium.Env):
    def __init__(self): self.x
"""


HIDES = """from dreamgym import ToolEnv, tool
class Env(ToolEnv):
    @tool
    def list(self) -> str: ...
    def expert(self) -> list[str]: ...
"""


def message(spec):
    with pytest.raises(ValueError, match=r"\S") as caught:
        registry.make(spec)
    return str(caught.value)


def test_a_class_that_is_no_environment_says_what_to_derive_it_from(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert message(f"{__name__}:Plain") == (
        f"{__name__}:Plain is no gymnasium.Env; derive it from dreamgym.TextEnv or "
        "dreamgym.ToolEnv"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1\nprint(x / 0)", "ZeroDivisionError: division by zero (module {}, {}2)"),
        ("import no_such", "ModuleNotFoundError: No module named 'no_such' (module {}"),
        ("import json\njson.loads('x')", "(char 0) (module {}, {}2)"),
        ("def f(:", "SyntaxError: invalid syntax (module {}, {}1)"),
        ("import asyncio\nraise asyncio.CancelledError('x')", "CancelledError: x (m"),
        ("import sys\nsys.exit(3)", "it called sys.exit(3) (module {}, {}2)"),
        (HIDES, "such as `list`, hides it from the type hints below: write `from __f"),
        (CRASHES, "has no attribute 'x'"),
        (CRASHES, "({}3)"),
    ],
)
def test_an_error_of_a_module_is_told_with_its_type_file_and_line(
    source, expected, tmp_path, monkeypatch, request
):
    name = f"erring_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    file = f"{name}.py:"
    named = (repr(name), file) if "module {}" in expected else (file,)
    told = message(f"{name}:Env")
    assert expected.format(*named) in told
    assert told.startswith(f"environment '{name}:Env' cannot be ")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("rooms/lab.py:Lab", "is a file: write rooms.lab:Lab"),
        ("/rooms/lab.py:Lab", "is a file: go to /rooms, write lab:Lab"),
        ("numbers:Lab", "Python's own module has the name; rename yours"),
        ("tests.doubles:Coridor", "has no 'Coridor': did you mean 'Corridor'?"),
        ("no_such.lab:Lab", "'no_such'; run it in the directory that holds it, or set"),
    ],
)
def test_a_wrong_name_is_told_with_what_may_be_meant(spec, expected):
    assert expected in message(spec)
    assert spec in message(spec)


class ExitsInInit(doubles.Corridor):
    def __init__(self):
        raise SystemExit(0)


class CancelledInInit(doubles.Corridor):
    def __init__(self):
        raise asyncio.CancelledError("stop")


def test_an_environment_that_ends_the_program_is_an_error(monkeypatch):
    """Else a command would end without a word, with status 0."""
    monkeypatch.setattr(doubles, "ExitsInInit", ExitsInInit, raising=False)
    with pytest.raises(ValueError, match=r"it called sys.exit\(0\)"):
        registry.make("tests.doubles:ExitsInInit")


def test_what_is_no_exception_is_an_error_of_the_environment(monkeypatch):
    monkeypatch.setattr(doubles, "CancelledInInit", CancelledInInit, raising=False)
    with pytest.raises(ValueError, match="cannot be made: CancelledError: stop"):
        registry.make("tests.doubles:CancelledInInit")


def test_what_a_module_asks_of_numpy_ends_with_its_import(tmp_path, monkeypatch):
    (tmp_path / "strict_numbers.py").write_text(
        "import numpy\nnumpy.seterr(all='raise')\n"
        "from tests.corridor import Corridor\n"
        "class Strict(Corridor):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = np.geterr()
    registry.make("strict_numbers:Strict").close()
    assert np.geterr() == before
