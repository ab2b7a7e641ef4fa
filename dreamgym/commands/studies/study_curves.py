"""Success against real steps and seconds of a study with `[curves]`.

cells/KEY.json -> for each environment and curve the cells of each budget -> the table
with the real-step factors, and the plots.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamgym.commands.studies.study import CELLS
from dreamgym.commands.studies.study_file import VARIANT, Study, cells, config_of
from dreamgym.evaluation.comparisons.step_factor import Played
from dreamgym.evaluation.pages import step_curves

SEED, BUDGET = "seed", "budget.real_steps"


def table(study: Study, root: Path) -> str:
    """Return the table of a study's curves, of the cells that ran."""
    return step_curves.table(panels(study, root), study.factors)


def plot(study: Study, root: Path) -> Path | None:
    """Plot success in ROOT/real_steps.png; return its path, None if no cell ran."""
    path = root / "real_steps.png"
    return path if step_curves.plot(panels(study, root), path) else None


def plot_seconds(study: Study, root: Path) -> Path | None:
    """Plot success against seconds in ROOT/seconds.png; None if none are known."""
    path = root / "seconds.png"
    drawn = step_curves.plot(panels(study, root), path, step_curves.SECONDS)
    return path if drawn else None


def panels(study: Study, root: Path) -> dict[str, step_curves.Curves]:
    """Return the curves of each environment, by all axes but seed and budget.

    A budget of which no cell ran is left out.
    """
    rows: dict[str, dict[str, dict[Any, dict[int, dict[str, Any]]]]] = {}
    for cell in cells(study):
        path = root / CELLS / f"{config_of(study, cell).digest()}.json"
        if not path.is_file():
            continue
        rest = {k: v for k, v in cell.items() if k not in (SEED, BUDGET, VARIANT)}
        label = " ".join(str(v).rpartition(":")[2] for v in rest.values()) or "all"
        for name, curve in study.curves.items():
            if curve["variant"] == cell[VARIANT]:
                of_curve = rows.setdefault(label, {}).setdefault(name, {})
                of_budget = of_curve.setdefault(cell.get(BUDGET), {})
                of_budget[cell.get(SEED, 0)] = json.loads(path.read_text())
    return {
        label: {
            name: [
                played
                for budget, seeds in sorted(curves[name].items())
                if (
                    played := _played(seeds, study.curves[name]["policy"], budget)
                ).games
            ]
            for name in study.curves
            if name in curves
        }
        for label, curves in rows.items()
    }


def _played(
    seeds: Mapping[int, Mapping[str, Any]], policy: str, budget: int | None
) -> Played:
    """Return what a policy came to in the cells of seeds, where a game is scored."""
    games = {
        seed: {
            name: float(game["success"][policy])
            for name, game in row["games"].items()
            if game["success"].get(policy) is not None
        }
        for seed, row in seeds.items()
    }
    scored = [seed for seed, won in games.items() if won]
    return Played(
        {seed: seeds[seed]["real_steps"][policy] for seed in scored},
        {seed: games[seed] for seed in scored},
        {
            seed: seeds[seed]["seconds"][policy]
            for seed in scored
            if policy in seeds[seed].get("seconds", {})  # older cells have none
        },
        budget,
    )
