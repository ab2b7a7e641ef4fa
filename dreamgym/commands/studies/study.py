"""Studies: a grid of runs with one JSON file per cell, and a table of the results.

study.toml -> cells (one value of every axis) -> one run per cell, which can be resumed;
stages are shared by cells in which they have the same key -> cells/KEY.json -> the
table, in which cells that did not run are blank. The key of a cell hashes its whole
configuration, so that a study can be extended and resumed, and never mixes results of
different settings.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.commands.audits import confirmation
from dreamgym.commands.results import limited_costs, policy_stages, policy_steps
from dreamgym.commands.studies.study_file import VARIANT, Cell, Study, cells, config_of
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.pages import study_table
from dreamgym.evaluation.pages.study_table import GameColumn
from dreamgym.evaluation.tool_report import game_rates
from dreamgym.run.directory import Run, RunError
from dreamgym.run.runner import run_stages
from dreamgym.stages.table import PLAYERS, POLICIES, STAGES, is_in_run
from worldmodel.data.records import atomic_write

CELLS, CONFIRMATION = "cells", confirmation.FOLDER
"""Where finished cells lie: with the test tasks, and with tasks no cell had played."""

OF_DREAMS = ("evaluate/expert_iteration", "evaluate/dream", "evaluate/planner")
"""Evaluations of policies that a run without a dream copies or hardly trains."""


def compute(
    study: Study, cell: Cell, root: Path, track: Sequence[str] = ()
) -> dict[str, Any]:
    """Run a cell up to its last stage; write and return its JSON.

    Its metrics go to its run's metrics.jsonl and to the trackers that `track` names.

    A finished cell is read again from its run, so that new columns need no computation.
    """
    config = config_of(study, cell)
    digest = config.digest()
    with Run(cell_root(root, config), config, track=track) as run:
        names = stage_names(study, cell)
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
            if GameColumn.of(path) is None
        },
        "games": _games(run, "test", study),
        "real_steps": {
            policy: policy_steps(run, policy) + run.estimate_steps()
            for policy in STAGES.policies()
            if run.path(f"test/{policy}.jsonl").is_file()
        },
        "seconds": {
            policy: STAGES.seconds(run, policy_stages(run, policy))
            for policy in STAGES.policies()
            if run.path(f"test/{policy}.jsonl").is_file()
        },
        "dreamgym": _versions(run),
    }
    with atomic_write(root / CELLS / f"{digest}.json") as file:
        json.dump(row, file, indent=2)
    return row


def stage_names(study: Study, cell: Cell) -> list[str]:
    """Return the last stages of a cell: those of `last_stage`, and evaluations.

    Evaluated are the study's `policies` or, without any, those that columns name. Where
    curves are of the cell's variant, their policies are evaluated, and of the others
    those for which no further stage has to run: it would spend real steps that a
    control's budget does not have. The runner adds the stages that they need.
    """
    config = config_of(study, cell)
    policies = study.policies or _column_policies(study)
    evaluations = [f"evaluate/{policy}" for policy in policies]
    of_variant = [c for c in study.curves.values() if c["variant"] == cell[VARIANT]]
    names = [f"evaluate/{curve['policy']}" for curve in of_variant]
    if of_variant:
        stages = _makers(names)
        if config.train.environment == "real":
            evaluations = [x for x in evaluations if x not in OF_DREAMS]
        names += [x for x in evaluations if _makers([x]) <= stages]
    else:
        names += [stage.name for stage in STAGES.commands()[study.last_stage]]
        names += evaluations
    return [name for name in dict.fromkeys(names) if is_in_run(name, config)]


def _makers(evaluations: Sequence[str]) -> set[str]:
    """Return the stages that evaluations need."""
    return {s.name for s in STAGES.closure(evaluations)} - set(evaluations)


def _column_policies(study: Study) -> list[str]:
    """Return the players whose games the columns show, in the order of the table."""
    named = {policy for column in _columns(study) for policy in column.policies}
    return [player for player in PLAYERS if player in named]


def _columns(study: Study) -> list[GameColumn]:
    """Return the columns that are of test games."""
    columns = [GameColumn.of(path) for path in study.columns.values()]
    return [column for column in columns if column is not None]


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
    config = config_of(study, cell)
    path = root / CELLS / f"{config.digest()}.json"
    if not path.is_file():
        return False
    named = [player for player in _column_policies(study) if player in POLICIES]
    if not named:
        raise RunError("no column names a policy's test games, such as test/dream")
    first = _first(study)
    with Run.open(cell_root(root, config)) as run:
        have = [p for p in named if run.path(f"test/{p}.jsonl").is_file()]
        confirmation.play_games(run, have, first=first, count=count)
        row = json.loads(path.read_text()) | {"games": _games(run, CONFIRMATION, study)}
    row[CONFIRMATION] = [first, count]
    with atomic_write(root / CONFIRMATION / f"{config.digest()}.json") as file:
        json.dump(row, file, indent=2)
    return True


def _first(study: Study) -> int:
    """Return the number of test tasks that any cell has played."""
    return max(config_of(study, c).evaluate.tasks for c in cells(study))


def cell_root(root: Path, config: RunConfig) -> Path:
    """Return the directory of the run of a cell with these settings."""
    return root / "runs" / config.digest()


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
        required = {s.name for s in STAGES.closure(stage_names(study, cell))}
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


def _games(run: Run, folder: str, study: Study) -> dict[str, Any]:
    """Return each game that was played: its family, and by player who won it.

    Who won is None where a game was not scored. Costs and measures of tool use, as sum
    and count by name, are those that columns name.
    """
    out: dict[str, Any] = {}
    for name in PLAYERS:
        path = run.path(f"{folder}/{name}.jsonl")
        played = evaluate.trajectories(path) if path.is_file() else []
        for t in played:
            task = t.episode.task
            game = out.setdefault(task.id, {"family": task.family, "success": {}})
            won = None if t.error is not None else bool(t.episode.success)
            game["success"][name] = won
        for column in _columns(study):
            if name in column.policies and column.kind != study_table.SUCCESS:
                for game, value in _game_sums(run, column, played).items():
                    of_kind = out[game].setdefault(column.kind, {})
                    of_kind.setdefault(name, {})[column.name] = value
    return out


def _game_sums(
    run: Run, column: GameColumn, played: Sequence[Trajectory]
) -> study_table.Games:
    """Return the sum and count of a column's cost or measure, by task id."""
    if column.kind == study_table.COST:
        scored = [t for t in played if t.error is None]
        name = str(column.name)
        # Of each game, also where no policy of this cell pays it.
        counters = {**evaluate.reported_counters([name]), **limited_costs(run)}
        costs = evaluate.game_costs(scored, counters)[name] if scored else {}
        return {game: (sum(x), float(len(x))) for game, x in costs.items()}
    match = run.config.train.reward.tools.match
    rates = game_rates(played, match=match).get(column.name or "", {})
    return {
        game: (sum(r.hits for r in x), sum(r.count for r in x))
        for game, x in rates.items()
    }


def _value(run: Run, path: str) -> Any:
    """Return a value of the run's JSON files; None if there is none of that name."""
    file, _, rest = path.partition(".")
    value = run.read_json(f"{file}.json") if run.path(f"{file}.json").is_file() else {}
    for name in rest.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def table(study: Study, root: Path, confirmed: int | None = None) -> str:
    """Return the table: a row for each setting but the seeds, blank where none ran.

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
    text = study_table.table(axes, rows, study.columns, pairs)
    if study.pareto:
        front = study_table.front_text(rows, study.columns, study.pareto)
        text += f"\n\n{front}" * bool(front)
    return text + mixed * (len(versions) > 1)


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
        axes = [name for name in cell if name not in study_table.SEEDS]
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
