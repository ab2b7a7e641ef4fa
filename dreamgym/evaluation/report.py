"""The report of a run: the final table, and plots of success and curves."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.statistics import difference_text
from worldmodel.data.records import atomic_write

_HEAD = ("policy", "success", "95 % interval", "episodes", "return", "steps",
         "invalid", "real transitions")  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """Return the final table in Markdown, pooled and by family, with differences."""
    out = []
    groups = [("all families", results), *results["families"].items()]
    for title, group in groups:
        if not group["policies"]:
            continue
        out += [f"**{title}**", "", "| " + " | ".join(_HEAD) + " |", "|---" * 8 + "|"]
        out += [_row(name, row) for name, row in group["policies"].items()]
        out.append("")
        for name, d in group["paired"].items():
            out.append(f"- {name.replace('_', ' ')}: {difference_text(d)}")
        out.append("")
    out += _notes(results)
    if "skipped" in results:
        out.append(f"real stages {results['skipped']}")
    if results.get("bound"):
        out.append(results["bound"]["sentence"])
    return "\n".join(out) + "\n"


def _notes(results: dict[str, Any]) -> list[str]:
    """A line for each policy that has a note, and for each with unscored games."""
    out = []
    for name, row in results["policies"].items():
        if row.get("note"):
            out.append(f"- \\* {name}: {row['note']}")
        if row.get("errors"):
            games = row["success"]["episodes"] + row["success"]["unscored"]
            out.append(
                f"- {name}: {row['success']['unscored']} of {games} games were not "
                f"scored: {counts_text(row['errors'])}"
            )
    return [*out, ""] if out else []


def counts_text(counts: Mapping[str, int]) -> str:
    """Format reasons with their counts, the commonest first."""
    ordered = sorted(counts.items(), key=lambda x: (-x[1], x[0]))
    return ", ".join(f"{reason} ({n})" for reason, n in ordered)


def _row(name: str, row: dict[str, Any]) -> str:
    s = row["success"]
    cells = [
        name + " \\*" * bool(row.get("note")),
        _percent(s["mean"]), f"{_percent(s['low'])} to {_percent(s['high'])}",
        str(s["episodes"]) + (f" (+{s['unscored']} unscored)" if s["unscored"] else ""),
        _number(row["mean_return"]), _number(row["mean_steps"]),
        _percent(row["invalid_action_rate"]), f"{row['real_transitions']:,}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def write(root: Path, results: dict[str, Any]) -> None:
    """Write table.md and plots/ of a run."""
    with atomic_write(root / "table.md") as file:
        file.write(table(results))
    plot_curves(root / "curves", root / "plots/curves.png")
    if results["policies"]:
        plot_success(results, root / "plots/success.png")


def save(figure: Any, path: Path) -> None:
    """Write a figure to a file, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_success(results: dict[str, Any], path: Path) -> None:
    """Plot success with Wilson intervals, pooled and by family."""
    groups = [("all", results), *results["families"].items()]
    figure, axes = plt.subplots(
        1, len(groups), figsize=(3.6 * len(groups), 3.6), sharey=True, squeeze=False
    )
    for axis, (title, group) in zip(axes[0], groups, strict=True):
        names = list(group["policies"])
        for i, name in enumerate(names):
            s = group["policies"][name]["success"]
            mean = s["mean"] or 0.0
            error = [[max(mean - s["low"], 0)], [max(s["high"] - mean, 0)]]
            axis.bar(i, mean, 0.7, yerr=error, capsize=3, color=f"C{i}")
        axis.set_xticks(range(len(names)), names, rotation=60, ha="right")
        axis.set_title(title)
        axis.set_ylim(0, 1)
    axes[0][0].set_ylabel("success on real test games")
    save(figure, path)


def _plot_loop(axes: Any, name: str, rows: Sequence[dict[str, Any]]) -> None:
    """Plot success by family, the KL of updates by turn, and what carries a signal."""
    families = sorted({k for r in rows for k in r if k.startswith("success/")})
    lines = [(axes[0], key, key.partition("/")[2], "-") for key in families]
    lines += [
        (axes[1], "moved_turn_mean", "mean", "-"),
        (axes[1], "moved_turn", "largest", "--"),
        (axes[2], "informative_groups", "signal", "-"),
    ]
    for axis, key, label, style in lines:
        points = [r for r in rows if key in r]
        axis.plot(
            [r["update"] for r in points], [r[key] for r in points], style,
            label=f"{name}, {label}",
        )  # fmt: skip
    axes[1].set_yscale("symlog", linthresh=1e-3)
    points = [r for r in rows if "unscored" in r]
    unscored = [r["unscored"] / max(r["rollouts"], 1) for r in points]
    axes[2].plot(
        [r["update"] for r in points], unscored, ":", label=f"{name}, unscored"
    )


def plot_curves(folder: Path, path: Path) -> None:
    """Plot the losses of fits and the curves of training loops by update."""
    curves = {
        p.stem: [json.loads(x) for x in p.read_text().splitlines()]
        for p in sorted(folder.glob("*.jsonl"))
    }
    figure, grid = plt.subplots(2, 3, figsize=(12, 7.2))
    axes = grid.ravel()
    for name, rows in curves.items():
        if rows and "held_out/loss" in rows[0]:
            steps = [r["step"] for r in rows]
            axis = axes[0]
            axis.plot(steps, [r["held_out/loss"] for r in rows], label=name)
        elif rows and "update" in rows[0]:
            points = [r for r in rows if "success" in r]
            steps = [r["update"] for r in points]
            axes[1].plot(steps, [r["success"] for r in points], label=name)
            points = [r for r in rows if "kl" in r]  # no update, no distance
            steps = [r["update"] for r in points]
            axes[2].plot(steps, [r["kl"] for r in points], label=name)
        if rows and "update" in rows[0]:
            _plot_loop(axes[3:], name, rows)
    titles = (
        "held-out loss", "success of rollouts", "KL to the start",
        "success by family", "KL of an update: mean and largest turn",
        "groups with a signal, unscored rollouts",
    )  # fmt: skip
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_xlabel("update")
        if axis.lines:
            axis.legend(frameon=False, fontsize=8)
    save(figure, path)
