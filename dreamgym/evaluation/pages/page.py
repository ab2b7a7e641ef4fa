"""HTML pages of one file each: templates that escape every value, plots inside.

values -> Jinja2 with autoescape -> one file without scripts and without links to other
files. The templates stand in templates/; `base.html` holds the style of all of them.
"""

import base64
import io
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from cycler import cycler

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.printable import printable
from worldmodel.data import processes
from worldmodel.data.records import atomic_write

GREY = "#7f8791"
"""The ink of axes and labels, legible on white and on near-black."""
COLOURS = ("#3d85c6", "#e0812f", "#3d9d6a", "#9270c4", "#cc5b5b", "#4aa3a8", "#b08d2e")
matplotlib.rcParams["text.parse_math"] = False
# Families, runs and columns have names of others: `$x$` is no formula, and half of one
# would be an error.
PLOT_STYLE: Any = {  # keys that matplotlib types as literals
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.color": GREY,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "grid.color": GREY,
    "axes.prop_cycle": cycler(color=COLOURS),
    "svg.fonttype": "path",
}


def _finalize(value: Any) -> Any:
    """Replace what a page cannot hold; markup of our own templates stays."""
    return printable(value) if type(value) is str else value


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("dreamgym.evaluation.pages"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    finalize=_finalize,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Return a page; every value is text, whatever it holds."""
    return _ENVIRONMENT.get_template(template).render(values)


def write(path: Path, template: str, **values: Any) -> None:
    """Write a page to a file."""
    text = render(template, **values)
    with atomic_write(path) as file:
        file.write(text)


def figure_uri(figure: Any) -> str:
    """Return a figure as SVG in a data URI, and close it."""
    with io.StringIO() as file, matplotlib.rc_context(PLOT_STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
        svg = file.getvalue()
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure to a PNG file, and close it."""
    with processes.first_process_writes(path.name) as writes:
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.tight_layout()
            figure.savefig(path, dpi=120)
    plt.close(figure)
