"""What a person looks at after a run: the final table, success and curves."""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from worldmodel.data.records import atomic_write

_HEAD = ("policy", "success", "95 % interval", "episodes", "return", "steps",
         "invalid", "real transitions")  # fmt: skip


def table(results: dict[str, Any]) -> str:
    """The final table as Markdown, pooled and by family, with paired differences."""
    out = []
    groups = [("all families", results), *results["families"].items()]
    for title, group in groups:
        if not group["policies"]:
            continue
        out += [f"**{title}**", "", "| " + " | ".join(_HEAD) + " |", "|---" * 8 + "|"]
        out += [_row(name, row) for name, row in group["policies"].items()]
        out.append("")
        for name, d in group["paired"].items():
            out.append(
                f"- {name.replace('_', ' ')}: {d['mean']:+.3f} "
                f"[{d['low']:+.3f}, {d['high']:+.3f}]"
            )
        out.append("")
    if "skipped" in results:
        out.append(f"real stages {results['skipped']}")
    if results.get("bound"):
        out.append(results["bound"]["sentence"])
    return "\n".join(out) + "\n"


def _row(name: str, row: dict[str, Any]) -> str:
    s = row["success"]
    cells = [
        name, _percent(s["mean"]), f"{_percent(s['low'])} to {_percent(s['high'])}",
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
    """table.md and plots/ of a run."""
    with atomic_write(root / "table.md") as file:
        file.write(table(results))
    plot_curves(root / "curves", root / "plots/curves.png")
    if results["policies"]:
        plot_success(results, root / "plots/success.png")


def save(figure: Any, path: Path) -> None:
    """Write a figure, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_success(results: dict[str, Any], path: Path) -> None:
    """Success with Wilson intervals: pooled and by family."""
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


def plot_curves(folder: Path, path: Path) -> None:
    """Losses of the fits and success of the loops, by update."""
    curves = {
        p.stem: [json.loads(x) for x in p.read_text().splitlines()]
        for p in sorted(folder.glob("*.jsonl"))
    }
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    for name, rows in curves.items():
        if rows and "held_out/loss" in rows[0]:
            steps = [r["step"] for r in rows]
            axis = axes[0]
            axis.plot(steps, [r["held_out/loss"] for r in rows], label=name)
        elif rows and "update" in rows[0]:
            known = [r for r in rows if "success" in r]
            steps = [r["update"] for r in known]
            axes[1].plot(steps, [r["success"] for r in known], label=name)
            steps = [r["update"] for r in rows]
            axes[2].plot(steps, [r.get("kl", 0.0) for r in rows], label=name)
    titles = ("held-out loss", "success of rollouts", "KL to the start")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title)
        axis.set_xlabel("update")
        if axis.lines:
            axis.legend(frameon=False, fontsize=8)
    save(figure, path)
