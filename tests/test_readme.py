"""What README and tutorial promise, run as it is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def example() -> str:
    (block,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL
    )
    return block


@pytest.mark.slow
def test_the_python_example_runs_as_printed(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", example()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^dream (0|1|0\.\d+) \d+$", done.stdout, re.MULTILINE)
    assert "dream minus bc: {'mean':" in done.stdout
    assert (tmp_path / "runs/example/results.json").is_file()


def test_the_python_example_is_ten_lines():
    assert len([line for line in example().splitlines() if line.strip()]) <= 10


def test_every_file_the_readme_names_is_there():
    text = (ROOT / "README.md").read_text().split("\n## Files\n")[1]
    named = re.findall(r"^\| `([\w./]+)` \|", text, re.MULTILINE)
    assert len(named) >= 6
    assert [n for n in named if not (ROOT / n).exists()] == []


@pytest.mark.slow
def test_the_seeds_script_pools_its_runs(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "scripts/seeds.py",
            "--preset",
            "tiny",
            "--seeds",
            "3",
            "--no-transfer",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "runs/tiny-3/results.json").read_text())
    success = results["policies"]["untrained"]["success"]["mean"]
    assert f"| untrained | {100 * success:.1f} % |" in done.stdout
    assert "- dream minus warmstart:" in done.stdout
    assert "s2r" not in done.stdout
