"""The table and the figure of a study: one row for each setting, seeds pooled.

rows of finished cells, columns by path -> means over seeds; what policies do in test
games pooled over seeds, with intervals by game; differences paired by game.

A column is `FILE.path`, a value of a run's JSON files; or of the test games
`test/POLICY` or `test/POLICY/FAMILY`, success; `cost/POLICY/NAME`, the cost of a game;
`tools/POLICY/MEASURE`, a measure of tool use (tool_report.py); or `test/A - test/B`,
the difference of two policies of the same runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.pages.page import save_figure
from dreamgym.evaluation.statistics import (
    mean_of_games,
    paired_by_game,
    pareto_front,
    wilson_of,
)
from dreamgym.evaluation.tool_report import with_interval
from worldmodel.text.tools.skills import SkillRate

Cell = Mapping[str, Any]
"""A finished cell: `settings`, `values` by column, `games` by id.

A game has its family, and by policy its success, named costs and measures of tools."""
Number = Mapping[str, Any]
"""mean and perhaps low, high, count; lowest, highest, deviation of the cells."""
SEEDS = ("seed", "bc.seed", "train.seed")
"""The axes over which a row pools its cells."""
SUCCESS, COST, TOOLS = "test", "cost", "tools"
_PATH = re.compile(rf"({SUCCESS}|{COST}|{TOOLS})/([^/]+)(?:/([^/]+))?")
Games = dict[str, tuple[float, float]]
"""What a policy came to by game, as sum and count: a success has the count 1."""


class Row(NamedTuple):
    """The finished cells, of `total`, that differ in their SEEDS alone."""

    labels: Sequence[str]
    total: int
    finished: Sequence[Cell]


class GameColumn(NamedTuple):
    """What `policy` does in the test games: its success, a cost, a use of tools.

    `name` is that of the cost or measure; of a success the family, None for all.
    With a `baseline` the column is the difference between the two policies.
    """

    kind: str
    policy: str
    name: str | None
    baseline: str | None

    @classmethod
    def of(cls, path: str) -> "GameColumn | None":
        """Parse the path of a column; None if it is not of the test games.

        Raises:
          ValueError: a malformed path that starts as one of the test games.
        """
        if not path.startswith((f"{SUCCESS}/", f"{COST}/", f"{TOOLS}/")):
            return None
        sides = [_PATH.fullmatch(side) for side in path.split(" - ")]
        parts = [side.groups() for side in sides if side is not None]
        alike = len({(kind, name) for kind, _, name in parts}) == 1
        if len(sides) > 2 or None in sides or not alike:
            raise ValueError(
                f"{path!r}: expected test/POLICY, test/POLICY/FAMILY, "
                "cost/POLICY/NAME, tools/POLICY/MEASURE, or two of the same family, "
                "cost or measure with ' - ' between them"
            )
        (kind, policy, name), baseline = parts[0], [p[1] for p in parts[1:]]
        if kind != SUCCESS and name is None:
            raise ValueError(f"{path!r}: expected {kind}/POLICY/NAME")
        return cls(kind, policy, name, baseline[0] if baseline else None)

    @property
    def policies(self) -> list[str]:
        """The policy and, if there is one, its baseline."""
        return [self.policy, *([] if self.baseline is None else [self.baseline])]

    def games(self, cell: Cell, policy: str) -> Games:
        """Return what a policy came to in the games of a cell, where it is known."""
        out = {}
        for game, row in cell.get("games", {}).items():
            if self.kind != SUCCESS:
                value = row.get(self.kind, {}).get(policy, {}).get(self.name)
            elif self.name in (None, row["family"]):
                won = row["success"].get(policy)
                value = None if won is None else (float(won), 1.0)
            else:
                value = None
            if value is not None and value[1]:
                out[game] = (float(value[0]), float(value[1]))
        return out

    def pooled(self, seeds: Sequence[Games]) -> Number | None:
        """Return the mean over the games of several seeds, with its interval."""
        means = [_mean(games) for games in seeds if games]
        if not means:
            return None
        values: dict[str, list[SkillRate]] = {}
        for games in seeds:
            for game, value in games.items():
                values.setdefault(game, []).append(SkillRate(*value))
        if self.kind == TOOLS and self.name is not None:
            number = with_interval(self.name, values, seed=0)
        else:
            sums = {game: [x.hits for x in rates] for game, rates in values.items()}
            number = mean_of_games(sums, seed=0)
        return number | _spread(means)


def _mean(games: Games) -> float:
    return sum(x for x, _ in games.values()) / sum(n for _, n in games.values())


def _spread(means: Sequence[int | float]) -> dict[str, int | float]:
    """Return the lowest, highest and standard deviation of the means of cells.

    The deviation is that of a sample; there is none of fewer than three cells.
    """
    spread: dict[str, int | float] = {"lowest": min(means), "highest": max(means)}
    return spread | ({"deviation": float(np.std(means, ddof=1))} if means[2:] else {})


def table(
    axes: Sequence[str],
    rows: Sequence[Row],
    columns: Mapping[str, str],
    pairs: Sequence[tuple[Row, Row]] = (),
) -> str:
    """Return Markdown: the rows of the study, then differences between `pairs` of them.

    A column without a value in any finished cell is named below the table, and so is a
    cost that no policy there pays: its path may be wrong.
    """
    head = [*axes, "seeds", *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        texts = [*row.labels, f"{len(row.finished)} of {row.total}"]
        texts += [_cell(row, name, path) for name, path in columns.items()]
        lines.append("| " + " | ".join(texts) + " |")
    for name, path in columns.items():
        if any(row.finished for row in rows) and not any(
            _cell(row, name, path) for row in rows
        ):
            lines.append(f"column {name!r}: no finished cell has a value at {path!r}")
        elif _is_never_paid(rows, path):
            lines.append(
                f"column {name!r}: every game of the finished cells has 0 at {path!r}"
            )
    for row, other in pairs:
        differences = list(_differences(row, other, columns))
        if differences:
            names = f"{' '.join(row.labels)} minus {' '.join(other.labels)}"
            lines += ["", f"{names}, same seeds, same games:", *differences]
    return "\n".join(lines)


def _is_never_paid(rows: Sequence[Row], path: str) -> bool:
    """Return whether a column is a cost that is 0 in every game of every cell."""
    column = GameColumn.of(path)
    if column is None or column.kind != COST:
        return False
    cells = [cell for row in rows for cell in row.finished]
    games = [column.games(c, p) for c in cells for p in column.policies]
    sums = [total for played in games for total, _ in played.values()]
    return bool(sums) and not any(sums)


def front_text(
    rows: Sequence[Row], columns: Mapping[str, str], objectives: Mapping[str, str]
) -> str:
    """Return the rows that no other one dominates, as text; "" where none has values.

    `objectives` are columns with "max" or "min". Means are compared, whatever their
    intervals are. Rows without a value in one of these columns are left out.
    """
    sign = np.array([1.0 if aim == "max" else -1.0 for aim in objectives.values()])
    points = [[number(row, name, columns[name]) for name in objectives] for row in rows]
    complete = [
        (row, [n["mean"] for n in point if n is not None])
        for row, point in zip(rows, points, strict=True)
        if None not in point
    ]
    if not complete:
        return ""
    front = pareto_front(np.array([values for _, values in complete], float) * sign)
    aims = ", ".join(f"{name} ({aim})" for name, aim in objectives.items())
    lines = [
        f"Pareto front, {aims}: {front.sum()} of {len(complete)} rows, by their means"
    ]
    for (row, values), is_best in zip(complete, front, strict=True):
        pairs = zip(objectives, values, strict=True)
        text = ", ".join(f"{name} {value:.3g}" for name, value in pairs)
        lines += [f"- {' '.join(row.labels)}: {text}"] * bool(is_best)
    return "\n".join(lines)


def number(row: Row, name: str, path: str) -> Number | None:
    """Return the value of a column in a row; None if no finished cell has a number."""
    column = GameColumn.of(path)
    if column is None:
        return _of_values([c["values"].get(name) for c in row.finished])
    if column.baseline is not None:
        games = (
            (column.games(c, column.policy), column.games(c, column.baseline))
            for c in row.finished
        )
        return _paired(games, of_wins=column.kind == SUCCESS)
    return column.pooled([column.games(c, column.policy) for c in row.finished])


def plot(rows: Sequence[Row], columns: Mapping[str, str], path: Path) -> bool:
    """Plot a panel for each column with intervals; return whether there is one."""
    panels = {}
    for name, where in columns.items():
        values = [number(row, name, where) for row in rows]
        if any(n is not None and "low" in n for n in values):
            panels[name] = values
    if not panels:
        return False
    figure, axes = plt.subplots(
        1,
        len(panels),
        sharey=True,
        squeeze=False,
        figsize=(2.5 + 2.6 * len(panels), 1.2 + 0.32 * len(rows)),
    )
    for axis, (title, values) in zip(axes[0], panels.items(), strict=True):
        points = [(y, n) for y, n in enumerate(values) if n is not None and "low" in n]
        for y, n in points:
            axis.plot([n["low"], n["high"]], [y, y], color="C0")
            axis.plot([n["mean"]], [y], "o", color="C0")
        if any(n["low"] < 0 for _, n in points):
            axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_title(title)
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(rows)), [" ".join(r.labels) for r in rows])
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    save_figure(figure, path)
    return True


def _seeds(cell: Cell) -> tuple[int | None, ...]:
    return tuple(cell["settings"].get(name) for name in SEEDS)


def _cell(row: Row, name: str, path: str) -> str:
    value = number(row, name, path)
    if value is not None:
        column = GameColumn.of(path)
        return _number_text(
            value, signed=column is not None and column.baseline is not None
        )
    values = [c["values"].get(name) for c in row.finished]
    # A rate without a case is blank.
    return " ".join(
        str(t) for t in values if t is not None and not isinstance(t, Mapping)
    )


def _number_text(n: Number, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    text = f"{n['mean']:{sign}.3f}" if "low" in n else f"{n['mean']:.3g}"
    if "low" in n:
        text += f" [{n['low']:{sign}.3f}, {n['high']:{sign}.3f}]"
    if "highest" in n and n["highest"] > n["lowest"]:
        form = f"{sign}.3f" if "low" in n else ".3g"
        deviation = f", sd {n['deviation']:.2g}" if "deviation" in n else ""
        text += f" ({n['lowest']:{form}} to {n['highest']:{form}}{deviation})"
    return text


def _of_values(values: Sequence[Any]) -> Number | None:
    """Return numbers by mean and range, and rates (mean and count) pooled.

    Runs of several seeds score the same dev tasks. So the interval of a pooled rate is
    that of the run with the most cases, and further seeds do not narrow it.
    """
    numbers = [t for t in values if t is not None]
    if numbers and all(isinstance(t, Mapping) and "count" in t for t in numbers):
        sizes = [t.get("effective", t["count"]) for t in numbers]
        return _pooled(
            [
                ((t["mean"] or 0.0) * size, size)
                for t, size in zip(numbers, sizes, strict=True)
            ]
        )
    if not numbers or not all(isinstance(t, int | float) for t in numbers):
        return None
    mean = sum(numbers) / len(numbers)
    return {"mean": mean, **_spread(numbers)}


def _pooled(counts: Iterable[tuple[float | int, float | int]]) -> Number | None:
    nonempty = [(hits, count) for hits, count in counts if count]
    if not nonempty:
        return None
    hits, count = sum(h for h, _ in nonempty), sum(c for _, c in nonempty)
    low, high = wilson_of(hits / count, max(c for _, c in nonempty))
    means = [h / c for h, c in nonempty]
    return {
        "mean": hits / count,
        "low": low,
        "high": high,
        "count": count,
        **_spread(means),
    }


def _paired(seeds: Iterable[tuple[Games, Games]], *, of_wins: bool) -> Number | None:
    """The first of each pair minus the second, where both are known."""
    both = [
        [(g, a[g][0] / a[g][1], b[g][0] / b[g][1]) for g in a if g in b]
        for a, b in seeds
    ]
    rows = [row for seed in both for row in seed]
    if not rows:
        return None
    difference = paired_by_game(rows, seed=0, of_wins=of_wins)
    means = [sum(a - b for _, a, b in seed) / len(seed) for seed in both if seed]
    interval = {
        k: value
        for k in ("mean", "low", "high")
        if (value := difference[k]) is not None
    }
    return interval | {"count": len(rows), **_spread(means)}


def _differences(row: Row, other: Row, columns: Mapping[str, str]) -> Iterable[str]:
    """A line a column of test games; policies that both share differ in nothing."""
    other_cells = {_seeds(c): c for c in other.finished}
    pairs = [
        (c, other_cells[_seeds(c)]) for c in row.finished if _seeds(c) in other_cells
    ]
    for name, path in columns.items():
        column = GameColumn.of(path)
        if column is None or column.baseline is not None:
            continue
        games = [
            (column.games(a, column.policy), column.games(b, column.policy))
            for a, b in pairs
        ]
        if all(a[g] == b[g] for a, b in games for g in a if g in b):
            continue
        difference = _paired(games, of_wins=column.kind == SUCCESS)
        if difference is not None:
            text = _number_text(difference, signed=True)
            yield f"- {name}: {text}, {difference['count']:.0f} games"
