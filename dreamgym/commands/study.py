"""Studies: a grid of runs with one JSON file per cell, and a table of the results.

study.toml -> cells (one value of every axis) -> one run per cell, which can be resumed;
stages are shared by cells in which they have the same key -> cells/KEY.json -> the
table, in which cells that did not run are blank. The key of a cell hashes its whole
configuration, so that a study can be extended and resumed, and never mixes results of
different settings.

    preset = "small"
    last_stage = "warmstart"                # of each run
    policies = ["bc", "warmstart"]          # that play the test tasks then
    [set]                                   # the same in every cell
    "pretrain.fit.steps" = 2000
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
    [compare_to]                             # a variant minus another, below the table
    "no history" = "all"
"""

import contextlib
import dataclasses
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.build import environments
from dreamgym.build.environments import play_test_games
from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import preset, with_algorithm
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation import evaluate, study_table
from dreamgym.run.directory import Run, RunError
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import POLICIES, STAGES
from worldmodel.data.records import atomic_write

VARIANT, ALGORITHM = "variant", "algorithm"


CELLS, CONFIRMATION = "cells", "confirmation"
"""Where finished cells lie: with the test tasks, and with tasks no cell had played."""


Cell = dict[str, Any]
"""The settings of a cell by their dotted names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study: `fixed` settings, `grid` axes, `variants`, `columns` of its table.

    `variants` are named groups of settings. `policies` play the test tasks after the
    last stage, so that a warm start can be evaluated without training in the dream.
    `compare_to` names for a variant the one that it is compared with.
    """

    preset: str
    last_stage: str
    policies: Sequence[str]
    fixed: Mapping[str, Any]
    grid: Mapping[str, Sequence[Any]]
    variants: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, str]
    compare_to: Mapping[str, str]


def read_study(path: Path) -> Study:
    """Read a study from a TOML file; check the configuration of every cell.

    Raises:
      RunError: the file is missing or malformed, or has unknown keys, stages or
        settings.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: expected TOML, {error}") from None
    known_keys = {
        "preset",
        "last_stage",
        "policies",
        "set",
        "grid",
        "variants",
        "columns",
        "compare_to",
    }
    if unknown := sorted(content.keys() - known_keys):
        raise RunError(f"{path}: unknown {unknown}; have {sorted(known_keys)}")
    last_stage = content.get("last_stage", "evaluate")
    if last_stage not in STAGES.commands():
        have = list(STAGES.commands())
        raise RunError(f"{path}: last_stage {last_stage!r}: expected one of {have}")
    policies = content.get("policies", [])
    have = list(POLICIES)
    if not isinstance(policies, list) or any(name not in have for name in policies):
        raise RunError(
            f"{path}: policies {policies!r}: expected a list of some of {have}"
        )
    axes = content.get("grid", {})
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise RunError(f"{path}: grid.{name}: expected a list, got {values!r}")
    for part in ("columns", "compare_to"):
        for name, value in content.get(part, {}).items():
            if not isinstance(value, str):
                raise RunError(f"{path}: {part}.{name}: expected a name, got {value!r}")
    study = Study(
        preset=content.get("preset", "default"),
        last_stage=last_stage,
        policies=policies,
        fixed=content.get("set", {}),
        grid=axes,
        variants=content.get("variants", {}),
        columns=content.get("columns", {}),
        compare_to=content.get("compare_to", {}),
    )
    for cell in cells(study):
        try:
            config_of(study, cell)
        except (ValueError, TypeError) as error:
            which = ", ".join(f"{axis} {value!r}" for axis, value in cell.items())
            raise RunError(f"{path}: {which or 'its cell'}: {error}") from None
    _check(path, study)
    return study


def _check(path: Path, study: Study) -> None:
    """Check the columns and comparisons of a study.

    Raises:
      RunError: one of them names an unknown policy or variant.
    """
    for name, where in study.columns.items():
        try:
            column = study_table.SuccessColumn.of(where)
        except ValueError as error:
            raise RunError(f"{path}: columns.{name}: {error}") from None
        wrong = [p for p in column.policies if p not in POLICIES] if column else []
        if wrong:
            raise RunError(
                f"{path}: columns.{name}: no policy {wrong[0]!r}; have {POLICIES}"
            )
    if study.policies and any(
        not config_of(study, cell).env.id for cell in cells(study)
    ):
        raise RunError(f"{path}: policies play an environment, and a cell has none")
    for pair in study.compare_to.items():
        if wrong := [v for v in pair if v not in study.variants]:
            raise RunError(
                f"{path}: compare_to: no variant {wrong[0]!r}; have "
                f"{list(study.variants)}"
            )


def cells(study: Study) -> Iterator[Cell]:
    """Yield every combination of the axes' values; the last axis changes fastest."""
    named = {VARIANT: list(study.variants)} if study.variants else {}
    axes = {**named, **study.grid}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def config_of(study: Study, cell: Cell) -> RunConfig:
    """Return the whole configuration of a cell."""
    settings = {**study.fixed, **study.variants.get(cell.get(VARIANT, ""), {}), **cell}
    settings.pop(VARIANT, None)
    config = preset(study.preset)
    if ALGORITHM in settings:
        config = with_algorithm(config, settings.pop(ALGORITHM))
    return changed_by(config, settings)


def compute(
    study: Study, cell: Cell, root: Path, track: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a cell up to its last stage; write and return its JSON.

    Its metrics go to its run's metrics.jsonl and to the trackers that `track` names.

    A finished cell is read again from its run, so that new columns need no computation.
    """
    config = config_of(study, cell)
    digest = config.digest()
    with Run(root / "runs" / digest, config, track=track) as run:
        names = stage_names(study)
        if any(run.done(name) is None for name in names):  # of what it was before
            run.drop(CONFIRMATION)
            (root / CONFIRMATION / f"{digest}.json").unlink(missing_ok=True)
        run_stages(run, STAGES, names, others=list(_runs(root)))
    row = {
        "settings": cell,
        "digest": digest,
        "values": {
            c: _value(run, path)
            for c, path in study.columns.items()
            if study_table.SuccessColumn.of(path) is None
        },
        "games": _games(run, "test"),
        "dreamgym": _versions(run),
    }
    with atomic_write(root / CELLS / f"{digest}.json") as file:
        json.dump(row, file, indent=2)
    return row


def stage_names(study: Study) -> list[str]:
    """Return the last stages of a cell: those of `last_stage`, and evaluations.

    The runner adds the stages that they need.
    """
    names = [stage.name for stage in STAGES.commands()[study.last_stage]]
    return [*names, *(f"evaluate/{policy}" for policy in study.policies)]


def _versions(run: Run) -> list[str]:
    """Return the versions of dreamgym that computed the run's stages."""
    markers = (run.done(name) for name in STAGES)
    return sorted({m["dreamgym"] for m in markers if m is not None})


def confirm(study: Study, cell: Cell, root: Path, count: int) -> bool:
    """Let the policies of a finished cell play test tasks that no cell has played.

    The best of many rows looks better in a table than it is (selection bias); tasks
    that took no part in the selection give an unbiased result. Each policy that a
    column names plays `count` tasks, or as many as there are, after the first
    `evaluate.tasks`. Returns whether the cell was finished.

    Raises:
      RunError: the run is missing, no column names a policy, or no task is left.
    """
    digest = config_of(study, cell).digest()
    path = root / CELLS / f"{digest}.json"
    if not path.is_file():
        return False
    columns = [study_table.SuccessColumn.of(where) for where in study.columns.values()]
    named = {p for a in columns if a is not None for p in a.policies}
    if not named:
        raise RunError("no column names a policy's test games, such as test/dream")
    first = _first(study)
    with Run.open(root / "runs" / digest) as run:
        have = [
            p for p in POLICIES if p in named and run.path(f"test/{p}.jsonl").is_file()
        ]
        tasks = environments.confirmation_tasks(run, first, count)
        for policy in have:
            play_test_games(run, policy, tasks, CONFIRMATION)
        row = json.loads(path.read_text()) | {"games": _games(run, CONFIRMATION)}
    row[CONFIRMATION] = [first, count]
    with atomic_write(root / CONFIRMATION / f"{digest}.json") as file:
        json.dump(row, file, indent=2)
    return True


def _first(study: Study) -> int:
    """Return the number of test tasks that any cell has played."""
    return max(config_of(study, c).evaluate.tasks for c in cells(study))


def unfinished(study: Study, root: Path) -> Iterator[tuple[RunConfig, set[str]]]:
    """Yield each cell's settings with the stages that it will not compute.

    Those are done, or another cell has computed them under the same key by then.
    """
    runs, keys = list(_runs(root)), set[str]()
    done = {r.root.name: {s for s in STAGES if r.done(s)} for r in runs}
    for other in runs:
        keys |= {(other.done(s) or {}).get("key", "") for s in done[other.root.name]}
    for cell in cells(study):
        config = config_of(study, cell)
        required = {s.name for s in STAGES.closure(stage_names(study))}
        unfinished_stages = required - done.get(config.digest(), set())
        keys_left = {s: STAGES.key(s, config) for s in unfinished_stages}
        yield (
            config,
            set(STAGES) - {s for s in unfinished_stages if keys_left[s] not in keys},
        )
        keys |= set(keys_left.values())


def _runs(root: Path) -> Iterator[Run]:
    for path in sorted((root / "runs").glob("*/manifest.json")):
        with contextlib.suppress(RunError):  # of another version: nothing to take over
            yield Run.open(path.parent)


def _games(run: Run, folder: str) -> dict[str, Any]:
    """Of each game played its family and who won it; None where it was not scored."""
    out: dict[str, Any] = {}
    for name in POLICIES:
        path = run.path(f"{folder}/{name}.jsonl")
        for t in evaluate.trajectories(path) if path.is_file() else ():
            task = t.episode.task
            game = out.setdefault(task.id, {"family": task.family, "success": {}})
            won = None if t.error is not None else bool(t.episode.success)
            game["success"][name] = won
    return out


def _value(run: Run, path: str) -> Any:
    """Return a value of the run's JSON files; None if there is none of that name."""
    file, _, rest = path.partition(".")
    value = run.read_json(f"{file}.json") if run.path(f"{file}.json").is_file() else {}
    for name in rest.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def table(study: Study, root: Path, confirmed: int | None = None) -> str:
    """Return the table: a row for each setting but the seed, blank where none ran.

    With `confirmed` it has the results on so many confirmation tasks.
    """
    axes, rows = _rows(study, root, confirmed)
    pairs = []
    for row in rows:
        other = study.compare_to.get(row.labels[0]) if study.variants else None
        named = [r for r in rows if [other, *row.labels[1:]] == list(r.labels)]
        pairs += [(row, r) for r in named]
    versions = {
        v for row in rows for cell in row.finished for v in cell.get("dreamgym", [])
    }
    mixed = (
        f"\nBy dreamgym {', '.join(sorted(versions))}: more than settings may differ.\n"
    )
    return study_table.table(axes, rows, study.columns, pairs) + mixed * (
        len(versions) > 1
    )


def plot(study: Study, root: Path, confirmed: int | None = None) -> Path | None:
    """Plot the columns that have intervals in ROOT/study.png; return its path.

    None if no column has intervals. The plot of confirmation tasks is
    study-confirmation.png.
    """
    path = root / ("study.png" if confirmed is None else f"study-{CONFIRMATION}.png")
    _, rows = _rows(study, root, confirmed)
    return path if study_table.plot(rows, study.columns, path) else None


def _rows(
    study: Study, root: Path, confirmed: int | None
) -> tuple[list[str], list[study_table.Row]]:
    task_range = None if confirmed is None else [_first(study), confirmed]
    groups: dict[tuple[str, ...], list[dict[str, Any] | None]] = {}
    axes: list[str] = []
    for cell in cells(study):
        axes = [name for name in cell if name != "seed"]
        where = root / (CELLS if confirmed is None else CONFIRMATION)
        path = where / f"{config_of(study, cell).digest()}.json"
        row = json.loads(path.read_text()) if path.is_file() else None
        if row is not None and row.get(CONFIRMATION) != task_range:
            row = None  # of other games
        groups.setdefault(tuple(str(cell[a]) for a in axes), []).append(row)
    return axes, [
        study_table.Row(labels, len(row), [f for f in row if f is not None])
        for labels, row in groups.items()
    ]
