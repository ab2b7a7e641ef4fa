"""A grid of runs for a person: a table and a figure, with intervals where games count.

rows of finished cells, columns by path -> means over seeds; success on test games
pooled over seeds, with intervals by game; differences paired by game.

A column is `FILE.path`, a value of a run's JSON files; `test/POLICY` or
`test/POLICY/FAMILY`, success on the test games; or `test/A - test/B`, the difference of
two policies of the same runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.report import save
from dreamgym.evaluation.statistics import paired_by_game, rate, wilson_of

Cell = Mapping[str, Any]
"""A finished cell: `settings`, `values` by column, `games` by id: family, success."""
Number = Mapping[str, float]
"""mean and perhaps low, high, count; lowest and highest of the seeds."""
_TESTED = re.compile(r"test/([^/]+)(?:/([^/]+))?")


class Row(NamedTuple):
    """Cells that differ in their seed alone."""

    labels: Sequence[str]
    asked: int
    done: Sequence[Cell]


class Tested(NamedTuple):
    """Success of `policy` on test games, perhaps of a family, or less another's."""

    policy: str
    family: str | None
    less: str | None

    @classmethod
    def of(cls, path: str) -> "Tested | None":
        """What a column's path asks; None where it is no `test/...`.

        Raises:
          ValueError: a path that begins like one and is none.
        """
        if not path.startswith("test/"):
            return None
        sides = [_TESTED.fullmatch(side) for side in path.split(" - ")]
        families = {side[2] for side in sides if side is not None}
        if len(sides) > 2 or None in sides or len(families) != 1:
            raise ValueError(
                f"{path!r}: expected test/POLICY, test/POLICY/FAMILY, or two of the "
                "same family with ' - ' between them"
            )
        names = [side[1] for side in sides if side is not None]
        return cls(names[0], families.pop(), names[1] if len(names) > 1 else None)

    @property
    def policies(self) -> list[str]:
        """One or two."""
        return [self.policy, *([] if self.less is None else [self.less])]

    def games(self, cell: Cell, policy: str) -> dict[str, float]:
        """1 or 0 by game, of those that were scored."""
        return {
            name: float(game["success"][policy])
            for name, game in cell.get("games", {}).items()
            if self.family in (None, game["family"])
            and game["success"].get(policy) is not None
        }


def table(
    axes: Sequence[str],
    rows: Sequence[Row],
    columns: Mapping[str, str],
    pairs: Sequence[tuple[Row, Row]] = (),
) -> str:
    """Markdown: a line a row, blank where nothing ran; below it the asked differences.

    A column without a value in any finished cell is named: families differ, but a name
    may be wrong too.
    """
    head = [*axes, "seeds", *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        shown = [*row.labels, f"{len(row.done)} of {row.asked}"]
        shown += [_cell(row, name, path) for name, path in columns.items()]
        lines.append("| " + " | ".join(shown) + " |")
    for name, path in columns.items():
        if any(row.done for row in rows) and not any(
            _cell(row, name, path) for row in rows
        ):
            lines.append(f"column {name!r}: no finished cell has a value at {path!r}")
    for row, other in pairs:
        told = list(_differences(row, other, columns))
        if told:
            mine, theirs = " ".join(row.labels), " ".join(other.labels)
            lines += ["", f"{mine} minus {theirs}, same seeds, same games:", *told]
    return "\n".join(lines)


def number(row: Row, name: str, path: str) -> Number | None:
    """What a column says of a row; None where no finished cell has a number."""
    asked = Tested.of(path)
    if asked is None:
        return _of_values([c["values"].get(name) for c in row.done])
    if asked.less is not None:
        return _paired(
            (asked.games(c, asked.policy), asked.games(c, asked.less)) for c in row.done
        )
    return _played([asked.games(c, asked.policy) for c in row.done])


def plot(rows: Sequence[Row], columns: Mapping[str, str], path: Path) -> bool:
    """A panel for each column with intervals, a mark a row; whether there is one."""
    shown = {}
    for name, where in columns.items():
        found = [number(row, name, where) for row in rows]
        if any(n is not None and "low" in n for n in found):
            shown[name] = found
    if not shown:
        return False
    figure, axes = plt.subplots(
        1, len(shown), sharey=True, squeeze=False,
        figsize=(2.5 + 2.6 * len(shown), 1.2 + 0.32 * len(rows)),
    )  # fmt: skip
    for axis, (title, of) in zip(axes[0], shown.items(), strict=True):
        known = [(y, n) for y, n in enumerate(of) if n is not None and "low" in n]
        for y, n in known:
            axis.plot([n["low"], n["high"]], [y, y], color="C0")
            axis.plot([n["mean"]], [y], "o", color="C0")
        if any(n["low"] < 0 for _, n in known):
            axis.axvline(0, color="0.6", linewidth=0.8)
        axis.set_title(title)
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(rows)), [" ".join(r.labels) for r in rows])
    axes[0][0].set_ylim(len(rows) - 0.5, -0.5)
    save(figure, path)
    return True


def _cell(row: Row, name: str, path: str) -> str:
    found = number(row, name, path)
    if found is not None:
        asked = Tested.of(path)
        return _told(found, signed=asked is not None and asked.less is not None)
    told = [c["values"].get(name) for c in row.done]
    return " ".join(str(t) for t in told if t is not None)


def _told(n: Number, *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    text = f"{n['mean']:{sign}.3f}" if "low" in n else f"{n['mean']:.3g}"
    if "low" in n:
        text += f" [{n['low']:{sign}.3f}, {n['high']:{sign}.3f}]"
    if "highest" in n and n["highest"] > n["lowest"]:
        form = f"{sign}.3f" if "low" in n else ".3g"
        text += f" ({n['lowest']:{form}} to {n['highest']:{form}})"
    return text


def _of_values(told: Sequence[Any]) -> Number | None:
    """Numbers by mean and range; rates (mean and count) pooled, with an interval."""
    known = [t for t in told if t is not None]
    if known and all(isinstance(t, Mapping) and "count" in t for t in known):
        sizes = [t.get("effective", t["count"]) for t in known]
        return _pooled([
            ((t["mean"] or 0.0) * size, size)
            for t, size in zip(known, sizes, strict=True)
        ])  # fmt: skip
    if not known or not all(isinstance(t, int | float) for t in known):
        return None
    mean = sum(known) / len(known)
    return {"mean": mean, "lowest": min(known), "highest": max(known)}


def _pooled(counts: Iterable[tuple[float | int, float | int]]) -> Number | None:
    known = [(hits, count) for hits, count in counts if count]
    if not known:
        return None
    hits, count = sum(h for h, _ in known), sum(c for _, c in known)
    low, high = wilson_of(hits / count, count)
    means = [h / c for h, c in known]
    return {
        "mean": hits / count, "low": low, "high": high, "count": count,
        "lowest": min(means), "highest": max(means),
    }  # fmt: skip


def _played(seeds: Sequence[Mapping[str, float]]) -> Number | None:
    """Success over the games of several seeds."""
    means = [sum(found.values()) / len(found) for found in seeds if found]
    if not means:
        return None
    games: dict[str, list[float]] = {}
    for found in seeds:
        for name, won in found.items():
            games.setdefault(name, []).append(won)
    return rate(games) | {"lowest": min(means), "highest": max(means)}


def _paired(
    seeds: Iterable[tuple[Mapping[str, float], Mapping[str, float]]],
) -> Number | None:
    """The first of each pair minus the second, where both were scored."""
    both = [[(g, a[g], b[g]) for g in a if g in b] for a, b in seeds]
    rows = [row for seed in both for row in seed]
    if not rows:
        return None
    found = paired_by_game(rows, seed=0)
    means = [sum(a - b for _, a, b in seed) / len(seed) for seed in both if seed]
    return {
        "mean": found["mean"], "low": found["low"], "high": found["high"],
        "count": len(rows), "lowest": min(means), "highest": max(means),
    }  # fmt: skip


def _differences(row: Row, other: Row, columns: Mapping[str, str]) -> Iterable[str]:
    """A line a column of test games; policies that both share differ in nothing."""
    theirs = {c["settings"].get("seed"): c for c in other.done}
    pairs = [
        (c, theirs[c["settings"].get("seed")])
        for c in row.done
        if c["settings"].get("seed") in theirs
    ]
    for name, path in columns.items():
        asked = Tested.of(path)
        if asked is None or asked.less is not None:
            continue
        found = _paired(
            (asked.games(a, asked.policy), asked.games(b, asked.policy))
            for a, b in pairs
        )
        if found is not None and (found["low"], found["high"]) != (0.0, 0.0):
            told = _told(found, signed=True)
            yield f"- {name}: {told}, {found['count']:.0f} games"
