"""What `from dreamgym import ...` offers, and that it costs nothing to begin with."""

import subprocess
import sys

import pytest

import dreamgym


@pytest.mark.parametrize("name", dreamgym.__all__)
def test_every_public_name_is_there(name):
    value = getattr(dreamgym, name)
    assert getattr(value, "__name__", name) == name


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no 'envz'; have .*ToolEnv"):
        _ = dreamgym.envz


def test_an_environment_needs_no_jax():
    code = (
        "import sys, dreamgym\n"
        "assert 'gymnasium' not in sys.modules, 'import dreamgym is not light'\n"
        "from dreamgym import Task, TextEnv, ToolEnv, tool\n"
        "heavy = {'jax', 'flax', 'transformers', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
