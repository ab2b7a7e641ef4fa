"""A stage declares what it needs, reads and writes; it gets that and nothing else.

Stage -> StageTable: the order of a run, what a stage goes on from, its key, the
policies that it makes. A body works on a StageView of the run: settings that it does
not read and files that neither it nor a stage it needs writes raise an error, so that
two runs with one key of a stage have one result of it.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.settings import RunConfig
from dreamgym.run.directory import VERSION, Run
from worldmodel.data.hashing import content_hash

SHARED_PATHS = ("checkpoints", "stages", "answers.sqlite", "metrics.jsonl")
"""Paths that every stage may use: work in progress, markers, kept answers."""


class UndeclaredError(RuntimeError):
    """A stage touches a setting or a file that it does not declare."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a run: what it needs, reads and writes, and what it does.

    `needs` are the stages it goes on from; `reads` the settings, by their dotted names
    (a group stands for all in it); `writes` the files and folders of the run. A stage
    that fits or trains `policies` names them. `command` is the subcommand that runs it,
    its own name where that is empty. `body(run)` returns the numbers of its marker; its
    help is the first line of the docstring.
    """

    name: str
    body: Callable[[Run], dict[str, Any]]
    _: dataclasses.KW_ONLY
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    command: str = ""

    @property
    def subcommand(self) -> str:
        """The subcommand that runs it."""
        return self.command or self.name


class StageTable(Mapping[str, Stage]):
    """Stages in an order in which each stands behind what it needs.

    Raises:
      ValueError: a name twice, or a stage before one that it needs.
    """

    def __init__(self, stages: Iterable[Stage]):
        self._stages: dict[str, Stage] = {}
        for stage in stages:
            if stage.name in self._stages:
                raise ValueError(f"stage {stage.name!r} stands twice")
            if missing := [n for n in stage.needs if n not in self._stages]:
                raise ValueError(f"stage {stage.name!r} stands before {missing[0]!r}")
            self._stages[stage.name] = stage

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def closure(self, names: Iterable[str]) -> list[Stage]:
        """Return these stages with all that they need, in the order of the table."""
        wanted, left = set[str](), list(names)
        while left:
            name = left.pop()
            if name not in self:
                raise ValueError(f"unknown stage {name!r}; have {list(self)}")
            if name not in wanted:
                wanted.add(name)
                left += self[name].needs
        return [stage for name, stage in self.items() if name in wanted]

    def commands(self) -> dict[str, list[Stage]]:
        """Return the stages that each subcommand runs, in order."""
        out: dict[str, list[Stage]] = {}
        for stage in self.values():
            out.setdefault(stage.subcommand, []).append(stage)
        return out

    def policies(self) -> dict[str, str]:
        """Return the stage that makes each policy, in the order of a run."""
        return {p: s.name for s in self.values() for p in s.policies}

    def key(self, name: str, config: RunConfig) -> str:
        """Return a hash that is equal for runs in which a stage computes the same.

        Of its name and program version, the values of the settings that it reads, the
        episodes file where it reads one, and the keys of the stages it needs.
        """
        stage = self[name]
        values = {path: _plain(_value(config, path)) for path in stage.reads}
        if path := values.get("episodes"):
            values["episodes"] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        needs = [self.key(n, config) for n in stage.needs]
        return content_hash([name, VERSION, values, needs])

    def real_transitions(self, run: Run, names: Sequence[str]) -> int:
        """Return the real steps that these stages and all they need have taken."""
        return sum(
            int(run.numbers(stage.name).get("real_transitions", 0))
            for stage in self.closure(names)
        )


class StageView(Run):
    """A run as one stage sees it: its settings, its files and those it needs."""

    def __init__(self, run: Run, stage: Stage, table: StageTable):
        """See the class; nothing is opened anew."""
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
        known = itertools.chain(self._files, SHARED_PATHS)
        if not any(name == w or name.startswith(f"{w}/") for w in known):
            raise UndeclaredError(
                f"stage {self._stage.name!r} uses {name!r}, which neither it nor a "
                f"stage that it needs writes; those write {sorted(self._files)}"
            )
        return super().path(name)

    def write_json(self, name: str, value: Any) -> None:
        """See Run; only files that the stage writes."""
        self.path(name)
        super().write_json(name, value)

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


def summary(stage: Stage) -> str:
    """Return what a stage does, in the first sentence of its body's docstring."""
    text = " ".join((stage.body.__doc__ or stage.name).split())
    return text.split(". ")[0].split("; ")[0].rstrip(".")


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

    members = {"__getattribute__": getattribute}
    return object.__new__(type(type(group).__name__, (type(group),), members))


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    return json.loads(json.dumps(value))
