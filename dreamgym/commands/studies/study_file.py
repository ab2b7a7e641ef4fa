"""The file of a study: TOML to cells, each with its whole configuration.

    preset = "small"
    last_stage = "warmstart"                # of each run
    policies = ["bc", "warmstart"]          # that play the test tasks then
    [set]                                   # the same in every cell
    "pretrain.fit.steps" = 2000
    [grid]                                  # axes; the table pools over the seeds
    seed = [0, 1, 2]
    model = ["micro", "mini"]
    [variants.all]                          # one more axis: named groups of settings
    [variants."no history"]
    "experience.history" = 0
    [variants.ppo]
    algorithm = "ppo"                       # a name for settings (rl/config.py)
    [variants."no dream"]
    control = "real-play"                   # another one (config/presets.py)
    [columns]                               # FILE.path in the run's JSON files
    exact = "fidelity.exact.all"
    seconds = "stages/pretrain.seconds"
    cloned = "test/bc"                      # success on the test games; test/bc/coin
    damage = "cost/bc/damage"               # a cost of a game; tools/bc/missed_calls
    gain = "test/warmstart - test/bc"       # of the same runs, paired by game
    [compare_to]                             # a variant minus another, below the table
    "no history" = "all"
    [pareto]                                # columns that are objectives: max or min
    cloned = "max"                          # which rows does no other one dominate?
    seconds = "min"

Several grids, `[[grid]]`, have the same axes and other values. With `[curves]` cells
play the policies that are named there, what else the same stages make, and success is
shown against real steps (study_curves.py):

    [curves.dream]
    variant = "all"
    policy = "dream"
    [real_step_factor]                      # compared with the fewest steps of others
    dream = ["real RL"]
"""

import dataclasses
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.overrides import changed_by
from dreamgym.config.presets import (
    for_pretrained,
    preset,
    with_algorithm,
    with_control,
)
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.evaluation.pages import study_table
from dreamgym.run.directory import RunError
from dreamgym.stages.table import PLAYERS, POLICIES, STAGES

VARIANT, ALGORITHM, CONTROL = "variant", "algorithm", "control"


Cell = dict[str, Any]
"""The settings of a cell by their dotted names."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A study: `fixed` settings, grids of axes, `variants`, `columns` of its table.

    `variants` are named groups of settings. `policies` play the test tasks after the
    last stage, so that a warm start can be evaluated without training in the dream.
    `compare_to` names for a variant the one that it is compared with. `curves` name a
    variant and its policy each, `factors` the curves that a curve is compared with.
    `pareto` names columns that are objectives, "max" or "min".
    """

    preset: str
    last_stage: str
    policies: Sequence[str]
    fixed: Mapping[str, Any]
    grid: Sequence[Mapping[str, Sequence[Any]]]
    variants: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, str]
    compare_to: Mapping[str, str]
    curves: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    factors: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    pareto: Mapping[str, str] = dataclasses.field(default_factory=dict)


MAX_MESSAGE = 2000
"""Characters of what is wrong with a cell, at most."""


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
    except RecursionError:
        raise RunError(f"{path}: expected TOML, it is nested too deeply") from None
    known_keys = {
        "preset",
        "last_stage",
        "policies",
        "set",
        "grid",
        "variants",
        "columns",
        "compare_to",
        "curves",
        "real_step_factor",
        "pareto",
    }
    if unknown := sorted(content.keys() - known_keys):
        raise RunError(f"{path}: unknown {unknown}; have {sorted(known_keys)}")
    _check_tables(path, content)
    last_stage, have = content.get("last_stage", "evaluate"), list(STAGES.commands())
    if last_stage not in have:
        raise RunError(f"{path}: last_stage {last_stage!r}: expected one of {have}")
    policies = content.get("policies", [])
    have = list(POLICIES)
    if not isinstance(policies, list) or any(name not in have for name in policies):
        raise RunError(
            f"{path}: policies {policies!r}: expected a list of some of {have}"
        )
    grids = _grids(path, content.get("grid", {}))
    for part in ("columns", "compare_to"):
        for name, value in content.get(part, {}).items():
            if not isinstance(value, str):
                raise RunError(f"{path}: {part}.{name}: expected a name, got {value!r}")
    study = Study(
        preset=content.get("preset", "default"),
        last_stage=last_stage,
        policies=policies,
        fixed=content.get("set", {}),
        grid=grids,
        variants=content.get("variants", {}),
        columns=content.get("columns", {}),
        compare_to=content.get("compare_to", {}),
        curves=content.get("curves", {}),
        factors=content.get("real_step_factor", {}),
        pareto=content.get("pareto", {}),
    )
    _check_curves(path, study)
    _check_axes(path, study)
    for cell in cells(study):
        try:
            config_of(study, cell)
        except (ValueError, TypeError) as error:
            which = ", ".join(f"{axis} {value!r}" for axis, value in cell.items())
            reason = f"{which or 'its cell'}: {error}"
            if len(reason) > MAX_MESSAGE:  # it quotes the values of the file
                reason = f"{reason[:MAX_MESSAGE]}..."
            raise RunError(f"{path}: {reason}") from None
    _check(path, study)
    return study


def _check_tables(path: Path, content: Mapping[str, Any]) -> None:
    """Check that tables are tables, and texts are texts.

    Raises:
      RunError: one is not.
    """
    for name in ("preset", "last_stage"):
        if not isinstance(content.get(name, ""), str):
            raise RunError(f"{path}: {name}: expected a text, got {content[name]!r}")
    for name in ("set", "columns", "compare_to", "real_step_factor", "pareto"):
        _check_table(path, name, content.get(name, {}))
    for name in ("variants", "curves"):
        _check_table(path, name, content.get(name, {}))
        for key, value in content.get(name, {}).items():
            _check_table(path, f"{name}.{key}", value)
    grid = content.get("grid", {})
    for part in grid if isinstance(grid, list) else [grid]:
        _check_table(path, "grid", part)
    for name, curve in content.get("curves", {}).items():
        for key, value in curve.items():
            if not isinstance(value, str):
                place = f"{path}: curves.{name}.{key}"
                raise RunError(f"{place}: expected a name, got {value!r:.60}")
    for name, others in content.get("real_step_factor", {}).items():
        if not isinstance(others, list) or any(not isinstance(o, str) for o in others):
            place = f"{path}: real_step_factor.{name}"
            raise RunError(f"{place}: expected a list of names, got {others!r:.60}")


def _check_table(path: Path, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise RunError(f"{path}: {name}: expected a table, got {value!r:.60}")


def _grids(path: Path, content: Any) -> list[Mapping[str, Sequence[Any]]]:
    """Return the grids of a study: of one table, or of several.

    Raises:
      RunError: values are no list, or two grids have other axes.
    """
    grids = content if isinstance(content, list) else [content]
    for axes in grids:
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                raise RunError(f"{path}: grid.{name}: expected a list, got {values!r}")
        if axes.keys() != grids[0].keys():
            raise RunError(
                f"{path}: [[grid]]: expected the axes {sorted(grids[0])} in each, got "
                f"{sorted(axes)}"
            )
    return grids


def _check_axes(path: Path, study: Study) -> None:
    """Check that each cell is named once, and has the settings that name it.

    Raises:
      RunError: a value stands twice in an axis, a variant sets what an axis varies, or
        there is nothing to study.
    """
    for axes in study.grid:
        for name, values in axes.items():
            twice = [x for i, x in enumerate(values) if x in values[:i]]
            if twice:
                raise RunError(f"{path}: grid.{name}: {twice[0]!r} stands twice")
            for variant, settings in study.variants.items():
                if name in settings:
                    raise RunError(
                        f"{path}: variants.{variant}: sets {name!r}, which [grid] "
                        "varies: leave it out of one of them"
                    )
    named = list(cells(study))
    if twice := next((c for i, c in enumerate(named) if c in named[:i]), None):
        raise RunError(f"{path}: two grids have the cell {twice}")
    if not any((study.columns, study.curves, study.variants, *study.grid)):
        raise RunError(
            f"{path}: no grid, variants, columns or curves: nothing to study"
        )


def _check_curves(path: Path, study: Study) -> None:
    """Check the curves of a study.

    Raises:
      RunError: one of them names an unknown variant, policy or curve.
    """
    for name, curve in study.curves.items():
        if curve.get("policy") not in POLICIES:
            raise RunError(
                f"{path}: curves.{name}: expected a policy of {POLICIES}, got "
                f"{curve.get('policy')!r}"
            )
        if curve.get("variant") not in study.variants:
            raise RunError(
                f"{path}: curves.{name}: expected a variant of {list(study.variants)}, "
                f"got {curve.get('variant')!r}"
            )
    for name, others in study.factors.items():
        if wrong := [c for c in (name, *others) if c not in study.curves]:
            raise RunError(
                f"{path}: real_step_factor.{name}: no curve {wrong[0]!r}; have "
                f"{list(study.curves)}"
            )


def _check(path: Path, study: Study) -> None:
    """Check the columns and comparisons of a study.

    Raises:
      RunError: one of them names an unknown policy or variant.
    """
    for name, where in study.columns.items():
        try:
            column = study_table.GameColumn.of(where)
        except ValueError as error:
            raise RunError(f"{path}: columns.{name}: {error}") from None
        stage = where.split(".")[0].removeprefix("stages/")
        if where.startswith("stages/") and stage not in STAGES:
            raise RunError(f"{path}: columns.{name}: no stage {stage!r}")
        wrong = [p for p in column.policies if p not in PLAYERS] if column else []
        if wrong:
            raise RunError(
                f"{path}: columns.{name}: no policy {wrong[0]!r}; have {PLAYERS}"
            )
    for name, aim in study.pareto.items():
        if name not in study.columns or aim not in ("max", "min"):
            raise RunError(
                f"{path}: pareto.{name}: expected one of the columns "
                f'{list(study.columns)}, with "max" or "min", got {aim!r:.60}'
            )
    if len(study.pareto) == 1:
        raise RunError(f"{path}: pareto: expected at least two objectives, got one")
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
    for grid in study.grid:
        axes = {**named, **grid}
        for values in itertools.product(*axes.values()):
            yield dict(zip(axes, values, strict=True))


def config_of(study: Study, cell: Cell) -> RunConfig:
    """Return the whole configuration of a cell."""
    settings = {**study.fixed, **study.variants.get(cell.get(VARIANT, ""), {}), **cell}
    settings.pop(VARIANT, None)
    config = preset(study.preset)
    if (model := settings.get("model", config.model)) not in MODELS:
        settings["model"] = str(Path(model).resolve())
        config = for_pretrained(config, lora=None)
    if ALGORITHM in settings:
        config = with_algorithm(config, settings.pop(ALGORITHM))
    if CONTROL in settings:
        config = with_control(config, settings.pop(CONTROL))
    return changed_by(config, settings)
