"""The soak of interrupted runs, with programs that fail in known ways."""

import importlib.util
import os
import random
import subprocess
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

# Two stages; each waits until the disk is full, and fails if it is.
STAGES = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[-1]); folder.mkdir(exist_ok=True)
filler, messages = folder.parent / "filler", sys.argv[1:-2]
print("measured: nothing", flush=True)
(folder / "manifest.json").write_text("{}")
for stage, message in zip(("one", "two/part"), messages):
    marker = folder / stage.replace("/", "-")
    if marker.exists():
        print(f"{stage}: done before", flush=True)
        continue
    for _ in range(50):
        time.sleep(0.0 if filler.exists() else 0.01)
    if filler.exists():
        sys.exit(message)
    marker.write_text("x")
    print(f"{stage}: 0 s  count 1", flush=True)
"""
ONE_LINE = "program: [Errno 28] No space left on device: 'x'"


class FakeDisk:
    """A folder that is called full when the file `filler` is there."""

    def __init__(self, path):
        self.path, self.folder, self.rooms = path, path / "run", []
        path.mkdir()

    def fill(self, room):
        self.rooms.append(room)
        (self.path / "filler").write_text("x")

    def empty(self):
        (self.path / "filler").unlink()


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


@pytest.mark.medium
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


def test_the_disk_is_filled_in_each_stage(tmp_path):
    disk = FakeDisk(tmp_path / "disk")
    command = [sys.executable, "-c", STAGES, ONE_LINE, "Traceback\n" + ONE_LINE]
    rows = soak.fill_in_stages(command, disk, ["one", "two/part"], [8, 0])
    assert [row[:2] for row in rows] == [("one", 8), ("two/part", 0), (soak.END, 8)]
    assert disk.rooms == [8192, 0, 8192]
    ends = [row[2] for row in rows]
    assert ends[0] == ONE_LINE
    assert ends[1].startswith(soak.WRONG)
    assert "Traceback" in ends[1]
    assert ends[2].startswith("done")
    assert {p.name for p in disk.folder.iterdir()} > {"one", "two-part"}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"one: 0 s\n{ONE_LINE}\n", False),
        (f"{ONE_LINE}\n{ONE_LINE}\n", True),  # two lines
        (f"{ONE_LINE}\nanother line\n", True),
        ("program: something else\n", True),
        ("", True),
    ],
)
def test_how_a_full_disk_has_to_end_a_command(text, wrong):
    assert soak.end_of(2, text).startswith(soak.WRONG) == wrong


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_is_filled_to_the_last_page(tmp_path):
    try:
        disk = soak.Disk(tmp_path / "disk", 1 << 20).__enter__()
    except subprocess.CalledProcessError:
        pytest.skip("no right to mount")
    try:
        disk.folder.mkdir()
        disk.fill(8192)
        (disk.folder / "small").write_bytes(bytes(8192))
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "large").write_bytes(bytes(8192))
        disk.empty()
        (disk.folder / "large").write_bytes(bytes(8192))
    finally:
        disk.__exit__()
