"""Success against real steps and seconds: table and plots of a study's curves.

for each environment and method what it came to with each budget -> a row each, the
real-step factor of some methods, and a panel for each environment.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import ticker

from dreamgym.evaluation.comparisons.step_factor import Factor, Played, real_step_factor
from dreamgym.evaluation.pages.page import save_figure
from dreamgym.evaluation.statistics import difference_text, paired_by_game, rate

Curves = Mapping[str, Sequence[Played]]
"""By method, one entry for each budget, in their order."""
Factors = Mapping[str, Sequence[str]]
"""The methods with which a method is compared, by its name."""

TICKS, FEW_TICKS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), (1.0, 2.0, 5.0)
"""Multiples of a power of ten at which the axis of real steps is labelled: of a narrow
range, and of one of WIDE or more."""
WIDE = 6.0
"""Largest real steps, in units of the smallest ones, that leave room for few labels."""


def tick_multiples(low: float, high: float) -> tuple[float, ...]:
    """Return the multiples of a power of ten to label on an axis from low to high."""
    return FEW_TICKS if high > WIDE * low else TICKS


class Axis(NamedTuple):
    """What success is plotted against: its title, and the number of each seed."""

    title: str
    numbers: Callable[[Played], Mapping[int, float | int]]


STEPS = Axis("real steps, everything counted", lambda played: played.steps)
SECONDS = Axis("seconds, test games left out", lambda played: played.seconds)


def mean(numbers: Mapping[int, float | int]) -> float:
    """Return the mean over seeds."""
    return sum(numbers.values()) / len(numbers)


def success(played: Played) -> dict[str, float]:
    """Return the success over the games of all seeds, with its interval."""
    games: dict[str, list[float]] = {}
    for won in played.games.values():
        for task, value in won.items():
            games.setdefault(task, []).append(value)
    return rate(games)


def factors_of(curves: Curves, factors: Factors) -> dict[tuple[str, int], Factor]:
    """Return the factors by method and number of the budget."""
    out: dict[tuple[str, int], Factor] = {}
    for name, others in factors.items():
        present = [curves[o] for o in others if curves.get(o)]
        for number, played in enumerate(curves.get(name, ())):
            factor = real_step_factor(played, present) if present else None
            if factor is not None:
                out[name, number] = factor
    return out


def table(panels: Mapping[str, Curves], factors: Factors) -> str:
    """Return Markdown: a row for each environment, method and budget that ran."""
    every = [
        p for curves in panels.values() for points in curves.values() for p in points
    ]
    timed = any(played.seconds for played in every)
    head = ["environment", "method", "real steps", *["seconds"] * timed]
    head += ["success", "games", "seeds"]
    head += ["real-step factor"] * bool(factors)
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for environment, curves in panels.items():
        factors_by_name = factors_of(curves, factors)
        for name, points in curves.items():
            for number, played in enumerate(points):
                s, factor = success(played), factors_by_name.get((name, number))
                row = [
                    environment,
                    name,
                    f"{mean(played.steps):,.0f}",
                    *[f"{mean(played.seconds):,.0f}" if played.seconds else ""] * timed,
                    f"{s['mean']:.3f} [{s['low']:.3f}, {s['high']:.3f}]",
                    f"{s['count']:,.0f}",
                    str(len(played.games)),
                ]
                row += [factor.text() if factor else ""] * bool(factors)
                lines.append("| " + " | ".join(row) + " |")
    if factors:
        lines += ["", *differences(panels, factors)]
        lines += ["", *(_meaning(name, others) for name, others in factors.items())]
    return "\n".join(lines)


def differences(panels: Mapping[str, Curves], factors: Factors) -> list[str]:
    """Return a line for each method with a factor, other method and equal budget.

    It has the difference of success, paired by game in each seed that both played.
    """
    out = []
    for environment, curves in panels.items():
        for name, others in factors.items():
            pairs = [
                (played, other, second)
                for played in curves.get(name, ())
                for other in others
                for second in curves.get(other, ())
                if played.budget == second.budget
            ]
            out += [
                f"- {environment}, budget {played.budget or 'none'}: {name} minus "
                f"{other}, paired by game {difference_text(_paired(played, second))}"
                for played, other, second in pairs
            ]
    return out


def _paired(first: Played, second: Played) -> dict[str, float | None]:
    rows = [
        (task, won, second.games[seed][task])
        for seed, games in sorted(first.games.items())
        for task, won in games.items()
        if task in second.games.get(seed, {})
    ]
    return paired_by_game(rows, seed=0, of_wins=True)


def _meaning(name: str, others: Sequence[str]) -> str:
    return (
        f"The real-step factor of {name!r}: the real steps with which "
        f"{' or '.join(map(repr, others))} first reaches its success (the fewest, "
        "interpolated in their logarithm), divided by its own. Above 1 it needs fewer. "
        "'>=': not reached with the largest budget; '<=': exceeded with the smallest."
    )


def plot(panels: Mapping[str, Curves], path: Path, along: Axis = STEPS) -> bool:
    """Plot a panel for each environment along an axis; return whether there is one.

    Points whose number on the axis is not known are left out.
    """
    points_on_axis = {
        environment: {
            name: [played for played in points if along.numbers(played)]
            for name, points in curves.items()
        }
        for environment, curves in panels.items()
    }
    filled = {name: c for name, c in points_on_axis.items() if any(c.values())}
    if not filled:
        return False
    columns = min(len(filled), 3)
    rows = -(-len(filled) // columns)
    figure, axes = plt.subplots(
        rows,
        columns,
        sharey=True,
        squeeze=False,
        figsize=(1.5 + 3.6 * columns, 1.0 + 3.2 * rows),
    )
    names = list(dict.fromkeys(n for curves in filled.values() for n in curves))
    for axis, (environment, curves) in zip(axes.flat, filled.items(), strict=False):
        for name, points in curves.items():
            rates = [success(p) for p in points]
            means = [r["mean"] for r in rates]
            axis.errorbar(
                [mean(along.numbers(p)) for p in points],
                means,
                yerr=[
                    [max(r["mean"] - r["low"], 0.0) for r in rates],
                    [max(r["high"] - r["mean"], 0.0) for r in rates],
                ],
                color=f"C{names.index(name)}",
                marker="o",
                markersize=4,
                capsize=2,
                label=name,
            )
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        axis.xaxis.set_major_locator(ticker.LogLocator(subs=tick_multiples(low, high)))
        axis.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.set_ylim(0, 1)
        axis.set_title(environment)
        axis.set_xlabel(along.title)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(filled) :]:
        axis.set_visible(False)
    axes[0][0].set_ylabel("success on test games")
    handles, labels = axes[0][0].get_legend_handles_labels()
    axes[0][0].legend(handles, labels, fontsize=7, loc="best")
    save_figure(figure, path)
    return True
