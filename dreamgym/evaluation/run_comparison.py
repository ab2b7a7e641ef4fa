"""Runs side by side for a person: one table, one figure."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.report import save
from dreamgym.evaluation.statistics import difference_text

CURVES = {
    "success": "success of rollouts", "return": "return", "kl": "KL to the start",
    "entropy": "entropy", "unchanged": "steps that change nothing",
    "unscored": "rollouts not scored",
}  # fmt: skip
"""What of a curve is plotted, and its title."""
SHOWN = 8
"""Differing settings in the table, at most."""


def table(found: dict[str, Any]) -> str:
    """Markdown: a row a run, then the differences on the same games."""
    runs = found["runs"]
    apart = list(runs[0]["settings"])
    names = list(dict.fromkeys(n for run in runs for n in run["policies"]))
    head = ["run", *apart[:SHOWN], *names]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for run in runs:
        cells = [run["name"], *(_brief(run["settings"][k]) for k in apart[:SHOWN])]
        cells += [_rate(run["policies"].get(n)) for n in names]
        lines.append("| " + " | ".join(cells) + " |")
    if len(apart) > SHOWN:
        lines.append(f"\nand {len(apart) - SHOWN} more settings differ: --json has all")
    first = runs[0]["name"]
    for run, paired in zip(runs[1:], found["paired"], strict=True):
        lines += ["", f"{run['name']} minus {first}, on the games that both played:"]
        lines += [
            f"- {name}: {difference_text(d)} ({d['episodes']} games)"
            for name, d in paired.items()
            if d["episodes"]
        ] or ["- none"]
    return "\n".join(lines)


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"...{text[-21:]}"


def _rate(success: dict[str, Any] | None) -> str:
    if success is None or success["mean"] is None:
        return ""
    low, high = 100 * success["low"], 100 * success["high"]
    return f"{100 * success['mean']:.1f} % [{low:.0f}, {high:.0f}]"


def plot(found: dict[str, Any], path: Path) -> None:
    """Curves of training in the dream by run, and the policies' successes."""
    runs = found["runs"]
    figure, axes = plt.subplots(2, 4, figsize=(15, 7))
    flat = axes.ravel()
    for axis, (key, title) in zip(flat, CURVES.items(), strict=False):
        for number, run in enumerate(runs):
            rows = [r for r in run["curve"] if key in r]
            axis.plot(
                [r["update"] for r in rows], [r[key] for r in rows],
                label=_brief(run["name"]), color=f"C{number}",
            )  # fmt: skip
        axis.set_title(title)
        axis.set_xlabel("update")
    names = list(dict.fromkeys(n for run in runs for n in run["policies"]))
    axis, width = flat[len(CURVES)], 0.8 / len(runs)
    for number, run in enumerate(runs):
        known = [(i, run["policies"][n]) for i, n in enumerate(names)
                 if run["policies"].get(n, {}).get("mean") is not None]  # fmt: skip
        mean = [s["mean"] for _, s in known]
        error = [[s["mean"] - s["low"] for _, s in known],
                 [s["high"] - s["mean"] for _, s in known]]  # fmt: skip
        axis.bar(
            [i + number * width for i, _ in known], mean, width, yerr=error, capsize=2,
            label=_brief(run["name"]), color=f"C{number}",
        )  # fmt: skip
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axis.set_title("success on real test games")
    axis.set_ylim(0, 1)
    flat[0].legend(frameon=False, fontsize=8)
    for empty in flat[len(CURVES) + 1 :]:
        empty.axis("off")
    save(figure, path)
