"""Studies: a grid of runs, one JSON a cell, a table that leaves blank what did not run.

study.toml -> cells (one setting each of every axis) -> a run a cell, stage by stage,
resumable; early stages are shared by cells that agree on them -> cells/KEY.json -> the
table. A cell is keyed by its whole configuration: a
study can grow, be killed and go on, and never mixes numbers of different settings.

    preset = "small"
    until = "warmstart"                     # the last stage of each run
    test = ["bc", "warmstart"]              # policies to play then
    [set]                                   # the same in every cell
    "pretrain.steps" = 2000
    [grid]                                  # axes; seed is averaged over in the table
    seed = [0, 1, 2]
    model = ["micro", "mini"]
    [variants.all]                          # one more axis: named groups of settings
    [variants."no history"]
    "experience.history" = 0
    [variants.ppo]
    algorithm = "ppo"                       # a name for settings (rl/config.py)
    [columns]                               # FILE.path in the run's JSON files
    exact = "fidelity.exact.all"
    seconds = "stages/pretrain.seconds"
    cloned = "test/bc"                      # success on the test games; test/bc/coin
    gain = "test/warmstart - test/bc"       # of the same runs, paired by game
    [against]                               # a variant minus another, below the table
    "no history" = "all"
"""

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.evaluation import grid
from dreamgym.pipeline import evaluate
from dreamgym.pipeline.compare import POLICIES
from dreamgym.pipeline.config import RunConfig, changed_by
from dreamgym.pipeline.presets import preset, with_algorithm
from dreamgym.pipeline.quickstart import STAGES
from dreamgym.pipeline.run import VERSION, Run, RunError
from dreamgym.pipeline.warmstart_config import WarmstartConfig
from worldmodel.text.records import replacing

VARIANT, ALGORITHM = "variant", "algorithm"
LATE = {
    "preset", "dream", "transfer", "transfer_budget", "enrich", "trust", "real",
}  # fmt: skip
"""Settings that no shared stage reads, but fidelity that of trust."""
POLICY = {"policy", "warmstart"}
MODEL = {"model", "experience", "retrieval", "pretrain", "share", "balance"}
ENSEMBLE = {"ensemble"}
UNCLONED = {
    f"warmstart.{f.name}"
    for f in dataclasses.fields(WarmstartConfig)
    if f.name not in ("fit", "start", "experts", "share")
}
"""Settings of the warm start that its control does not read (clone.py)."""
SHARED = {
    "collect": ((), LATE | POLICY | MODEL | ENSEMBLE, ("episodes.jsonl", "dev.jsonl")),
    "pretrain": (("collect",), LATE | POLICY | ENSEMBLE, (
        "tokenizer", "experience", "memory", "curves/pretrain.jsonl",
    )),
    "ensemble": (("pretrain",), LATE | POLICY, ("ensemble",)),
    "fidelity": (("ensemble",), (LATE - {"trust"}) | POLICY, (
        "fidelity.json", "plots/fidelity.png",
    )),
    "clone": (("pretrain",), LATE | ENSEMBLE | UNCLONED, (
        "policies/untrained", "policies/bc", "curves/bc.jsonl",
        "test/untrained.jsonl", "test/bc.jsonl",
    )),
    "warmstart": (("pretrain",), LATE | ENSEMBLE, (
        "branches.jsonl", "branches.json", "policies/untrained", "policies/bc",
        "policies/warmstart", "curves/bc.jsonl", "curves/iwm.jsonl",
        "curves/writer.jsonl", "curves/warmstart.jsonl", "test/untrained.jsonl",
        "test/bc.jsonl", "test/warmstart.jsonl",
    )),
}  # fmt: skip
"""Stages that cells share: what each goes on from, what it does not read, its files.

Test games that its policies have played are among them.
"""
ALL = (*STAGES, "clone")
"""The stages, and the one within the warm start that is shared by itself."""
Cell = dict[str, Any]
"""The settings of a cell by their dotted names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """`fixed` settings, `grid` axes, named groups (`variants`), `columns` to tell.

    Policies of `test` play the test games after the last stage, whichever it is: a
    warm start can so be scored without a policy of the dream. `against` names for a
    variant the one to tell its differences to.
    """

    preset: str
    until: str
    test: Sequence[str]
    fixed: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    variants: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, str]
    against: Mapping[str, str]


def read_study(path: Path) -> Study:
    """The study of a TOML file, with every cell's configuration checked.

    Raises:
      RunError: no such file, bad TOML, unknown keys, stages or settings.
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: expected TOML, {error}") from None
    known = {"preset", "until", "test", "set", "grid", "variants", "columns", "against"}
    if unknown := sorted(told.keys() - known):
        raise RunError(f"{path}: unknown {unknown}; have {sorted(known)}")
    until = told.get("until", "evaluate")
    if until not in STAGES:
        raise RunError(f"{path}: until {until!r}: expected one of {list(STAGES)}")
    test = told.get("test", [])
    have = list(evaluate.ZERO_SHOT)
    if not isinstance(test, list) or any(name not in have for name in test):
        raise RunError(f"{path}: test {test!r}: expected a list of some of {have}")
    axes = told.get("grid", {})
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise RunError(f"{path}: grid.{name}: expected a list, got {values!r}")
    for part in ("columns", "against"):
        for name, value in told.get(part, {}).items():
            if not isinstance(value, str):
                raise RunError(f"{path}: {part}.{name}: expected a name, got {value!r}")
    study = Study(
        preset=told.get("preset", "default"), until=until, test=test,
        fixed=told.get("set", {}),
        grid=axes, variants=told.get("variants", {}), columns=told.get("columns", {}),
        against=told.get("against", {}),
    )  # fmt: skip
    for cell in cells(study):
        try:
            config_of(study, cell)
        except (ValueError, TypeError) as error:
            which = ", ".join(f"{axis} {value!r}" for axis, value in cell.items())
            raise RunError(f"{path}: {which or 'its cell'}: {error}") from None
    _check(path, study)
    return study


def _check(path: Path, study: Study) -> None:
    """Columns and differences that can be told.

    Raises:
      RunError: a policy or a variant that is none.
    """
    for name, where in study.columns.items():
        try:
            asked = grid.Tested.of(where)
        except ValueError as error:
            raise RunError(f"{path}: columns.{name}: {error}") from None
        wrong = [p for p in asked.policies if p not in POLICIES] if asked else []
        if wrong:
            raise RunError(
                f"{path}: columns.{name}: no policy {wrong[0]!r}; have {POLICIES}"
            )
    made = {"bc": "warmstart", "untrained": "warmstart", "dream": "train"}
    order = list(STAGES)
    for name in study.test:
        needed = made.get(name, name)
        if order.index(study.until) < order.index(needed):
            raise RunError(
                f"{path}: test {name!r} is made by the stage {needed!r}, and until is "
                f"{study.until!r}"
            )
        if any(not config_of(study, cell).env for cell in cells(study)):
            raise RunError(f"{path}: test plays an environment, and a cell has none")
    for pair in study.against.items():
        if wrong := [v for v in pair if v not in study.variants]:
            raise RunError(
                f"{path}: against: no variant {wrong[0]!r}; have {list(study.variants)}"
            )


def cells(study: Study) -> Iterator[Cell]:
    """Every combination of the axes' values, the last axis fastest."""
    named = {VARIANT: list(study.variants)} if study.variants else {}
    axes = {**named, **study.grid}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def config_of(study: Study, cell: Cell) -> RunConfig:
    """The whole configuration of a cell."""
    settings = {**study.fixed, **study.variants.get(cell.get(VARIANT, ""), {}), **cell}
    settings.pop(VARIANT, None)
    config = preset(study.preset)
    if ALGORITHM in settings:
        config = with_algorithm(config, settings.pop(ALGORITHM))
    return changed_by(config, settings)


def compute(
    study: Study, cell: Cell, root: Path, track: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a cell to its last stage and write its JSON; returns that.

    Its metrics go to its run's metrics.jsonl and to the trackers that `track` names.

    A finished cell is read again from its run, so that new columns cost nothing.
    """
    config = config_of(study, cell)
    key = config.digest()
    with Run(root / "runs" / key, config, track=track) as run:
        share(run, _manifests(root))
        for name, body in STAGES.items():
            run.stage(name, lambda body=body: body(run))
            if name == study.until:
                break
        if study.test:
            evaluate.play_all(run, study.test)
    told = {
        "settings": cell, "digest": key,
        "values": {
            c: _value(run, path)
            for c, path in study.columns.items()
            if grid.Tested.of(path) is None
        },
        "games": _games(run),
        "dreamgym": sorted({v for s in ALL if (v := _version(run, s)) is not None}),
    }  # fmt: skip
    with replacing(root / "cells" / f"{key}.json") as file:
        json.dump(told, file, indent=2)
    return told


def share(run: Run, manifests: Sequence[Path]) -> None:
    """Take over finished stages of runs whose settings they read are the same.

    Collecting, pretraining and the warm start cost most of a run, and cells that ask
    about what comes later agree on them. A stage of one version is the same function of
    the same settings in every run, so its files are as good as computed anew.
    """
    others = [o for o in _runs(manifests) if o.root != run.root]
    for stage, (before, _, files) in SHARED.items():
        if run.done(stage) or not all(run.done(b) for b in before):
            continue
        for other in others:
            same = _read(other.config, stage) == _read(run.config, stage)
            if not same or _version(other, stage) != VERSION:
                continue
            print(f"{stage}: as in {other.root}", file=sys.stderr)
            for name in files:
                _copy(other.path(name), run.path(name))
            _copy(other.path(f"stages/{stage}.json"), run.path(f"stages/{stage}.json"))
            break


def unfinished(study: Study, root: Path) -> Iterator[tuple[RunConfig, set[str]]]:
    """Of each cell the stages it will not compute: done, or taken over by then."""
    runs, have = list(_runs(_manifests(root))), set()
    for other in runs:
        have |= {_key(other.config, s) for s in SHARED if _version(other, s) == VERSION}
    done = {o.root.name: {s for s in ALL if o.done(s)} for o in runs}
    for cell in cells(study):
        config = config_of(study, cell)
        left = set(ALL) - done.get(config.digest(), set())
        keys = {s: _key(config, s) for s in left & SHARED.keys()}
        yield config, set(ALL) - {s for s in left if keys.get(s) not in have}
        have |= set(keys.values())


def _manifests(root: Path) -> list[Path]:
    return sorted((root / "runs").glob("*/manifest.json"))


def _runs(manifests: Sequence[Path]) -> Iterator[Run]:
    for path in manifests:
        with contextlib.suppress(RunError):  # of another version: nothing to take over
            yield Run.open(path.parent)


def _version(run: Run, stage: str) -> str | None:
    """Which dreamgym computed a stage; None where none did. The first did not say."""
    marker = run.done(stage)
    return marker.get("dreamgym", VERSION) if marker is not None else None


def _key(config: RunConfig, stage: str) -> tuple[str, str]:
    return stage, json.dumps(_read(config, stage), sort_keys=True)


def _read(config: RunConfig, stage: str) -> dict[str, Any]:
    """The settings that a shared stage reads, as plain data."""
    names = SHARED[stage][1]
    left = {k: v for k, v in config.json().items() if k not in names}
    for name in names:
        group, _, field = name.partition(".")
        if field and group in left:
            left[group] = {k: v for k, v in left[group].items() if k != field}
    return left


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        shutil.copy2(source, fresh)
        fresh.replace(target)  # at once: a marker cut short would stop every study


def _games(run: Run) -> dict[str, Any]:
    """Of each test game its family and who won it; None where it was not scored."""
    out: dict[str, Any] = {}
    for name in POLICIES:
        path = run.path(f"test/{name}.jsonl")
        for t in evaluate.trajectories(path) if path.is_file() else ():
            task = t.episode.task
            game = out.setdefault(task.id, {"family": task.family, "success": {}})
            won = None if t.error is not None else bool(t.episode.success)
            game["success"][name] = won
    return out


def _value(run: Run, path: str) -> Any:
    """A value of the run's JSON files; None where there is none of that name."""
    file, _, rest = path.partition(".")
    found = run.read_json(f"{file}.json") if run.path(f"{file}.json").is_file() else {}
    for name in rest.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def table(study: Study, root: Path) -> str:
    """A row for each setting but the seed; blanks where none ran."""
    axes, rows = _rows(study, root)
    pairs = []
    for row in rows:
        other = study.against.get(row.labels[0]) if study.variants else None
        named = [r for r in rows if [other, *row.labels[1:]] == list(r.labels)]
        pairs += [(row, r) for r in named]
    told = {v for row in rows for cell in row.done for v in cell.get("dreamgym", [])}
    mixed = f"\nBy dreamgym {', '.join(sorted(told))}: more than settings may differ.\n"
    return grid.table(axes, rows, study.columns, pairs) + mixed * (len(told) > 1)


def plot(study: Study, root: Path) -> Path | None:
    """ROOT/study.png: what has an interval, by row; None where nothing has."""
    path = root / "study.png"
    _, rows = _rows(study, root)
    return path if grid.plot(rows, study.columns, path) else None


def _rows(study: Study, root: Path) -> tuple[list[str], list[grid.Row]]:
    groups: dict[tuple[str, ...], list[dict[str, Any] | None]] = {}
    axes: list[str] = []
    for cell in cells(study):
        axes = [name for name in cell if name != "seed"]
        path = root / "cells" / f"{config_of(study, cell).digest()}.json"
        found = json.loads(path.read_text()) if path.is_file() else None
        groups.setdefault(tuple(str(cell[a]) for a in axes), []).append(found)
    return axes, [
        grid.Row(labels, len(found), [f for f in found if f is not None])
        for labels, found in groups.items()
    ]
