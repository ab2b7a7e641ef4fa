"""The report of a run: the final table, and plots of success and curves."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dreamgym.evaluation.bounds import says_something
from dreamgym.evaluation.pages.curves import plot_curves
from dreamgym.evaluation.pages.page import save_figure
from dreamgym.evaluation.printable import printable, printable_lines
from dreamgym.evaluation.statistics import difference_text
from dreamgym.evaluation.tool_report import tool_tables
from worldmodel.data.records import atomic_write

SPREAD = 14
"""Points of success by which trainings of one seed have differed (docs/RESULTS.md: 69
and 83 % of expert iteration, on commits that should not differ by as much)."""

UNSPENT = 0.1
"""The share of a budget above which it is said how much of it is unspent."""

_HEAD = (
    "policy",
    "success",
    "95 % interval",
    "episodes",
    "return",
    "steps",
    "invalid",
    "real transitions",
)


def family_groups(results: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the pooled results, and those of each family if there are several."""
    families = results.get("families", {})
    if len(families) < 2:
        return [("all games", results)]
    named = [(name or "(no family)", group) for name, group in families.items()]
    return [("all families", results), *named]


def table(results: dict[str, Any]) -> str:
    """Return the final table in Markdown, pooled and by family, with differences."""
    out = []
    for title, group in family_groups(results):
        if not group["policies"]:
            continue
        out += [f"**{title}**", "", "| " + " | ".join(_HEAD) + " |", "|---" * 8 + "|"]
        out += [_row(name, row) for name, row in group["policies"].items()]
        out.append("")
        for name, d in distinct_pairs(group, results.get("copies", {})):
            out.append(f"- {name.replace('_', ' ')}: {difference_text(d)}")
        out.append("")
    out += _lines_below(results)
    return "\n".join(out) + "\n"


def print_table(results: dict[str, Any], console: Console) -> None:
    """Print the final table: with rich on a terminal, as Markdown elsewhere."""
    if not console.is_terminal:
        for line in printable_lines(table(results)):
            console.print(Text(line), soft_wrap=True)
        return
    for title, group in family_groups(results):
        if not group["policies"]:
            continue
        rich_table = Table(
            title=Text(printable(title), "bold"),
            title_justify="left",
            box=SIMPLE_HEAD,
            pad_edge=False,
        )
        for i, name in enumerate(_HEAD):
            rich_table.add_column(name, justify="left" if i == 0 else "right")
        for name, row in group["policies"].items():
            cells = [printable(cell.replace("\\*", "*")) for cell in _cells(name, row)]
            rich_table.add_row(*map(Text, cells))
        console.print(rich_table)
        for name, d in distinct_pairs(group, results.get("copies", {})):
            pair = f"{printable(name).replace('_', ' ')}: {difference_text(d)}"
            console.print(Text(pair, "dim"))
        console.print()
    for line in _lines_below(results):
        console.print(Text(printable(line)))


def _lines_below(results: dict[str, Any]) -> list[str]:
    """Return what stands below the tables of policies."""
    parts = (_copies, _trainings, tool_tables, _notes, _rounds, _closing)
    return [line for part in parts for line in part(results)]


def distinct_pairs(
    group: Mapping[str, Any], copies: Mapping[str, str]
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (name, difference) of the pairs that are not one policy under two names.

    An equal difference of the same two policies under other names is left out, too.

    Args:
      group: holds the differences by name, `paired`.
      copies: maps the name of a policy to that of the policy that it is a copy of.
    """
    out: dict[str, Mapping[str, Any]] = {}
    listed: list[tuple[str, str, Mapping[str, Any]]] = []
    for pair, difference in group.get("paired", {}).items():
        a, b = (copies.get(name, name) for name in pair.split("_minus_"))
        if a != b and (a, b, difference) not in listed:
            listed.append((a, b, difference))
            out[pair] = difference
    return list(out.items())


def copies_sentence(policies: Iterable[str], copies: Mapping[str, str]) -> str:
    """Return one sentence on which of these policies are the same, '' if none are."""
    groups: dict[str, list[str]] = {}
    for name in policies:
        groups.setdefault(copies.get(name, name), []).append(name)
    texts = [
        f"{', '.join(names[:-1])} and {names[-1]} are one policy"
        for names in groups.values()
        if len(names) > 1
    ]
    if not texts:
        return ""
    return (
        f"{'; '.join(texts)}: training did not help, or was left out, so that the "
        "later name stands for the earlier policy."
    )


def _copies(results: dict[str, Any]) -> list[str]:
    sentence = copies_sentence(results["policies"], results.get("copies", {}))
    return [sentence, ""] if sentence else []


def _trainings(results: dict[str, Any]) -> list[str]:
    """Return what the intervals of paired differences leave out."""
    paired = results.get("paired", {}).items()
    trained = [d for name, d in paired if not name.endswith("_bc")]
    if not any(d["episodes"] for d in trained):
        return []
    return [
        "The intervals are over games, of one training. Trainings of one seed have "
        f"differed by up to {SPREAD} points of success: `--name again --set "
        "train.seed=1` makes another one.",
        "",
    ]


def _rounds(results: dict[str, Any]) -> list[str]:
    """A line for each round of real play, refit and dream that fine-tuned a policy."""
    out = []
    for name, rows in results.get("rounds", {}).items():
        for number, row in enumerate(rows, 1):
            line = (
                f"- {name}, round {number}: {row['real_transitions']:,} real steps of "
                "fine-tuning so far"
            )
            if "real_demonstrations" in row:
                line += (
                    f", {row['real_demonstrations']} tasks won in reality since the "
                    "collection began"
                )
            if "real_success" in row:
                line += f", {percentage(row['real_success'])} of its episodes won"
            if "exact_on_policy" in row:
                line += (
                    f", {percentage(row['exact_on_policy'])} of their predictable next "
                    "states right before the refit"
                )
            if "exact_predictable" in row:
                line += (
                    f", {percentage(row['exact_predictable'])} of those of dev tasks "
                    "after it"
                    if "exact_on_policy" in row
                    else f", {percentage(row['exact_predictable'])} of predictable "
                    "next states right after the refit"
                )
            if "dreamed_success" in row:
                line += f", {percentage(row['dreamed_success'])} won in the dream"
            if "dreamed_demonstrations" in row:
                line += f", {row['dreamed_demonstrations']} more in the dream"
            out.append(line)
    return [*out, ""] if out else []


def _closing(results: dict[str, Any]) -> list[str]:
    """Return the lines after the tables: why there are none, and the bound."""
    out = []
    if "skipped" in results:
        out.append(f"real stages {results['skipped']}")
    if budget := results.get("budget"):
        unspent = budget["real_steps"] - budget["spent"]
        out.append(
            f"real steps of the run, test games left out: {budget['spent']:,} of a "
            f"budget of {budget['real_steps']:,}"
            + f" ({unspent:,} are unspent)"
            * (unspent > UNSPENT * budget["real_steps"])
        )
    bound = results.get("bound")
    if bound and says_something(bound):
        out.append(bound["sentence"])
    if results.get("verdict"):
        out += ["", *results["verdict"]]
    return out


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
    return "| " + " | ".join(_cells(name, row)) + " |"


def _cells(name: str, row: dict[str, Any]) -> list[str]:
    s = row["success"]
    return [
        name + " \\*" * bool(row.get("note")),
        percentage(s["mean"]),
        interval_text(s),
        games_text(s),
        _number(row["mean_return"]),
        _number(row["mean_steps"]),
        percentage(row["invalid_action_rate"]),
        f"{row['real_transitions']:,}",
    ]


def games_text(success: Mapping[str, Any]) -> str:
    """Format the number of games behind a rate, and of those that were not scored."""
    unscored = success["unscored"]
    return str(success["episodes"]) + (f" (+{unscored} unscored)" if unscored else "")


def interval_text(success: Mapping[str, Any]) -> str:
    """Format the 95 % interval of a rate."""
    return f"{percentage(success['low'])} to {percentage(success['high'])}"


def percentage(value: float | None) -> str:
    """Format a share as a percentage with one decimal, "-" where there is none."""
    return "-" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1e7 else f"{value:.3g}"


def write(root: Path, results: dict[str, Any]) -> None:
    """Write table.md and plots/ of a run."""
    with atomic_write(root / "table.md") as file:
        file.write(table(results))
    plot_curves(root / "curves", root / "plots/curves.png")
    if results["policies"]:
        plot_success(results, root / "plots/success.png")


def plot_success(results: dict[str, Any], path: Path) -> None:
    """Plot success with Wilson intervals, pooled and by family."""
    groups = family_groups(results)
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
    save_figure(figure, path)
