"""Interrupt runs at random moments until they are done: do all end as if never?

    python scripts/soak_runs.py
    python scripts/soak_runs.py --runs 50 --env textcraft --seed 1 --json
    python scripts/soak_runs.py --full-disk     # needs the right to mount (root, Linux)

A run is made without interruptions first. Each further run is interrupted up to
`--interruptions` times, at random moments and in random ways, and begun again with the
same command until it is done:

  process    kill -9 of the process
  group      kill -9 of the process and all that it started
  child      kill -9 of something that it started, such as Java or a browser, if there
             is anything; the run has to go on by itself
  terminate  SIGTERM
  power      kill -9 of all, and every file of the last second is lost, as after a power
             cut
With `--full-disk` the run lies on a file system of its own, which is filled in each
stage in turn, as soon as the stage before has printed its line: so many KiB are left
(`--rooms`). The command has to end with one line that names the full disk, and
without a traceback. Then there is room again, and the same command goes on, to the next
stage, and in the end to files that are equal.
Compared are episodes, branches, scorecards, models, policies and test games (EQUAL),
byte by byte. Exit status 1 where a run ends otherwise, or fails.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

WAYS = ("process", "group", "child", "terminate", "power")
EQUAL = (
    "*.jsonl",
    "fidelity.json",
    "names.json",
    "tokenizer/*",
    "experience/*",
    "policies/*/*",
    "test/*.jsonl",
    "dev_games/*.jsonl",
)
"""Files that have to be equal."""
UNEQUAL = ("metrics.jsonl",)
"""Of these: what has times in it."""
LOST_SECONDS = 1.0
LAST_LINE = "measured:"
"""How the last line begins that a run prints before its first stage."""
END = "the results"
"""What a run writes after its last stage."""
STAGE_LINE = r"^(\S+): \d+ s( |$)"
"""What a run prints when a stage is done: its name and its seconds."""
DONE_LINE = r"^{}: (\d+ s( |$)|done before)"
"""The same of one stage, also where it was done by an earlier command."""
FULL = "no space left"
"""How a line, in small letters, names a full disk."""
WRONG = "WRONG: "
"""How the row of a stage begins that did not end with one line."""
SPARE = 8
"""The size of the disk that is filled, in sizes of a run."""


def main() -> None:
    """Parse the arguments, run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="interrupted runs (5)")
    parser.add_argument(
        "--interruptions", type=int, default=4, help="of one run, at most (4)"
    )
    parser.add_argument("--env", default="textworld", help="environment (textworld)")
    parser.add_argument("--preset", default="tiny", help="preset (tiny)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    parser.add_argument("--full-disk", action="store_true", help="see above")
    parser.add_argument(
        "--rooms",
        default="8,0",
        help="KiB that are left on a full disk, of stages in turn (8,0)",
    )
    parser.add_argument("--keep", action="store_true", help="keep runs that are equal")
    parser.add_argument("--root", type=Path, help="where runs are made (temporary)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse_args()
    root = args.root or Path(tempfile.mkdtemp(prefix="dreamgym-soak-"))
    root.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "dreamgym.cli", "quickstart"]
    command += ["--preset", args.preset, "--env", args.env]
    show(f"the run without interruptions, in {root}")
    start_time = time.monotonic()
    if (code := run(command, root / "reference", None)) != 0:
        sys.exit(f"the run without interruptions failed with status {code}")
    seconds = time.monotonic() - start_time
    wanted = digests(root / "reference")
    if args.full_disk:
        rooms = [int(text) for text in args.rooms.split(",")]
        sys.exit(fill_disks(command, root, wanted, rooms))
    draw = random.Random(args.seed)
    counts: collections.Counter[str] = collections.Counter()
    failures = []
    for number in range(args.runs):
        folder = root / f"run_{number}"
        moments = [
            (draw.choice(args.ways), draw.uniform(1.0, seconds))
            for _ in range(args.interruptions)
        ]
        patience = max(300.0, 5 * seconds)
        failure, ways = run_until_done(command, folder, moments, draw, patience)
        counts.update(ways)
        different = sorted(differences(wanted, digests(folder)))
        if failure or different:
            row = {"run": number, "ways": ways, "failure": failure, "files": different}
            failures.append(row)
            show(f"run {number}: {failure or 'done'}, different: {different}")
        else:
            show(f"run {number}: equal after {', '.join(ways) or 'no interruption'}")
            if not args.keep:
                shutil.rmtree(folder)
    result = {
        "env": args.env,
        "runs": args.runs,
        "equal": args.runs - len(failures),
        "files": len(wanted),
        "interruptions": dict(counts),
        "failures": failures,
    }
    text = json.dumps(result) if args.json else as_text(result)
    print(text)
    sys.exit(1 if failures else 0)


def show(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)


def as_text(result: dict) -> str:
    """Return the result as a few lines."""
    ways = ", ".join(f"{n} {way}" for way, n in sorted(result["interruptions"].items()))
    return (
        f"{result['env']}: {result['equal']} of {result['runs']} runs end as the one "
        f"without interruptions, in {result['files']} files\ninterruptions: {ways}"
    )


def run_until_done(
    command: Sequence[str],
    folder: Path,
    moments: Sequence[tuple[str, float]],
    draw: random.Random,
    patience: float,
) -> tuple[str, list[str]]:
    """Run a command again and again; return what failed, if anything, and the ways.

    A run fails that ends with an error by itself or after a child was killed, and one
    that hangs.
    """
    ways: list[str] = []
    for way, delay in moments:
        code, interrupted = run_and_interrupt(
            command, folder, way, delay, draw, patience
        )
        ways += [way] * interrupted
        if code == 0:
            return "", ways
        if code is None:
            return f"it hangs after {way}", ways
        if not interrupted or way == "child":
            return f"status {code} after {ways[-1] if ways else 'nothing'}", ways
    code = run(command, folder, patience)
    return {0: "", None: "it hangs"}.get(code, f"status {code}"), ways


def begin(
    command: Sequence[str], folder: Path, log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Begin a command in a process and a session of its own."""
    return subprocess.Popen(
        [*command, "--run-dir", str(folder)],
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(command: Sequence[str], folder: Path, patience: float | None) -> int | None:
    """Run a command without interruptions; return its status, None where it hangs."""
    with folder.with_suffix(".log").open("ab") as file:
        return wait(begin(command, folder, file), patience)


def wait(process: subprocess.Popen[bytes], patience: float | None) -> int | None:
    """Wait for a process; kill it, and return None, if it takes too many seconds."""
    try:
        return process.wait(timeout=patience)
    except subprocess.TimeoutExpired:
        kill([*descendants(process.pid), process.pid])
        process.wait()
        return None


def kill(victims: Sequence[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes, those aside that are gone."""
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def run_and_interrupt(
    command: Sequence[str],
    folder: Path,
    way: str,
    delay: float,
    draw: random.Random,
    patience: float,
) -> tuple[int | None, bool]:
    """Run a command; return its status, and whether it was interrupted.

    It was not where it ended before the delay, or had no children.
    """
    with folder.with_suffix(".log").open("ab") as file:
        process = begin(command, folder, file)
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=delay), False
    children = descendants(process.pid)
    victims = {
        "process": [process.pid],
        "child": [draw.choice(children)] if children else [],
        "terminate": [process.pid],
    }.get(way, [*children, process.pid])
    kill(victims, signal.SIGTERM if way == "terminate" else signal.SIGKILL)
    code = wait(process, patience)
    if way == "power":
        lose_last_second(folder)
    return code, bool(victims)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += [int(text) for text in file.read_text().split()]
    return children + [pid for child in children for pid in descendants(child)]


def lose_last_second(folder: Path) -> None:
    """Remove each file that was written in the last second."""
    present = time.time()
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if present - path.stat().st_mtime <= LOST_SECONDS:
            path.unlink()


class Disk:
    """A file system of its own in memory, with a folder for a run (Linux, root)."""

    def __init__(self, path: Path, size: int):
        self.path, self.folder, self._filler = path, path / "run", path / "filler"
        self._size = size

    def __enter__(self) -> "Disk":
        self.path.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", self.path]
        subprocess.run(mount, check=True)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.path], check=True)

    def fill(self, room: int) -> None:
        """Fill the disk but for so many bytes, rounded down to whole pages."""
        with self._filler.open("wb") as file:
            size = shutil.disk_usage(self.path).free
            while size > 0:  # the run writes, too
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                    break
                except OSError:
                    size -= os.sysconf("SC_PAGE_SIZE")
            file.truncate(max(size - room, 0))

    def empty(self) -> None:
        """Give the space back."""
        self._filler.unlink(missing_ok=True)


def fill_disks(
    command: Sequence[str], root: Path, wanted: dict[str, str], rooms: Sequence[int]
) -> int:
    """Fill the disk of a run in each of its stages; print, and return the status."""
    reference = root / "reference"
    log = reference.with_suffix(".log").read_text(errors="replace")
    names = [match[1] for match in re.finditer(STAGE_LINE, log, re.MULTILINE)]
    stages = [n for n in names if (reference / "stages" / f"{n}.json").is_file()]
    size = sum(p.stat().st_size for p in reference.rglob("*") if p.is_file())
    with Disk(root / "disk", SPARE * size) as disk:
        rows = fill_in_stages(command, disk, stages, rooms)
        code = run(command, disk.folder, None)
        different = sorted(differences(wanted, digests(disk.folder)))
        if different:
            shutil.copytree(disk.folder, root / "different", dirs_exist_ok=True)
    for stage, room, end in rows:
        print(f"{stage:28} {room:4d} KiB  {end}")
    failures = [stage for stage, _, end in rows if end.startswith(WRONG)]
    print(
        f"{len(rows)} full disks, {len(failures)} of them with another end; then "
        f"status {code}, different: {different or 'nothing'}"
    )
    return 1 if failures or code or different else 0


def fill_in_stages(
    command: Sequence[str], disk: Disk, stages: Sequence[str], rooms: Sequence[int]
) -> list[tuple[str, int, str]]:
    """Fill the disk in each stage of a run in turn, and in what follows the last.

    Returns the stage, the KiB that were left, and how the command ended: with its
    last line, or what was wrong (WRONG).
    """
    log = disk.path.with_name(f"{disk.path.name}.log")  # not on the disk
    rows = []
    for number, stage in enumerate([*stages, END]):
        room = rooms[number % len(rooms)]
        before = DONE_LINE.format(re.escape(stages[number - 1])) if number else None
        with log.open("wb") as file:
            process = begin(command, disk.folder, file)
            while process.poll() is None and not begins(disk.folder, log, before):
                time.sleep(0.002)
            disk.fill(room * 1024)
            code = process.wait()
        disk.empty()
        end = end_of(code, log.read_text(errors="replace"))
        rows.append((stage, room, end))
        show(f"{stage}, {room} KiB: {end}")
    return rows


def begins(folder: Path, log: Path, before: str | None) -> bool:
    """Return whether a stage begins: the line of the one before is in the log.

    Before the first one a run has written its manifest.
    """
    text = log.read_text(errors="replace")
    if before is None:
        return LAST_LINE in text and (folder / "manifest.json").is_file()
    return re.search(before, text, re.MULTILINE) is not None


def end_of(code: int, text: str) -> str:
    """Return the line by which a full disk ended a command, or what is wrong."""
    lines = text.strip().splitlines() or [""]
    named = [line for line in lines if FULL in line.lower()]
    if code == 0:
        return "done: what it still had to write found room"
    if "Traceback" in text or named != lines[-1:]:
        return f"{WRONG}status {code}: {' / '.join(lines[-4:])}"
    return lines[-1]


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file of a run that has to be equal, by its name."""
    paths = {p for pattern in EQUAL for p in folder.glob(pattern) if p.is_file()}
    names = {str(p.relative_to(folder)): p for p in paths if p.name not in UNEQUAL}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in sorted(names.items())
    }


def differences(wanted: dict[str, str], present: dict[str, str]) -> set[str]:
    """Return the names of the files that differ, or are missing in one of both."""
    names = wanted.keys() | present.keys()
    return {name for name in names if wanted.get(name) != present.get(name)}


if __name__ == "__main__":
    main()
