"""Metrics while a run runs: the file, its torn end, trackers, and their failures."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dreamgym.config.presets import preset
from dreamgym.run import tracking
from dreamgym.run.directory import Run
from dreamgym.run.tracking import FILE, SCHEMA, Journal, TrackerError, Tracking

ROOT = Path(__file__).parents[3]


def test_a_row_is_a_line_with_its_stage_step_and_time(tmp_path):
    output = Tracking(tmp_path, (), {})
    assert not (tmp_path / FILE).exists()  # looking at a run writes nothing
    before = time.time()
    output.log(
        "dream",
        3,
        {
            "success": np.float32(0.5),
            "n": 7,
            "bad": math.nan,
            "name": "x",
            "none": None,
        },
    )
    (line,) = (tmp_path / FILE).read_text().splitlines()
    row = json.loads(line)
    assert before - 1 <= row.pop("time") <= time.time() + 1
    assert row == {
        "schema": SCHEMA,
        "stage": "dream",
        "step": 3,
        "metrics": {"success": 0.5, "n": 7, "bad": None},
    }


def test_nothing_is_told_twice_and_a_row_without_numbers_not_at_all(tmp_path):
    for _ in range(2):  # as the process before, and as the one that goes on
        output = Tracking(tmp_path, (), {})
        for step in (1, 2):
            output.log("bc", step, {"loss": step})
        output.log("iwm", 1, {"loss": 9})
        output.log("bc", 3, {"note": "text"})
    rows = tracking.read_metrics(tmp_path / FILE)
    result = [(r["stage"], r["step"], r["metrics"]["loss"]) for r in rows]
    assert result == [("bc", 1, 1), ("bc", 2, 2), ("iwm", 1, 9)]


@pytest.mark.parametrize("torn", [b"{", b'{"schema": "dreamgym.metr', b"\x00\x00"])
def test_a_torn_last_line_is_cut_off_and_told_again(tmp_path, torn):
    path = tmp_path / FILE
    Journal(path).log("bc", 1, {"loss": 1.0})
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert len(tracking.read_metrics(path)) == 1
    again = Journal(path)
    assert path.read_bytes() == whole
    assert again.log("bc", 2, {"loss": 2.0})
    assert [r["step"] for r in tracking.read_metrics(path)] == [1, 2]


def test_every_prefix_of_a_file_goes_on_to_the_same_rows(tmp_path):
    path = tmp_path / FILE
    for step in (1, 2, 3):
        Journal(path).log("a", step, {"x": step})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        journal = Journal(path)
        for step in (1, 2, 3):
            journal.log("a", step, {"x": step})
        rows = tracking.read_metrics(path)
        assert [(r["step"], r["metrics"]["x"]) for r in rows] == [
            (1, 1),
            (2, 2),
            (3, 3),
        ]


@pytest.mark.parametrize("line", ["{", "[]", '{"schema": "dreamgym.metrics/2"}'])
def test_a_file_that_is_none_of_ours_is_named_with_its_line(tmp_path, line):
    Journal(tmp_path / FILE).log("a", 1, {"x": 1})
    with (tmp_path / FILE).open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=rf"{FILE}:2: expected"):
        Journal(tmp_path / FILE)


WRITER = """
import sys
from pathlib import Path
from dreamgym.run.tracking import Journal
journal, step = Journal(Path(sys.argv[1])), 0
while True:
    step += 1
    journal.log("a", step, {"x": step, "long": 10 ** 300})
"""


def test_a_killed_writer_goes_on_without_gaps(tmp_path):
    path = tmp_path / FILE
    for _ in range(3):
        size = path.stat().st_size if path.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], cwd=ROOT)
        deadline = time.monotonic() + 60
        while not (path.exists() and path.stat().st_size > size + 20_000):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps = [r["step"] for r in tracking.read_metrics(path)]
        assert steps == list(range(1, len(steps) + 1))


class Fake:
    """A tracker that breaks when it is told a step."""

    def __init__(self, breaks=None):
        self.breaks, self.told, self.closed = breaks, [], False

    def log(self, stage, step, metrics):
        if step == self.breaks:
            raise ConnectionError("no route")
        self.told.append((stage, step, dict(metrics)))

    def close(self):
        self.closed = True


def test_a_tracker_that_breaks_is_dropped_aloud_and_once(tmp_path, monkeypatch, capsys):
    good, bad = Fake(), Fake(breaks=2)
    made = {"good": ("json", lambda *_: good), "bad": ("json", lambda *_: bad)}
    monkeypatch.setattr(tracking, "TRACKERS", made)
    output = Tracking(tmp_path, ("bad", "good", "good"), {})
    for step in (1, 2, 3):
        output.log("a", step, {"x": step})
    output.close()
    assert [s for _, s, _ in bad.told] == [1]
    assert [s for _, s, _ in good.told] == [1, 2, 3]
    assert (good.closed, bad.closed) == (True, False)
    assert len(tracking.read_metrics(tmp_path / FILE)) == 3
    error = capsys.readouterr().err
    assert error.count("--track bad: ConnectionError: no route; going on") == 1
    assert error.count("\n") == 1


def test_what_cannot_begin_is_said_before_the_run(tmp_path, monkeypatch):
    with pytest.raises(TrackerError, match=r"'mlflow': expected one of \['tensorb"):
        Tracking(tmp_path, ("mlflow",), {})
    monkeypatch.setitem(tracking.TRACKERS, "wandb", ("no_such_package", Fake))
    with pytest.raises(TrackerError, match=r"pip install 'dreamgym\[wandb\]'"):
        tracking.require(["wandb"])

    def refuses(*_):
        raise PermissionError("no login")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", ("json", refuses))
    with pytest.raises(TrackerError, match="wandb: PermissionError: no login"):
        Tracking(tmp_path, ("wandb",), {})
    assert not any(tmp_path.iterdir())


def test_no_run_is_made_for_a_tracker_that_is_not_there(tmp_path):
    with pytest.raises(TrackerError, match="--track 'mlflow': expected one of"):
        Run(tmp_path / "run", preset("tiny"), track=("mlflow",))
    assert not (tmp_path / "run").exists()


def follow(root, name, steps):
    """A run's process: tell some steps of a stage, and end."""
    output = Tracking(root, (name,), {"preset": "tiny", "seed": 0})
    for step in steps:
        output.log("dream", step, {"success": step / 10, "kl": math.nan})
    output.close()


def events(folder):
    """(tag, step) -> value of event files, read by the records' own framing.

    A record is length (8 bytes), its checksum (4), data, its checksum (4).
    """
    from tensorboardX.proto.event_pb2 import Event

    result = {}
    for path in sorted(folder.glob("events.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    result.setdefault((value.tag, event.step), []).append(
                        round(value.simple_value, 6)
                    )
    return result


@pytest.mark.peer
def test_tensorboard_gets_each_number_once(tmp_path):
    pytest.importorskip("tensorboardX")
    follow(tmp_path, "tensorboard", (1, 2))
    follow(tmp_path, "tensorboard", (1, 2, 3))  # gone on
    result = events(tmp_path / "tensorboard")
    assert result == {("dream/success", n): [n / 10] for n in (1, 2, 3)}


OFFLINE = """
import sys
from pathlib import Path
from tests.dreamgym.run.test_tracking import follow
follow(Path(sys.argv[1]), "wandb", [int(n) for n in sys.argv[2:]])
"""


@pytest.mark.medium
@pytest.mark.peer
def test_wandb_offline_has_the_numbers_and_the_settings(tmp_path):
    pytest.importorskip("wandb")
    environment = os.environ | {
        "WANDB_MODE": "offline",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
    }
    for steps in (("1", "2"), ("1", "2", "3")):
        done = subprocess.run(
            [sys.executable, "-c", OFFLINE, str(tmp_path), *steps],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "going on without it" not in done.stderr
    runs = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2
    assert len({p.stem for p in runs}) == 1  # one id: uploaded they are one run
    rows, settings = [], {}
    for path in runs:
        more, result = stored(path)
        rows, settings = rows + more, settings | result
    assert [(r["dream/step"], r["dream/success"]) for r in rows] == [
        (1, 0.1),
        (2, 0.2),
        (3, 0.3),
    ]
    assert not any("dream/kl" in r for r in rows)
    assert settings["preset"] == "tiny"


def records(data):
    """Records of W&B's file: LevelDB's log format after a header of 7 bytes.

    Blocks of 32 KiB; checksum (4 bytes), length (2), kind (1: whole, 2 to 4: parts).
    """
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # what is left of a block is padding
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def stored(path):
    """History rows and settings of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    rows, settings = [], {}
    for data in records(path.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            items = [
                ("/".join(i.nested_key) if i.nested_key else i.key, i.value_json)
                for i in record.history.item
            ]
            rows.append({key: json.loads(value) for key, value in items})
        for item in record.run.config.update:
            settings[item.key] = json.loads(item.value_json)
    return rows, settings
