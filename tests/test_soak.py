"""The soak of interrupted runs, with programs that fail in known ways."""

import importlib.util
import random
import sys
import time
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "scripts" / "soak_runs.py"
_spec = importlib.util.spec_from_file_location("soak_runs", PATH)
assert _spec is not None
assert _spec.loader is not None
soak = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(soak)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")

# It is done at its second start, and writes down each of them.
SECOND = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[-1]); folder.mkdir(exist_ok=True)
starts = len(list(folder.iterdir()))
(folder / f"start_{starts}").write_text("x")
time.sleep(60 * (starts < 1))
"""
FAILS = "import sys; sys.exit(3)"
HANGS = "import time; time.sleep(60)"
PARENT = """
import subprocess, sys
child = [sys.executable, "-c", "import time; time.sleep(60)"]
sys.exit(subprocess.run(child).returncode)
"""


def done(program, folder, *moments, patience=20.0):
    command = [sys.executable, "-c", program]
    return soak.run_until_done(command, folder, moments, random.Random(0), patience)


@pytest.mark.parametrize("way", ["process", "group", "terminate"])
def test_an_interrupted_run_is_repeated_until_it_is_done(tmp_path, way):
    failure, ways = done(SECOND, tmp_path / "run", (way, 1.0), (way, 10.0))
    assert (failure, ways) == ("", [way])
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_power_cut_takes_the_files_of_the_last_second(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "old").write_text("x")
    time.sleep(soak.LOST_SECONDS + 0.2)
    (folder / "new").write_text("x")
    soak.lose_last_second(folder)
    assert [path.name for path in folder.iterdir()] == ["old"]


def test_a_run_that_fails_by_itself_is_a_failure(tmp_path):
    failure, ways = done(FAILS, tmp_path / "run", ("process", 20.0))
    assert (failure, ways) == ("status 3 after nothing", [])
    assert done(FAILS, tmp_path / "run")[0] == "status 3"


def test_a_run_that_ends_with_its_child_is_a_failure(tmp_path):
    failure, ways = done(PARENT, tmp_path / "run", ("child", 1.5))
    assert ways == ["child"]
    assert failure.endswith("after child")


def test_a_run_that_hangs_is_a_failure(tmp_path):
    assert done(HANGS, tmp_path / "run", patience=1.0)[0] == "it hangs"


def test_differences_are_of_what_differs_or_is_missing(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, text in ((one, "a"), (two, "b")):
        (folder / "test").mkdir(parents=True)
        (folder / "test/bc.jsonl").write_text(text)
        (folder / "metrics.jsonl").write_text(text)  # has times in it
        (folder / "branches.jsonl").write_text("same")
    (one / "names.json").write_text("{}")
    differences = soak.differences(soak.digests(one), soak.digests(two))
    assert differences == {"test/bc.jsonl", "names.json"}
