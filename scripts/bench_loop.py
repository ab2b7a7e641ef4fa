"""What an update of the training loop costs in the dream, part by part.

    python scripts/bench_loop.py RUN                   # a run up to expert iteration
    python scripts/bench_loop.py RUN --against ../other --against-run RUN2

A worker process trains a copy of the run from its policy of expert iteration, as
`dreamgym train` does, and stops after each update. Updates before the first timed one
compile. A row is the median over timed updates: seconds of wall time and of CPU time
(all threads of the process) by part, and steps (dreamed transitions) a second of each.
Parts exclude each other: `policy sampling` and `dream sampling` are generation, prefill
included; `policy host` and `dream host` are the rest of a policy's turn and of a
dreamed answer; `other` is what the loop itself does.

With `--against` a second worker runs the code of another checkout, and both take their
updates in turns; `ratio` holds ours divided by theirs, as the median over rounds with
the least and the largest. Where that checkout has another schema of run directories,
`--against-run` names a run of its own, made with the same preset and seed. Policies
learn differently there, so that episodes differ in length: compare steps a second. On
a machine that others use, CPU seconds are the steadier measure. With
`train.rollout_lag` 1 two threads share the clock: their sums count, and not the parts.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

OPEN = ("dreamgym.run.directory:Run.open", "dreamgym.pipeline.run:Run.open")
TUNE = (
    "dreamgym.run.process:tune_process",
    "dreamgym.pipeline.quickstart:tune_process",
)
TRAIN = ("dreamgym.stages.policies.train:body", "dreamgym.pipeline.train:stage")
SAVE = (
    "dreamgym.build.loop_checkpoint:LoopCheckpoint.record",
    "dreamgym.pipeline.reinforce:_Saver.after_update",
)
PARTS = {
    "policy": [("dreamgym.agent.policy:Policy.act",)],
    "dream": [
        (
            f"worldmodel.experience.local:LocalExperienceModel.{name}",
            f"worldmodel.local:LocalExperience.{name}",
        )
        for name in ("predict", "vary")
    ],
    "sampling": [
        ("dreamgym.agent.policy:generate",),
        ("worldmodel.experience.local:generate", "worldmodel.local:generate"),
    ],
    "learning": [("dreamgym.training.loop:learn",)],
}
"""Functions that make up the parts, by name: the second is that of commit 8b78b57."""


class Clock:
    """Wall and CPU seconds by part; a part that is entered pauses the one around it."""

    def __init__(self):
        self._stack = ["other"]
        self._last = self._read_clocks()
        self.seconds: dict[str, list[float]] = {}

    @staticmethod
    def _read_clocks() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()

    def _charge(self) -> None:
        times = self._read_clocks()
        total = self.seconds.setdefault(self._stack[-1], [0.0, 0.0])
        for i in (0, 1):
            total[i] += times[i] - self._last[i]
        self._last = times

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge the time inside to a part; sampling belongs to the part around it."""
        self._charge()
        if name == "sampling":
            name = self._stack[-1].replace(" host", "") + " sampling"
        elif name in ("policy", "dream"):
            name += " host"
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def take(self) -> dict[str, list[float]]:
        """Return the seconds since the last call."""
        self._charge()
        seconds, self.seconds = self.seconds, {}
        return seconds

    def pause(self, body: Callable[[], Any]) -> Any:
        """Call a function whose time does not count."""
        self._charge()
        result = body()
        self._last = self._read_clocks()
        return result


def resolve(names: Sequence[str]) -> tuple[Any, str]:
    """Return the owner and the attribute of the first name that this checkout has."""
    for name in names:
        module, _, path = name.partition(":")
        try:
            owner: Any = importlib.import_module(module)
            *parents, attribute = path.split(".")
            for parent in parents:
                owner = getattr(owner, parent)
            getattr(owner, attribute)
        except (ModuleNotFoundError, AttributeError):
            continue
        return owner, attribute
    raise SystemExit(f"this checkout has none of {', '.join(names)}")


def function(names: Sequence[str]) -> Callable[..., Any]:
    """Return the first function of these names that this checkout has."""
    return getattr(*resolve(names))


def wrap(clock: Clock, part: str, names: Sequence[str]) -> None:
    """Let calls of a function be charged to a part."""
    owner, attribute = resolve(names)
    inner = getattr(owner, attribute)

    @functools.wraps(inner)
    def timed(*args: Any, **kwargs: Any) -> Any:
        with clock.part(part):
            return inner(*args, **kwargs)

    setattr(owner, attribute, timed)


class _Stop(BaseException):
    """Ends the stage: no handler of errors may take it for a failure."""


def work(run: str) -> None:
    """Train a run, an update for each line of stdin; answer a line of JSON to each."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the stage prints is no answer
    # An editable install would lend its own modules to a checkout that lacks them.
    sys.meta_path[:] = [
        x
        for x in sys.meta_path
        if "__editable__" not in str(getattr(x, "__module__", ""))
    ]
    function(TUNE)()
    clock = Clock()
    for part, functions in PARTS.items():
        for names in functions:
            wrap(clock, part, names)
    owner, attribute = resolve(SAVE)
    save = getattr(owner, attribute)
    transitions = 0

    def order() -> None:
        if not sys.stdin.readline():
            raise _Stop

    def end(self: Any, progress: Any, trajectories: Any, *others: Any) -> None:
        nonlocal transitions
        with clock.part("saving"):
            save(self, progress, trajectories, *others)
        seconds, steps = clock.take(), progress.transitions - transitions
        transitions = progress.transitions
        row = {"steps": steps, "rollouts": len(trajectories), "parts": seconds}
        answers.write(json.dumps(row) + "\n")
        answers.flush()
        clock.pause(order)

    setattr(owner, attribute, end)
    order()
    clock.take()
    with contextlib.suppress(_Stop):
        function(TRAIN)(function(OPEN)(run))


class TrainingEnded(Exception):
    """A worker's training has no further update."""


class Worker:
    """A process that trains a copy of a run with the code of a checkout."""

    def __init__(self, checkout: Path, run: Path, directory: Path):
        copy = directory / "run"
        shutil.copytree(run, copy)
        for name in ("checkpoints/dream", "policies/dream"):
            shutil.rmtree(copy / name, ignore_errors=True)
        (copy / "stages" / "train.json").unlink(missing_ok=True)
        self._errors = (directory / "stderr").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--worker", str(copy)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=checkout,
            env=os.environ | {"PYTHONPATH": str(checkout)},
        )

    def update(self) -> dict[str, Any]:
        """Make one update, and return its row.

        Raises:
          TrainingEnded: the process ended; the message has the end of its output.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            text = self._errors.read()[-2000:]
            raise TrainingEnded(f"no further update: train ended\n{text}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over updates: of steps, of seconds by part, of steps a second."""
    names = sorted({name for row in rows for name in row["parts"]})
    zero = [0.0, 0.0]
    totals = [
        [sum(p[i] for p in row["parts"].values()) for i in (0, 1)] for row in rows
    ]
    steps = [row["steps"] for row in rows]
    return {
        "updates": len(rows),
        "rollouts": median([row["rollouts"] for row in rows]),
        "steps": median(steps),
        "seconds": median([t[0] for t in totals]),
        "CPU seconds": median([t[1] for t in totals]),
        "steps/s": median([n / t[0] for n, t in zip(steps, totals, strict=True)]),
        "steps/CPU s": median([n / t[1] for n, t in zip(steps, totals, strict=True)]),
        "parts": {
            name: {
                unit: median([row["parts"].get(name, zero)[i] for row in rows])
                for i, unit in enumerate(("seconds", "CPU seconds"))
            }
            for name in names
        },
    }


def median(values: Sequence[float]) -> float:
    """Return the median."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return (ordered[middle - 1] + ordered[middle]) / 2


def ratio(new_rows: Sequence[dict[str, Any]], old_rows: Sequence[dict[str, Any]]):
    """Return ours / theirs of steps a second: median, least and largest of rounds."""
    out = {}
    for i, name in enumerate(("steps/s", "steps/CPU s")):
        rates = [
            [row["steps"] / sum(p[i] for p in row["parts"].values()) for row in rows]
            for rows in (new_rows, old_rows)
        ]
        rounds = [a / b for a, b in zip(*rates, strict=True)]
        out[name] = {
            "median": median(rounds),
            "least": min(rounds),
            "largest": max(rounds),
        }
    return out


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the updates of the run take, and of the other checkout if given."""
    root = Path(__file__).resolve().parents[1]
    jobs = {"ours": (root, args.run)}
    if args.against is not None:
        jobs["theirs"] = (args.against.resolve(), args.against_run or args.run)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in jobs}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, (checkout, run) in jobs.items():
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            workers[name] = Worker(checkout, run, directory)
            stack.callback(workers[name].close)
        try:
            for number in range(args.warmup + args.rounds):
                for name, worker in workers.items():
                    row = worker.update()
                    if number >= args.warmup:
                        rows[name].append(row)
        except TrainingEnded as error:
            rounds = min(map(len, rows.values()))
            if not rounds:
                raise SystemExit(str(error)) from None
            print(
                f"only {rounds} of {args.rounds} rounds were timed: {error}",
                file=sys.stderr,
            )
            rows = {name: timed[:rounds] for name, timed in rows.items()}
    result: dict[str, Any] = {name: summary(timed) for name, timed in rows.items()}
    if args.against is not None:
        result["ratio"] = ratio(rows["ours"], rows["theirs"])
    return result


def show(result: dict[str, Any]) -> None:
    """Print the result as text."""
    for name in ("ours", "theirs"):
        if name not in result:
            continue
        row = result[name]
        print(
            f"{name}: {row['steps']:.0f} steps in {row['seconds']:.2f} s "
            f"({row['CPU seconds']:.2f} CPU s): {row['steps/s']:.0f} steps/s, "
            f"{row['steps/CPU s']:.0f} steps/CPU s"
        )
        for part, seconds in row["parts"].items():
            print(
                f"  {part:16} {seconds['seconds']:7.2f} s "
                f"{seconds['CPU seconds']:7.2f} CPU s"
            )
    for name, row in result.get("ratio", {}).items():
        print(
            f"{name}, ours / theirs: {row['median']:.2f} "
            f"({row['least']:.2f} to {row['largest']:.2f})"
        )


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", type=Path, help="a run directory, done up to expert iteration")
    add("--against", type=Path, help="another checkout of dreamgym")
    add("--against-run", type=Path, help="a run for it (the same run)")
    add("--rounds", type=int, default=3, help="timed updates of each (3)")
    add("--warmup", type=int, default=2, help="updates before them, which compile (2)")
    add("--json", action="store_true", help="one JSON object")
    add("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds < 1 or args.warmup < 0:
        parser.error(
            f"expected --rounds of at least 1 and --warmup of at least 0, got "
            f"{args.rounds} and {args.warmup}"
        )
    if args.worker:
        work(str(args.run))
        return
    result = measure(args)
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
