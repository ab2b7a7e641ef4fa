"""A comparison of runs: one table and one figure.

settings, successes and curves of runs -> Markdown, PNG.
"""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.pages.page import save_figure
from dreamgym.evaluation.statistics import difference_text

CURVES = {
    "success": "success of rollouts",
    "return": "return",
    "kl": "KL to the start",
    "entropy": "entropy",
    "unchanged_state_share": "steps that change nothing",
    "unscored_rollouts": "rollouts not scored",
}
"""The keys of a curve that are plotted, with their titles."""
STEPS_APART = 0.1
"""The share by which the real steps of two runs differ from which on this is said."""
MAX_SETTINGS = 8
"""The number of differing settings in the table, at most."""


def table(comparison: dict[str, Any]) -> str:
    """Return Markdown: a row for each run, then differences on the same games."""
    runs = comparison["runs"]
    settings = list(runs[0]["settings"])
    names = list(dict.fromkeys(n for run in runs for n in run["policies"]))
    head = ["run", *settings[:MAX_SETTINGS], *names]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for run in runs:
        cells = [
            run["name"],
            *(_brief(run["settings"][k]) for k in settings[:MAX_SETTINGS]),
        ]
        cells += [_rate(run["policies"].get(n)) for n in names]
        lines.append("| " + " | ".join(cells) + " |")
    if len(settings) > MAX_SETTINGS:
        lines.append(
            f"\nand {len(settings) - MAX_SETTINGS} more settings differ: --json has all"
        )
    first = runs[0]["name"]
    rows = zip(runs[1:], comparison["paired"], comparison["last"][1:], strict=True)
    for run, paired, last in rows:
        lines += ["", f"{run['name']} minus {first}, on the games that both played:"]
        lines += [
            f"- {name}: {difference_text(d)} ({d['episodes']} games)"
            for name, d in paired.items()
            if d["episodes"]
        ] or ["- none"]
        if last is not None and last["difference"]["episodes"]:
            other = comparison["last"][0]
            lines.append(_last_policies(run["name"], last, first, other))
            lines += _dream_verdict(first, other, run["name"], last)
    return "\n".join(lines)


def _last_policies(
    name: str, last: dict[str, Any], first_name: str, first: dict[str, Any]
) -> str:
    """Return the difference between the policies that two runs end with."""
    return (
        f"- the policies that they end with, {last['policy']} of {name} "
        f"({last['real_steps']:,} real steps) minus {first['policy']} of {first_name} "
        f"({first['real_steps']:,}): {difference_text(last['difference'])} "
        f"({last['difference']['episodes']} games)"
    )


def _dream_verdict(
    first_name: str, first: dict[str, Any], name: str, last: dict[str, Any]
) -> list[str]:
    """Return whether dreaming paid, where one of two runs is the control without it.

    Nothing where no policy of the other run learnt in its dream.
    """
    low, high = last["difference"]["low"], last["difference"]["high"]
    steps = sorted((first["real_steps"], last["real_steps"]))
    note = ""
    if steps[1] > (1 + STEPS_APART) * steps[0]:
        note = f" (not at equal real steps: {steps[0]:,} and {steps[1]:,})"
    worlds = first["world"], last["world"]
    if low is None or set(worlds) != {"dream", "environment"}:
        return []
    control = first_name
    if worlds[1] == "environment":  # the control minus the run with the dream
        low, high, control = -high, -low, name
    if low > 0:
        text = "dreaming paid: the run with the dream ends ahead of real play"
    elif high < 0:
        text = (
            "dreaming did not pay here: take the last policy of "
            f"{control}, the control without a dream"
        )
    else:
        text = "whether dreaming paid cannot be told by these games"
    return [f"- {text}{note}"]


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"...{text[-21:]}"


def _rate(success: dict[str, Any] | None) -> str:
    if success is None or success["mean"] is None:
        return ""
    low, high = 100 * success["low"], 100 * success["high"]
    return f"{100 * success['mean']:.1f} % [{low:.0f}, {high:.0f}]"


def plot(comparison: dict[str, Any], path: Path) -> None:
    """Plot the curves of training in the dream, and the policies' success, by run."""
    runs = comparison["runs"]
    figure, axes = plt.subplots(2, 4, figsize=(15, 7))
    flat = axes.ravel()
    for axis, (key, title) in zip(flat, CURVES.items(), strict=False):
        for number, run in enumerate(runs):
            rows = [r for r in run["curve"] if key in r]
            axis.plot(
                [r["update"] for r in rows],
                [r[key] for r in rows],
                label=_brief(run["name"]),
                color=f"C{number}",
            )
        axis.set_title(title)
        axis.set_xlabel("update")
    names = list(dict.fromkeys(n for run in runs for n in run["policies"]))
    axis, width = flat[len(CURVES)], 0.8 / len(runs)
    for number, run in enumerate(runs):
        scored = [
            (i, run["policies"][n])
            for i, n in enumerate(names)
            if run["policies"].get(n, {}).get("mean") is not None
        ]
        mean = [s["mean"] for _, s in scored]
        error = [
            [s["mean"] - s["low"] for _, s in scored],
            [s["high"] - s["mean"] for _, s in scored],
        ]
        axis.bar(
            [i + number * width for i, _ in scored],
            mean,
            width,
            yerr=error,
            capsize=2,
            label=_brief(run["name"]),
            color=f"C{number}",
        )
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axis.set_title("success on real test games")
    axis.set_ylim(0, 1)
    flat[0].legend(frameon=False, fontsize=8)
    for empty in flat[len(CURVES) + 1 :]:
        empty.axis("off")
    save_figure(figure, path)
