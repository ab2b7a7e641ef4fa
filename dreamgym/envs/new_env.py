"""Writes the files of a new environment: an adapter that runs, and its tests.

`dreamgym new-env NAME` starts here. The adapters are the examples of
docs/how-to/environments.md, so what a user begins with is what the guide explains.
"""

import importlib.util
import keyword
import re
from importlib import resources

TEMPLATES = {
    "text": "keys",
    "tools": "store",
    "answer": "capitals",
    "gymnasium": "lake",
}
"""The template of each kind of environment, a file of dreamgym/envs/templates."""

IMPORTED = ("Task", "TextEnv", "ToolEnv")
"""Names that templates import, and that no class may hide."""

_TESTS = '''"""Tests of {class_name}: run `pytest {tests}`."""

import pytest

from dreamgym.envs.contract import checker
from {name} import {class_name}


def test_it_keeps_the_contract():
    report = checker.check({class_name}(), make={class_name})
    assert not report.faults, report.text("{class_name}")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_expert_wins(split):
    env = {class_name}()
    if not hasattr(env, "expert"):
        pytest.skip("it has no expert")
    for task in env.tasks(split)[:20]:
        env.reset(seed=0, options={{"task": task}})
        steps = [env.step(action) for action in env.expert()]
        assert [info["success"] for *_, info in steps[-1:]] == [True], task.id


def test_nonsense_is_answered_and_wins_nothing():
    env = {class_name}()
    env.reset(seed=0, options={{"task": env.tasks("train")[0]}})
    state, _, _, _, info = env.step("frobnicate the moon")
    assert state
    assert not info["success"]
'''


def class_name_of(name: str) -> str:
    """Return the name of the class of a module: `web_shop` has `WebShop`."""
    return "".join(part.capitalize() for part in name.split("_"))


def new_files(name: str, kind: str = "text") -> dict[str, str]:
    """Return the files of a new environment, by their names.

    Args:
      name: of the module, in lower case with underscores.
      kind: a key of `TEMPLATES`.

    Raises:
      ValueError: the name cannot be that of a module, or another module has it.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(
        name
    ):
        raise ValueError(
            "the name must be that of a Python module, in lower case such as "
            f"web_shop, got {name!r}"
        )
    template, class_name = TEMPLATES[kind], class_name_of(name)
    if class_name in IMPORTED:
        raise ValueError(
            f"the class of {name} would be {class_name}, which environments import: "
            "choose another name"
        )
    folder = resources.files("dreamgym.envs") / "templates"
    code = (folder / f"{template}.py").read_text(encoding="utf-8")
    code = re.sub(rf"\b{template.capitalize()}\b", class_name, code)
    code = code.replace(f'id=f"{template}-', f'id=f"{name}-')
    tests = f"test_{name}.py"
    text = _TESTS.format(name=name, class_name=class_name, tests=tests)
    return {f"{name}.py": code, tests: text}


def shadowed_module(name: str) -> str | None:
    """Return where a module of this name is already found, or None."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a specification, such as __main__
        return name
    # A folder without code has no origin, and hides nothing.
    return None if spec is None else spec.origin
