"""Stages: each declares what it needs, reads, writes and costs.

A StageTable derives from these the order of a run, the key of a stage and the policies
it makes; commands/estimate.py adds up what the stages cost. The body of a stage gets a
StageView of the run (view.py). It raises an error for settings that the stage does not
read and for files that neither it nor a stage it needs writes; so two runs in which a
stage has the same key have the same result of it.
Nothing in this module imports a body, so that `--help` does not import JAX.
"""

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.settings import RunConfig
from dreamgym.rl.dpo_config import COLLECTED, PLANNED
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.versions import VERSION
from worldmodel.data.hashing import content_hash


@dataclasses.dataclass(frozen=True)
class Late:
    """A function that is imported when it is first called."""

    module: str
    function: str = "body"
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        """Call the function with its arguments."""
        function = getattr(importlib.import_module(self.module), self.function)
        return function(*args, **self.arguments)


@dataclasses.dataclass(frozen=True)
class Stage:
    """One step of a run: what it needs, reads, writes and costs, and what it does.

    `needs` are the stages that must be finished before; `reads` are settings by their
    dotted names (a group stands for all of its settings); `writes` are files and
    folders of the run; `policies` are the policies that the stage fits or trains.
    `command` is the subcommand that runs the stage, by default its name. Real steps of
    a `test` stage do not count as training data of a policy. `share` is the part of a
    budget that the stage spends (config/budget.py); without one it takes no real step.
    `body(run)` returns the numbers of the stage's marker; `about` describes the stage
    in a sentence. `cost(config, workload)` estimates what the body takes, from the
    settings of `reads` alone (view.readable).
    """

    name: str
    body: Callable[..., dict[str, Any]]
    _: dataclasses.KW_ONLY
    cost: Callable[[RunConfig, Workload], Cost]
    about: str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    command: str = ""
    test: bool = False
    share: str = ""

    @property
    def subcommand(self) -> str:
        """The subcommand that runs it."""
        return self.command or self.name


class StageTable(Mapping[str, Stage]):
    """A table of stages in which each comes after the stages it needs.

    Raises:
      ValueError: a name occurs twice, or a stage comes before one that it needs.
    """

    def __init__(self, stages: Iterable[Stage]):
        self._stages: dict[str, Stage] = {}
        for stage in stages:
            if stage.name in self._stages:
                raise ValueError(f"stage {stage.name!r} is in the table twice")
            if missing := [n for n in stage.needs if n not in self._stages]:
                raise ValueError(
                    f"stage {stage.name!r} needs {missing[0]!r}, which must come first"
                )
            self._stages[stage.name] = stage

    def __getitem__(self, name: str) -> Stage:
        return self._stages[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    def closure(self, names: Iterable[str]) -> list[Stage]:
        """Return these stages with all that they need, in the order of the table."""
        required, pending = set[str](), list(names)
        while pending:
            name = pending.pop()
            if name not in self:
                raise ValueError(f"unknown stage {name!r}; have {list(self)}")
            if name not in required:
                required.add(name)
                pending += self[name].needs
        return [stage for name, stage in self.items() if name in required]

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

        It hashes the stage's name, the program version, the values of the settings that
        it reads, the content of files that they name, and the keys of its needs.
        """
        stage = self[name]
        values = {path: _plain(_value(config, path)) for path in stage.reads}
        # The content of a file, not its path: the same name may hold other episodes
        # later.
        files = ("data", "episodes"), ("dpo", "pairs"), ("reward_model", "preferences")
        for group, setting in files:
            path = values.get(group, {}).get(setting)
            if path and (group, path) not in (("dpo", COLLECTED), ("dpo", PLANNED)):
                digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
                values[group] = values[group] | {setting: digest}
        needs = [self.key(n, config) for n in stage.needs]
        return content_hash([name, VERSION, values, needs])

    def real_transitions(self, run: Any, names: Sequence[str]) -> int:
        """Return the real steps that these stages and all they need have taken."""
        return sum(
            int(run.numbers(stage.name).get("real_transitions", 0))
            for stage in self.closure(names)
        )

    def seconds(self, run: Any, names: Sequence[str]) -> float:
        """Return the seconds that these stages and all they need have taken.

        Test games, which are stages of their own, are in none of them.
        """
        markers = (run.done(stage.name) for stage in self.closure(names))
        return sum(float(m["seconds"]) for m in markers if m is not None)


def _value(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, list | tuple):  # of groups, such as train.limits
        return [_plain(x) for x in value]
    return json.loads(json.dumps(value))
