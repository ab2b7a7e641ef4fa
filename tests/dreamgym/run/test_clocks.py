"""Clocks that jump: nothing that a run records or decides depends on the wall clock."""

import datetime
import json
import os
import time

import pytest

from dreamgym.config.presets import preset
from dreamgym.run import display, lock
from dreamgym.run.directory import Run
from dreamgym.run.display import Status
from dreamgym.run.lock import RunLock
from dreamgym.run.tracking import FILE, read_metrics
from worldmodel.data.records import write_episodes

DAY = 24 * 3600.0


class JumpingClock:
    """A wall clock that is set a day back or forward at each look."""

    def __init__(self):
        self.looks, self.start = 0, time.time()

    def __call__(self):
        self.looks += 1
        return self.start + (-1) ** self.looks * self.looks * DAY


@pytest.fixture
def wall_clock(monkeypatch):
    clock = JumpingClock()
    monkeypatch.setattr(time, "time", clock)
    return clock


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "r", preset("tiny"))


def test_the_seconds_of_a_stage_are_those_that_it_took(run, wall_clock):
    def fail():
        time.sleep(0.05)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run.stage("collect", fail)
    saved = run.path("stages/collect.seconds")
    assert 0 <= float(saved.read_text()) < 60
    for seconds in (-DAY, DAY):  # a file from the past or the future
        os.utime(saved, (wall_clock.start + seconds,) * 2)
    run.stage("collect", dict)
    assert 0 <= run.done("collect")["seconds"] < 60


@pytest.mark.usefixtures("wall_clock")
def test_metrics_go_on_in_order(run):
    for step in (1, 2, 3):
        run.track("bc", step, {"loss": 1.0 / step})
    Run(run.root, run.config).track("bc", 2, {"loss": 7.0})  # has been logged
    rows = read_metrics(run.path(FILE))
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["metrics"]["loss"] for row in rows] == [1.0, 1 / 2, 1 / 3]
    times = [row["time"] for row in rows]
    assert times != sorted(times)  # the clock did jump


@pytest.mark.usefixtures("wall_clock")
def test_the_time_left_is_that_of_steady_progress(monkeypatch):
    steady = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: steady[0])
    status = Status(10, "dream", "update")
    for done, seconds in ((2, 12.0), (6, 20.0)):
        steady[0] += seconds
        status.update(done)
    assert "0:32, 0:20 left" in status.head()  # 4 updates in 20 s, 4 to go


@pytest.mark.usefixtures("wall_clock")
@pytest.mark.parametrize("year", [1970, 2100])
def test_a_lock_of_another_time_is_as_good(tmp_path, monkeypatch, year):
    """The kernel decides who holds it, not how old its file looks."""

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(year, 1, 2, tzinfo=tz)

    with monkeypatch.context() as other:
        other.setattr(lock.datetime, "datetime", Clock)
        with RunLock(tmp_path):
            for seconds in (0.0, 4e9):
                os.utime(tmp_path / lock.NAME, (seconds, seconds))
                with pytest.raises(BlockingIOError, match=f"since {year}-01-02"):
                    RunLock(tmp_path).__enter__()
    os.utime(tmp_path / lock.NAME, (4e9, 4e9))  # left by a process that has ended
    with RunLock(tmp_path):
        assert json.loads((tmp_path / lock.NAME).read_text())["pid"] == os.getpid()


@pytest.mark.usefixtures("wall_clock")
def test_a_run_goes_on_whatever_times_its_files_have(run, capsys):
    write_episodes(run.path("episodes.jsonl"), [])
    first = run.stage("collect", lambda: {"games": 7})
    for path in run.root.rglob("*"):
        os.utime(path, (4e9 if path.suffix == ".jsonl" else 0.0,) * 2)
    again = Run(run.root, run.config).stage("collect", lambda: 1 / 0)
    assert again["numbers"] == first["numbers"] == {"games": 7}
    assert "done before" in capsys.readouterr().err
