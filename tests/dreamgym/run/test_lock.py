"""One command at a time in a run directory."""

import json
import os
import subprocess
import sys

import pytest

from dreamgym.run.lock import RunLock

HOLDER = """
import sys, time
from pathlib import Path
from dreamgym.run.lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_and_told_who_holds_the_run(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError, match=f"process {holder.pid} .*since 20"):
            RunLock(tmp_path).__enter__()
    finally:
        holder.kill()  # its lock ends with it, though the file stays
        holder.communicate()
    assert json.loads((tmp_path / ".lock").read_text())["pid"] == holder.pid
    with RunLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()


def test_the_holder_may_enter_again(tmp_path):
    lock = RunLock(tmp_path)
    with lock:
        with lock:
            pass
        with pytest.raises(BlockingIOError, match="choose another --run-dir"):
            RunLock(tmp_path).__enter__()
    with RunLock(tmp_path):
        pass
