"""A run as one stage sees it: what the stage declares, and nothing else."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.run.directory import Run
from dreamgym.run.stage import Stage, StageTable

SHARED_PATHS = ("checkpoints", "stages", "chat_cache.sqlite", "metrics.jsonl")
"""Paths that every stage may use: checkpoints, markers, cached answers."""


class UndeclaredError(RuntimeError):
    """A stage touches a setting or a file that it does not declare."""


class StageView(Run):
    """A run as one stage sees it: its settings, its files and those it needs."""

    def __init__(self, run: Run, stage: Stage, table: StageTable):
        """Create the view; no file is opened again."""
        vars(self).update(vars(run))
        self._stage = stage
        self._files = {w for s in table.closure([stage.name]) for w in s.writes}
        self._stages = {s.name for s in table.closure([stage.name])}
        self.config = readable(run.config, stage.reads, f"stage {stage.name!r}")

    def path(self, name: str) -> Path:
        """Return a path inside the run that the stage or one it needs writes.

        Raises:
          UndeclaredError: another path.
        """
        patterns = itertools.chain(self._files, SHARED_PATHS)
        if not any(name == w or name.startswith(f"{w}/") for w in patterns):
            raise UndeclaredError(
                f"stage {self._stage.name!r} uses {name!r}, which neither it nor a "
                f"stage that it needs writes; those write {sorted(self._files)}"
            )
        return super().path(name)

    def write_json(self, name: str, value: Any) -> None:
        """See Run; only files that the stage writes."""
        self.path(name)
        super().write_json(name, value)

    def knows(self, stage: str) -> bool:
        """See Run; whether it needs the stage."""
        return stage in self._stages

    def done(self, stage: str) -> dict[str, Any] | None:
        """See Run; only of stages that it needs.

        Raises:
          UndeclaredError: another stage.
        """
        if stage not in self._stages:
            raise UndeclaredError(
                f"stage {self._stage.name!r} asks for the numbers of {stage!r}, which "
                "it does not need"
            )
        return super().done(stage)


def readable(group: Any, reads: Sequence[str], owner: str, prefix: str = "") -> Any:
    """Return a copy of a settings group of which only some settings can be read.

    `reads` are dotted names from the whole configuration down; `owner` is named in the
    error of another one.
    """
    fields = {f.name for f in dataclasses.fields(group)}
    values: dict[str, Any] = {}
    for name in fields:
        path = f"{prefix}{name}"
        if path in reads:
            values[name] = getattr(group, name)
        elif any(r.startswith(f"{path}.") for r in reads):
            part = getattr(group, name)
            values[name] = readable(part, reads, owner, f"{path}.")

    def getattribute(self: Any, name: str) -> Any:
        if name in fields and name not in values:
            raise UndeclaredError(
                f"{owner} reads the setting {prefix}{name}, which it does not declare; "
                f"it declares {', '.join(reads)}"
            )
        return values[name] if name in values else object.__getattribute__(self, name)

    # A subclass of the group, so that its methods and type checks work; made without
    # its __init__, whose checks would read undeclared settings.
    members = {"__getattribute__": getattribute}
    return object.__new__(type(type(group).__name__, (type(group),), members))
