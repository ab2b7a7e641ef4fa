"""Check the examples of docs/how-to/environments.md as they are written."""

import re
import sys
from pathlib import Path

import pytest

from dreamgym import cli
from dreamgym.envs import base, new_env, registry
from dreamgym.envs.contract import checker

PAGE = (Path(__file__).parents[1] / "docs/how-to/environments.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
CLASSES = {
    "keys": "Keys",
    "store": "Store",
    "capitals": "Capitals",
    "lake": "Lake",
    "vault": "VaultWithMemory",
}


def test_every_block_of_the_page_is_tested():
    assert PAGE.count("```python") == len(BLOCKS) == len(CLASSES)


@pytest.fixture
def spec(request, tmp_path, monkeypatch):
    name = request.param
    (tmp_path / f"{name}_page.py").write_text(BLOCKS[name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield f"{name}_page:{CLASSES[name]}"
    sys.modules.pop(f"{name}_page", None)


@pytest.mark.medium
@pytest.mark.parametrize("spec", CLASSES, indirect=True)
def test_an_example_has_no_fault_and_no_warning(spec, capsys):
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert (report.faults, report.warnings) == ((), ()), report.text(spec)
    assert cli.main(["check", "--env", spec]) == 0
    assert "no faults, no warnings" in capsys.readouterr().out


@pytest.mark.parametrize("spec", CLASSES, indirect=True)
def test_the_expert_of_an_example_wins_every_task(spec):
    env = registry.make(spec)
    tasks, expert = base.as_tasks(env), base.as_expert(env)
    for split in base.SPLITS:
        for task in tasks.tasks(split):
            base.begin(env, task)
            steps = [base.take(env, action) for action in expert.expert()]
            assert steps[-1].success
            assert not any(s.success for s in steps[:-1])


@pytest.mark.parametrize("kind", new_env.TEMPLATES)
def test_a_template_is_an_example_of_the_page(kind):
    name = new_env.TEMPLATES[kind]
    _, code = new_env.new_files(name, kind)[f"{name}.py"].split('"""\n', 1)
    assert code.lstrip("\n") == BLOCKS[name]


def test_the_store_has_25_lines_and_the_adapter_40():
    lines = {
        n: len([x for x in b.splitlines() if x.strip()]) for n, b in BLOCKS.items()
    }
    assert lines["store"] <= 25
    assert lines["keys"] <= 40


def test_every_capability_is_on_the_page():
    methods = {
        name
        for kind in vars(base).values()
        if isinstance(kind, type) and getattr(kind, "_is_protocol", False)
        for name in vars(kind)
        if not name.startswith("_")
    }
    assert {"tasks", "expert", "valid_actions", "variations", "fork"} <= methods
    assert [name for name in methods if f"`{name}(" not in PAGE] == []
