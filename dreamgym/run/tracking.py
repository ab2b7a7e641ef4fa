"""Tracking of metrics: always as JSON lines, optionally in other trackers.

track(stage, step, metrics) -> RUN/metrics.jsonl -> TensorBoard, Weights & Biases. A
resumed run does not log a row again that the file already has. A tracker that fails is
dropped with a message and never stops a run.
"""

import hashlib
import importlib
import importlib.util
import json
import math
import numbers
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from worldmodel.data import processes

SCHEMA = "dreamgym.metrics/1"
FILE = "metrics.jsonl"
Metrics = Mapping[str, float | int | None]
"""Metrics by name; None stands for a value that was not finite."""


class TrackerError(RuntimeError):
    """A tracker cannot start; the message says which, why, and what to do."""


@runtime_checkable
class Tracker(Protocol):
    """A destination of metrics, in addition to the file."""

    def log(self, stage: str, step: int, metrics: Metrics) -> None:
        """Log the metrics of a stage at a step; steps of a stage mostly increase."""
        ...

    def close(self) -> None:
        """Write everything that is still buffered."""
        ...


def read_metrics(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Return the rows of a metrics file in order; an incomplete last line is ignored.

    Raises:
      ValueError: a line has another format; the message names file and line.
    """
    lines = Path(path).read_bytes().split(b"\n")
    out = []
    for number, line in enumerate(lines[:-1], start=1):  # whole lines end in \n
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: expected JSON, {error}") from None
        keys = {"stage", "step", "time", "metrics"}
        if (
            not isinstance(row, dict)
            or row.get("schema") != SCHEMA
            or not keys <= row.keys()
        ):
            raise ValueError(f"{where}: expected a row of {SCHEMA!r}, got {row!r:.60}")
        out.append(row)
    return out


class Journal:
    """The metrics file: one row per line, each flushed to disk before the next."""

    def __init__(self, path: str | os.PathLike):
        """Open the file to append; an incomplete last line is removed.

        Raises:
          ValueError: a line has another format.
        """
        self._path = Path(path)
        self._logged: set[tuple[str, int]] = set()
        if self._path.is_file():
            self._logged = {(r["stage"], r["step"]) for r in read_metrics(self._path)}
            whole = self._path.read_bytes().rfind(b"\n") + 1
            if whole < self._path.stat().st_size:
                os.truncate(self._path, whole)

    def log(self, stage: str, step: int, metrics: Metrics) -> bool:
        """Append a row unless the stage already has one for this step.

        Returns whether a row was written.
        """
        if (stage, step) in self._logged:
            return False
        row = {
            "schema": SCHEMA,
            "stage": stage,
            "step": step,
            "time": round(time.time(), 3),
            "metrics": dict(metrics),
        }
        with self._path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        self._logged.add((stage, step))
        return True


def plain(metrics: Mapping[str, Any]) -> dict[str, float | int | None]:
    """Return the values that are numbers, for JSON; None if one is not finite."""
    out: dict[str, float | int | None] = {}
    for name, value in metrics.items():
        if isinstance(value, int):  # counts stay whole
            out[name] = int(value)
        elif isinstance(value, numbers.Real):
            out[name] = float(value) if math.isfinite(value) else None
    return out


class _TensorBoard:
    """Event files under RUN/tensorboard, a tag each of STAGE/METRIC."""

    def __init__(self, root: Path, config: Mapping[str, Any]):
        writer = importlib.import_module("tensorboardX").SummaryWriter
        name = f".{time.time_ns()}"  # its own names only differ by whole seconds
        self._writer = writer(logdir=str(root / "tensorboard"), filename_suffix=name)
        self._writer.add_text("config", f"```\n{json.dumps(config, indent=2)}\n```")

    def log(self, stage: str, step: int, metrics: Metrics) -> None:
        for name, value in metrics.items():
            if value is not None:
                self._writer.add_scalar(f"{stage}/{name}", value, step)
        self._writer.flush()  # a kill loses nothing

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """A run of Weights & Biases under RUN/wandb; the same one when the run goes on.

    WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and the login are the user's.
    """

    def __init__(self, root: Path, config: Mapping[str, Any]):
        wandb = importlib.import_module("wandb")
        identity = f"{root.resolve()} {json.dumps(config, sort_keys=True)}"
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dreamgym"),
            name=root.name,
            id=hashlib.sha256(identity.encode()).hexdigest()[:16],
            resume="allow",
            dir=str(root),
            config=dict(config),
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._stages: set[str] = set()

    def log(self, stage: str, step: int, metrics: Metrics) -> None:
        if stage not in self._stages:  # each stage counts its own steps
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/step")
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        values = {f"{stage}/{k}": v for k, v in metrics.items() if v is not None}
        self._run.log({f"{stage}/step": step} | values)

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, tuple[str, Callable[[Path, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _TensorBoard),
    "wandb": ("wandb", _WeightsAndBiases),
}
"""The package that each needs (installed by the extra of its name), and what it is."""


def require(names: Sequence[str]) -> None:
    """Check trackers before a run begins.

    Raises:
      TrackerError: an unknown name, or one that is not installed; the message names
        the extra that installs it.
    """
    for name in names:
        if name not in TRACKERS:
            raise TrackerError(f"--track {name!r}: expected one of {list(TRACKERS)}")
        package, _ = TRACKERS[name]
        if importlib.util.find_spec(package) is None:
            raise TrackerError(
                f"--track {name} needs {package}: pip install 'dreamgym[{name}]'"
            )


class Tracking:
    """The metrics file of a run directory and its optional trackers."""

    def __init__(self, root: Path, names: Sequence[str], config: Mapping[str, Any]):
        """Open the trackers, so that a mistake shows at the start of a run.

        Raises:
          TrackerError: a tracker is unknown, not installed, or fails to start.
        """
        require(names)
        names = names if processes.is_first_process() else ()
        self._root = root
        self._journal: Journal | None = None
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            if name not in self._trackers:
                self._trackers[name] = _open_tracker(name, root, config)

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a stage at a step, unless they were logged before.

        Raises:
          OSError: the file cannot be written (as checkpoints could not be, either).
          ValueError: the metrics file has another format.
        """
        if not processes.is_first_process():
            return
        if self._journal is None:  # a run that is only looked at is not written to
            self._journal = Journal(self._root / FILE)
        numbers = plain(metrics)
        if numbers and self._journal.log(stage, step, numbers):
            self._each(lambda tracker: tracker.log(stage, step, numbers))

    def close(self) -> None:
        """Close the trackers; the file needs no closing."""
        self._each(lambda tracker: tracker.close())
        self._trackers = {}

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:  # somebody else's code, server or disk
                del self._trackers[name]
                print(
                    f"--track {name}: {type(error).__name__}: {error}; going on "
                    f"without it ({self._root / FILE} has everything)",
                    file=sys.stderr,
                )


def _open_tracker(name: str, root: Path, config: Mapping[str, Any]) -> Tracker:
    try:
        return TRACKERS[name][1](root, config)
    except Exception as error:  # no login, no server, another version
        raise TrackerError(
            f"--track {name}: {type(error).__name__}: {error}"
        ) from error
