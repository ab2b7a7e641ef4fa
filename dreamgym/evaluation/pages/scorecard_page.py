"""Shows the fidelity scorecard in the terminal, and as a page with plots."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.leading_numbers import headlines, leading, rate_text, verdict
from dreamgym.evaluation.pages import page
from dreamgym.evaluation.pages.page import GREY, PLOT_STYLE, figure_uri, save_figure
from dreamgym.evaluation.pages.scorecard_entries import groups
from dreamgym.evaluation.printable import printable


def summary(scorecard: dict[str, Any]) -> str:
    """Return the leading numbers, a line each, and the verdict."""
    return f"{_aligned(headlines(scorecard))}\n{verdict(scorecard)}"


def _aligned(pairs: Iterable[tuple[str, str]]) -> str:
    pairs = list(pairs)
    width = max(len(label) for label, _ in pairs)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in pairs)


def rows(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (label, value with interval) of the whole scorecard, in reading order."""
    yield from headlines(scorecard)
    for group in groups(scorecard):
        yield from ((entry.label, entry.value) for entry in group.entries)


def table(scorecard: dict[str, Any]) -> str:
    """Return the whole scorecard for a terminal, with rates by family and actor."""
    out = [
        f"{scorecard['transitions']} held-out transitions of whole episodes, "
        "95 % intervals",
        "",
        verdict(scorecard),
        "",
        _aligned(headlines(scorecard)),
    ]
    for group in groups(scorecard):
        pairs = [(f"  {entry.label}", entry.value) for entry in group.entries]
        out += ["", f"{group.title}: {group.meaning}", _aligned(pairs)]
    for key, label in (("families", "family"), ("sources", "who acted")):
        parts = scorecard.get(key, {})
        out += ["", f"by {label}"] if parts else []
        out += [
            f"{printable(name) or '(none)'}: predictable "
            f"{rate_text(part['exact']['predictable'])}, "
            f"changed {rate_text(part['exact']['changed'])}, "
            f"known facts kept {rate_text(part['kept']['all'])}"
            for name, part in parts.items()
        ]
    return "\n".join([*out, *[f"\n{note}" for note in _notes(scorecard)]])


def _notes(scorecard: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reader must know about how the scorecard was measured."""
    if scorecard.get("failed_replays"):
        yield f"{scorecard['failed_replays']} replays in the environment failed"
    if scorecard.get("seen_tasks"):
        yield f"{scorecard['seen_tasks']} of its tasks were in the training data"


def side_by_side(scorecards: dict[str, dict[str, Any]]) -> str:
    """Return several scorecards as one table, a column for each."""
    columns = {name: dict(rows(scorecard)) for name, scorecard in scorecards.items()}
    labels = list(dict.fromkeys(x for column in columns.values() for x in column))
    label_width = max(map(len, labels))
    width = 2 + max(len(v) for column in columns.values() for v in column.values())
    lines = [" " * label_width + "  " + "".join(f"{name:<{width}}" for name in columns)]
    for label in labels:
        cells = "".join(f"{c.get(label, '-'):<{width}}" for c in columns.values())
        lines.append(f"{label:<{label_width}}  {cells}".rstrip())
    return "\n".join(lines)


# --- plots -------------------------------------------------------------------


def _bars(axis: Any, scorecard: dict[str, Any]) -> None:
    kinds = list(scorecard["exact"])[::-1]  # the first stands at the top
    for offset, key, label in (
        (0.2, "exact", "experience model"),
        (-0.2, "copy", "copy the state"),
    ):
        widths = [scorecard[key][k]["mean"] or 0.0 for k in kinds]
        axis.barh([i + offset for i in range(len(kinds))], widths, 0.4, label=label)
    names = [
        f"{k.replace('_', ' ')} (n={scorecard['exact'][k]['count']})" for k in kinds
    ]
    axis.set_yticks(range(len(kinds)), names)
    axis.set_xlabel("next state exact")
    axis.set_xlim(0, 1)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


def plot_states(scorecard: dict[str, Any], path: Path) -> None:
    """Plot exact next states by kind, next to the copy-the-state baseline."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    _bars(axis, scorecard)
    axis.set_title("fidelity on held-out real transitions", pad=30)
    save_figure(figure, path)


def _reliability(axis: Any, scorecard: dict[str, Any]) -> None:
    bins = scorecard["confidence"]["bins"]
    axis.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    axis.plot([b["confidence"] for b in bins], [b["right"] for b in bins], "o-")
    axis.set_xlabel("confidence")
    axis.set_ylabel("share right")
    axis.set_xlim(-0.02, 1.02)
    axis.set_ylim(-0.02, 1.02)


def _drift(axis: Any, scorecard: dict[str, Any]) -> None:
    for name, label in (("exact", "all"), ("predictable", "predictable")):
        rates = scorecard["open_loop"][name]
        axis.plot(
            range(1, len(rates) + 1), [x["mean"] for x in rates], "o-", label=label
        )
    axis.set_xlabel("steps on dreamed states")
    axis.set_ylabel("state still the real one")
    axis.set_ylim(-0.02, 1.02)
    axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)


PLOTS = (
    (
        _bars,
        "Next states by kind",
        "Share of next states with every line right, next to the baseline that copies "
        "the state.",
    ),
    (
        _reliability,
        "Calibration",
        "Share of right answers by confidence; on the dotted line confidence is what "
        "it says. Reveals are left out.",
    ),
    (
        _drift,
        "Drift in whole episodes",
        "Share of episodes in which the dreamed state is still the real one, by the "
        "number of steps dreamed.",
    ),
)


def figures(scorecard: dict[str, Any]) -> list[dict[str, str]]:
    """Return title, caption and data URI of each plot of a scorecard."""
    out = []
    for draw, title, caption in PLOTS:
        if draw is _drift and "open_loop" not in scorecard:
            continue
        with matplotlib.rc_context(PLOT_STYLE):
            figure, axis = plt.subplots(figsize=(4.4, 3.2), layout="constrained")
            draw(axis, scorecard)
            uri = figure_uri(figure)
        out.append({"title": title, "caption": caption, "uri": uri})
    return out


def _breakdown(scorecard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a table for families and one for actors: names, and rates by kind."""
    out = []
    for key, title in (("families", "By family"), ("sources", "By who acted")):
        parts = [
            {
                "name": name or "(none)",
                "transitions": part["transitions"],
                "rates": [
                    rate_text(rate)
                    for rate in (
                        part["exact"]["predictable"],
                        part["exact"]["changed"],
                        part["kept"]["all"],
                        part["reward"]["recall"],
                        part["done"]["recall"],
                    )
                ],
            }
            for name, part in scorecard.get(key, {}).items()
            if part["transitions"]
        ]
        if parts:
            out.append({"title": title, "parts": parts})
    return out


def write_page(scorecard: dict[str, Any], path: Path) -> None:
    """Write one self-contained HTML file with all numbers and the plots."""
    on_policy = [
        {"name": name, "leading": leading(part), "verdict": verdict(part)}
        for name, part in scorecard.get("on_policy", {}).items()
    ]
    page.write(
        path,
        "scorecard.html",
        title="Scorecard of a dream",
        scorecard=scorecard,
        leading=leading(scorecard),
        verdict=verdict(scorecard),
        on_policy=on_policy,
        groups=groups(scorecard),
        figures=figures(scorecard),
        breakdown=_breakdown(scorecard),
        notes=list(_notes(scorecard)),
    )
