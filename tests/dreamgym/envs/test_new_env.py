"""Environments that `dreamgym new-env` writes: they run, and their tests pass."""

import re
import subprocess
import sys

import pytest

from dreamgym import cli
from dreamgym.envs import new_env


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [n for n in sys.modules if n.startswith("of_kind_")]:
        del sys.modules[name]


def _pytest(folder):
    """Run the tests of a folder as a user does; return what is printed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    ).stdout


@pytest.mark.medium
@pytest.mark.parametrize("kind", new_env.TEMPLATES)
def test_what_is_written_keeps_the_contract_and_passes_its_tests(kind, folder, capsys):
    name = f"of_kind_{kind}"
    assert cli.main(["new-env", name, "--kind", kind]) == 0
    text = capsys.readouterr().out
    spec = f"{name}:OfKind{kind.capitalize()}"
    assert f"dreamgym check --env {spec}\n" in text
    assert {p.name for p in folder.iterdir()} == {f"{name}.py", f"test_{name}.py"}
    assert cli.main(["check", "--env", spec]) == 0
    assert "no faults, no warnings" in capsys.readouterr().out
    assert "\n5 passed" in _pytest(folder)


def test_the_tests_fail_for_an_environment_that_loses(folder):
    cli.main(["new-env", "of_kind_lost"])
    path = folder / "of_kind_lost.py"
    path.write_text(path.read_text().replace("self.room == self.key", "False", 1))
    assert "\n4 failed, 1 passed" in _pytest(folder)


def test_names_of_two_environments_do_not_meet():
    one, two = (new_env.new_files(n, "gymnasium")[f"{n}.py"] for n in ("a_b", "cd"))
    assert "class AB(TextEnv)" in one
    assert 'id=f"a_b-{n}"' in one
    assert not re.search(r"\bLake\b", one)
    assert 'id=f"cd-{n}"' in two


@pytest.mark.parametrize(
    "name", ["Web", "2d", "a-b", "a__b", "class", "", "../x", "task"]
)
def test_a_name_that_is_no_module_is_refused(name, folder, capsys):
    assert cli.main(["new-env", name]) == 2
    assert re.search(r"got |choose another", capsys.readouterr().err)
    assert list(folder.iterdir()) == []


def test_a_file_that_exists_is_not_written_over(folder, capsys):
    (folder / "test_of_kind_x.py").write_text("mine")
    assert cli.main(["new-env", "of_kind_x"]) == 2
    assert "test_of_kind_x.py exists" in capsys.readouterr().err
    assert [p.read_text() for p in folder.iterdir()] == ["mine"]


@pytest.mark.usefixtures("folder")
def test_the_name_of_an_installed_module_is_refused(capsys):
    assert cli.main(["new-env", "numpy"]) == 2
    assert "there is a module numpy already" in capsys.readouterr().err


def test_another_directory(folder, capsys):
    (folder / "of_kind_y").mkdir()  # a folder of this name hides nothing
    assert cli.main(["new-env", "of_kind_y", "--to", "games/mine"]) == 0
    assert (folder / "games/mine/of_kind_y.py").exists()
    assert "cd games/mine && dreamgym check" in capsys.readouterr().out
