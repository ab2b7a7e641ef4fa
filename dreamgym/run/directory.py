"""A run directory: manifest, settings hash, stage markers, resume.

A stage writes its files, then its marker; a stage with a marker is not run again.
Inside a stage, long loops keep checkpoints. So the same command, after a kill, goes on.
"""

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from dreamgym.config.overrides import digest_of, restored, setting_changes
from dreamgym.config.settings import RunConfig
from dreamgym.envs.counting import RealSteps
from dreamgym.run.attempts import forget_attempts, has_begun
from dreamgym.run.display import print_stage, progress_bar
from dreamgym.run.lock import RunLock
from dreamgym.run.tracking import Tracking, require
from dreamgym.run.versions import VERSION, versions
from worldmodel.data import processes
from worldmodel.data.json_reading import RecordError, read_json_object
from worldmodel.data.records import atomic_write

SCHEMA = "dreamgym.run/2"
READERS = {"dreamgym.run/1": "41d68fb"}
"""The last commit that reads the run directories of an older schema."""


class RunError(RuntimeError):
    """A run directory or setting that cannot be used: what, where, what to do."""


class Run:
    """One run directory, opened under one configuration.

    `mesh` holds the devices that compute its models, and `rollout_mesh` those that make
    the rollouts which policies learn from, where these are others; a run may be resumed
    on other devices. `track` names trackers in addition to the run's metrics.jsonl
    (tracking.TRACKERS).
    """

    ESTIMATE_STEPS = "stages/estimate.steps"
    """The real steps that were taken to estimate what the run will take."""

    def __init__(
        self,
        directory: str | Path,
        config: RunConfig,
        mesh: Mesh | None = None,
        track: Sequence[str] = (),
        rollout_mesh: Mesh | None = None,
    ):
        """Open the directory, or create it for a new run.

        Raises:
          RunError: the directory holds something else, another schema, or stages of
            other settings; nothing but the settings of a run that has not begun is
            overwritten.
          BlockingIOError: another command works in a run that has not begun.
          ValueError: settings with which a new run could not succeed.
          TrackerError: a tracker is unknown, not installed or fails to start.
        """
        require(track)
        # Absolute, because an environment may change the working directory.
        self.root, self.config = Path(directory).absolute(), config
        self.mesh, self.rollout_mesh = mesh, rollout_mesh
        self.lock = RunLock(self.root)
        path = self.root / "manifest.json"
        if self.root.is_file():
            raise RunError(f"{self.root}: a file; a run is a directory (--run-dir)")
        if path.is_file():
            self._check(path)
        elif self.root.exists() and any(
            not (p.name.startswith(".manifest.json.") and p.suffix == ".tmp")
            for p in self.root.iterdir()
        ):
            raise RunError(
                f"{self.root}: not empty and no run of ours (no manifest.json); "
                "choose another --run-dir"
            )
        else:
            self._write_manifest()
        self._tracking = Tracking(self.root, track, config.json())
        self.real_steps = RealSteps()

    @classmethod
    def open(cls, directory: str | Path, mesh: Mesh | None = None) -> "Run":
        """Open the existing run of a directory, with the settings it was created with.

        Raises:
          RunError: no run there, or one of another version.
        """
        path = Path(directory) / "manifest.json"
        if not path.is_file():
            raise RunError(f"{directory}: no run there (no manifest.json)")
        return cls(directory, _settings(path, _manifest(path)), mesh)

    @classmethod
    def of(cls, run: "Run | str | Path") -> "Run":
        """Return the run, opened where its directory is given; see `open`."""
        return run if isinstance(run, Run) else cls.open(run)

    def _write_manifest(self) -> None:
        self.config.check_new()
        self.write_json(
            "manifest.json",
            {
                "schema": SCHEMA,
                "preset": self.config.preset,
                "seed": self.config.seed,
                "settings": self.config.digest(),
                "config": self.config.json(),
                "versions": versions(),
            },
        )

    def _check(self, path: Path) -> None:
        manifest = _manifest(path)
        if self._same(manifest, _settings(path, manifest)):
            return
        changed = setting_changes(manifest.get("config", {}), self.config.json())
        reason = f"{path}: made with other settings ({'; '.join(changed)})"
        if has_begun(self.root):
            raise RunError(
                f"{reason}; repeat them, choose another --run-dir, or, with quickstart "
                "or a single stage, give a --name: a new attempt that takes over the "
                "stages that they do not change"
            )
        with self.lock:  # nothing would be lost, unless another command is at work
            print(f"{reason}; it had not begun, and takes these", file=sys.stderr)
            with processes.first_process_writes("new settings of the run") as writes:
                if writes:
                    forget_attempts(self.root)
            self._write_manifest()

    def _same(self, manifest: dict[str, Any], saved: RunConfig) -> bool:
        """Return whether the run was made with these settings.

        A version before may not have had all of them: those have today's defaults.
        What an episodes file held is only in the digest, of what that version wrote.
        """
        digest = manifest.get("settings")
        if digest == self.config.digest():
            return True
        if saved != self.config:
            return False
        episodes = self.config.data.episodes
        return not episodes or digest == digest_of(manifest["config"], episodes)

    @property
    def acting_mesh(self) -> Mesh | None:
        """The devices that make rollouts: `rollout_mesh`, or `mesh` without one."""
        return self.mesh if self.rollout_mesh is None else self.rollout_mesh

    def path(self, name: str) -> Path:
        """Return a path inside the run."""
        return self.root / name

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file atomically."""
        with atomic_write(self.root / name) as file:
            json.dump(value, file, indent=2)
            file.write("\n")

    def read_json(self, name: str) -> Any:
        """Return the object of a JSON file of the run.

        Raises:
          RecordError: the file is missing or holds no object.
        """
        path = self.root / name
        if not path.is_file():
            raise RecordError(f"{path}: missing, and a stage that is done wrote it")
        return read_json_object(path)

    def knows(self, stage: str) -> bool:
        """Return whether the numbers of a stage may be asked for.

        They always may, but inside a stage that does not need it (StageView).
        """
        del stage
        return True

    def done(self, stage: str) -> dict[str, Any] | None:
        """Return the marker of a finished stage (numbers, seconds, version), or None.

        Raises:
          RunError: the marker is no JSON.
        """
        path = self.root / "stages" / f"{stage}.json"
        if not path.is_file():
            return None
        hint = f"remove it and the stage {stage!r} runs again"
        try:
            marker = read_json_object(path)
        except RecordError as error:
            raise RunError(f"{error}; {hint}") from None
        if not isinstance(marker.get("numbers"), dict) or not isinstance(
            marker.get("seconds"), int | float
        ):
            raise RunError(f"{path}: expected 'numbers' and 'seconds'; {hint}")
        return marker

    def numbers(self, stage: str) -> dict[str, Any]:
        """Return the numbers of a finished stage; empty if it has not been run."""
        return (self.done(stage) or {}).get("numbers", {})

    def estimate_steps(self) -> int:
        """Return the real steps that were taken before the run, to estimate it."""
        path = self.root / self.ESTIMATE_STEPS
        text = path.read_text() if path.is_file() else ""
        return int(text) if text.isdigit() else 0

    def require(self, stage: str) -> dict[str, Any]:
        """Return the marker of a stage that another one needs.

        Raises:
          RunError: it has not been run here.
        """
        marker = self.done(stage)
        if marker is None:
            raise RunError(
                f"{self.root}: stage {stage!r} has not been run; "
                f"run `dreamgym {stage} --run-dir {self.root}` first"
            )
        return marker

    def stage(
        self,
        name: str,
        body: Callable[[], dict[str, Any]],
        *,
        key: str = "",
        test: bool = False,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Run a stage unless its marker exists; print a line of its numbers.

        The marker holds its `key` (run/stage.py). The stage takes at most `limit` real
        steps, in all of its attempts.

        Seconds of interrupted attempts are added up in `stages/NAME.seconds`, the real
        steps of all attempts in `stages/NAME.steps`. The number `real_transitions` of
        the marker is what the body returns under that name (steps taken before the run)
        plus the steps taken by the stage; those of a `test` are `test_transitions`.
        """
        marker = self.done(name)
        if marker is not None:
            print(f"{name}: done before", file=sys.stderr)
            return marker
        seconds_file = self.root / "stages" / f"{name}.seconds"
        before = _seconds(seconds_file)
        start = time.monotonic()
        steps = self.root / "stages" / f"{name}.steps"
        try:
            with (
                self.real_steps.recorded(steps, limit) as counter,
                progress_bar(0, name),
            ):
                numbers = body()
        finally:
            seconds = before + time.monotonic() - start
            with (
                processes.first_process_alone(),
                contextlib.suppress(OSError),
                atomic_write(seconds_file) as file,
            ):
                file.write(f"{seconds:.1f}")
        numbers = _with_real_steps(numbers, counter.count, test=test)
        self.mark(name, numbers, seconds=seconds, key=key)
        with processes.first_process_writes(f"the end of {name}") as writes:
            if writes:
                seconds_file.unlink(missing_ok=True)
        self.track(f"done/{name}", 0, numbers | {"seconds": seconds})
        print_stage(name, seconds, {k: v for k, v in numbers.items() if _is_short(v)})
        return {"numbers": numbers, "seconds": seconds}

    def mark(
        self, name: str, numbers: dict[str, Any], *, seconds: float = 0.0, key: str = ""
    ) -> None:
        """Write the marker of a finished stage; without a key it is never reused."""
        marker = {
            "numbers": numbers,
            "seconds": round(seconds, 1),
            "dreamgym": VERSION,
            "key": key,
        }
        self.write_json(f"stages/{name}.json", marker)

    def track(self, name: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step once, to metrics.jsonl and the trackers."""
        self._tracking.log(name, step, metrics)

    @contextlib.contextmanager
    def progress_report(
        self, name: str, total: int, unit: str = "update"
    ) -> Iterator[Callable[..., None]]:
        """Show and track a fit or a loop: yield report(step, row, done=step).

        Rows go to the trackers under NAME with the tokens per second since the last
        row; an empty row only moves the display to `done` of `total`.
        """
        with progress_bar(total, name, unit) as show:
            before = time.monotonic()

            def report(
                step: int, row: Mapping[str, Any], done: int | None = None
            ) -> None:
                nonlocal before
                metrics, clock = dict(row), time.monotonic()
                if "tokens" in row:
                    metrics["tokens/s"] = row["tokens"] / max(clock - before, 1e-9)
                if row:
                    before = clock
                    self.track(name, step, metrics)
                show(step if done is None else done, metrics)

            yield report

    def write_curve(self, name: str, curve: Sequence[Mapping[str, Any]]) -> None:
        """Write curves/NAME.jsonl of a finished fit or loop.

        Rows that a killed process did not write to metrics.jsonl are tracked now.
        """
        for row in curve:
            if "update" in row:  # of a loop, where `step` is a metric
                self.track(name, row["update"], row)
            else:
                metrics = {k: v for k, v in row.items() if k != "step"}
                self.track(name, row["step"], metrics)
        with atomic_write(self.root / "curves" / f"{name}.jsonl") as file:
            file.writelines(json.dumps(row) + "\n" for row in curve)

    def close(self) -> None:
        """Close the trackers; later metrics only go to metrics.jsonl."""
        self._tracking.close()

    def __enter__(self) -> "Run":
        self.lock.__enter__()
        try:  # another command may have given it other settings since it was opened
            self._check(self.root / "manifest.json")
        except BaseException:
            self.lock.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        self.lock.__exit__(*error)

    def drop(self, name: str) -> None:
        """Remove a folder of the run that is no longer needed (checkpoints).

        It is renamed first, so that a process killed in between leaves no incomplete
        checkpoint, which could not be restored.
        """
        path = self.root / name
        trash = path.with_name(f".{path.name}.gone")
        with processes.first_process_writes(f"{name} is removed") as writes:
            if not writes:
                return
            shutil.rmtree(trash, ignore_errors=True)
            if path.is_dir():
                path.rename(trash)
                shutil.rmtree(trash, ignore_errors=True)


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a run of this schema.

    Raises:
      RunError: the file is no manifest, or one of another schema.
    """
    try:
        manifest = read_json_object(path)
    except RecordError as error:
        raise RunError(str(error)) from None
    if manifest.get("schema") != SCHEMA:
        schema = manifest.get("schema")
        reader = "another version made it"
        if schema in READERS:
            reader = f"the last version that reads it is commit {READERS[schema]}"
        raise RunError(
            f"{path}: expected a run of schema {SCHEMA!r}, got {schema!r}: {reader}; "
            "choose another --run-dir"
        )
    return manifest


def _seconds(path: Path) -> float:
    """Return the seconds of interrupted attempts; damage loses these, nothing else."""
    try:
        seconds = float(path.read_text())
    except (OSError, ValueError):
        return 0.0
    return seconds if 0.0 <= seconds < float("inf") else 0.0


def _settings(path: Path, manifest: dict[str, Any]) -> RunConfig:
    """Return the settings of a manifest.

    Raises:
      RunError: a setting that this version does not have, or a wrong value.
    """
    try:
        config = restored(RunConfig, manifest.get("config"))
        plain = config.json()
        # With an episodes file the digest also says what that held (Run._same).
        same = bool(config.data.episodes) or manifest.get("settings") == digest_of(
            manifest["config"], ""
        )
        if not same or any(manifest.get(k) != plain[k] for k in ("preset", "seed")):
            raise RunError(
                f"{path}: edited after the run began: its settings are not those of "
                "its digest; choose another --run-dir"
            )
        return config
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        saved_versions = manifest.get("versions")
        maker = "of an unknown version"
        if isinstance(saved_versions, dict):
            maker = saved_versions.get("dreamgym", maker)
        raise RunError(
            f"{path}: made by dreamgym {maker}, whose settings this version does not "
            f"read ({error}); choose another --run-dir"
        ) from None


def _with_real_steps(
    numbers: dict[str, Any], count: int, *, test: bool
) -> dict[str, Any]:
    """The numbers of a stage with the real steps that it took."""
    name = "test_transitions" if test else "real_transitions"
    if not count and name not in numbers:
        return numbers
    return numbers | {name: numbers.get(name, 0) + count}


def _is_short(value: Any) -> bool:
    """Whether a number of a stage is for the line that it ends with."""
    return not isinstance(value, dict | list) and len(str(value)) <= 100
