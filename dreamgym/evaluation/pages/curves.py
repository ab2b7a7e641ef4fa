"""Plots of the curves of a run: fits and training loops, a panel for each question.

curves/NAME.jsonl -> rows by name -> panels (metric_names.PANELS) -> PNG or data URIs.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.metric_names import PANELS, Line, Panel
from dreamgym.evaluation.pages.page import PLOT_STYLE, figure_uri, save_figure
from dreamgym.evaluation.printable import printable
from worldmodel.data.json_reading import read_json_rows

COLUMNS = 4
"""Panels in a row of the picture of a run."""
MAX_LABEL, MAX_LABELS = 28, 8
"""Characters of a name in a legend, and names, at most: a plot has no room for more."""
LEGEND_COLUMNS = 2

Curve = Sequence[Mapping[str, Any]]


def read_curves(folder: Path) -> dict[str, Curve]:
    """Return the rows of each curve under a folder, by its path: `s2r/round-1`."""
    files = sorted(folder.rglob("*.jsonl"))
    return {
        path.relative_to(folder).with_suffix("").as_posix(): read_json_rows(path)
        for path in files
    }


def points(panel: Panel, curves: Mapping[str, Curve]) -> Iterator[tuple[str, Any]]:
    """Yield (label, (x, y, style)) of every line of a panel that has a point."""
    for name, rows in curves.items():
        for line in _lines(panel, rows):
            xy = [
                (row.get("update", row.get("step")), _value(row, line))
                for row in rows
                if line.key in row
            ]
            xy = [(x, y) for x, y in xy if x is not None and math.isfinite(y)]
            if xy:
                x, y = zip(*xy, strict=True)
                label = ", ".join(filter(None, (name, line.label)))
                yield _short(printable(label)), (x, y, line.style)


def _short(label: str) -> str:
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 3]}..."


def _lines(panel: Panel, rows: Curve) -> list[Line]:
    if not panel.prefix:
        return list(panel.lines)
    keys = {key for row in rows for key in row if key.startswith(panel.prefix)}
    return [Line(key, key.removeprefix(panel.prefix)) for key in sorted(keys)]


def _value(row: Mapping[str, Any], line: Line) -> float:
    value = float(row[line.key])
    return value / max(float(row[line.per]), 1.0) if line.per else value


def draw(axis: Any, panel: Panel, curves: Mapping[str, Curve]) -> bool:
    """Draw a panel; return whether it has a line."""
    lines = list(points(panel, curves))
    for label, (x, y, style) in lines:
        # A label that begins with an underscore would be left out of the legend.
        axis.plot(x, y, style, marker="." if len(x) < 3 else None, label=f" {label}")
    if panel.share:
        axis.set_ylim(-0.02, 1.02)
    if panel.log:
        axis.set_yscale("symlog", linthresh=1e-3)
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_xlabel("update")
    axis.xaxis.get_major_locator().set_params(integer=True)
    if lines:  # above the axes, where it hides no line
        axis.legend(
            handles=axis.lines[:MAX_LABELS],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            ncols=LEGEND_COLUMNS,
            borderpad=0.1,
        )
    return bool(lines)


def figures(curves: Mapping[str, Curve]) -> list[dict[str, str]]:
    """Return title, caption and data URI of each panel that has a line."""
    out = []
    for panel in PANELS:
        with matplotlib.rc_context(PLOT_STYLE):
            figure, axis = plt.subplots(figsize=(4.4, 3.0), layout="constrained")
            if draw(axis, panel, curves):
                uri = figure_uri(figure)
                out.append({"title": panel.title, "caption": panel.caption, "uri": uri})
            plt.close(figure)
    return out


def plot_curves(folder: Path, path: Path) -> None:
    """Plot all panels of a run into one PNG file."""
    curves = read_curves(folder)
    rows = math.ceil(len(PANELS) / COLUMNS)
    size = (4.0 * COLUMNS, 3.6 * rows)
    figure, grid = plt.subplots(rows, COLUMNS, figsize=size, squeeze=False)
    axes = grid.ravel()
    for axis, panel in zip(axes[: len(PANELS)], PANELS, strict=True):
        draw(axis, panel, curves)
        labels = math.ceil(min(len(axis.lines), MAX_LABELS) / LEGEND_COLUMNS)
        axis.set_title(panel.title, pad=14 + 15 * labels)  # above the legend
    for axis in axes[len(PANELS) :]:
        axis.axis("off")
    save_figure(figure, path)
