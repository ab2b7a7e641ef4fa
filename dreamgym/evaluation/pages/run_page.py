"""The page of a run, report.html: its request, its results, and next steps.

results, curves, scorecard, views of episodes -> one self-contained HTML file. They are
read from the run directory by dreamgym/commands/inspection/report.py.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.evaluation.bounds import says_something
from dreamgym.evaluation.comparisons.episode_comparison import LEGEND
from dreamgym.evaluation.diagnosis.verdict import benefit_sentence
from dreamgym.evaluation.leading_numbers import leading, verdict
from dreamgym.evaluation.pages import page
from dreamgym.evaluation.pages.curves import Curve, figures
from dreamgym.evaluation.report import (
    copies_sentence,
    counts_text,
    distinct_pairs,
    family_groups,
)
from dreamgym.evaluation.statistics import difference_text

POLICIES = {
    "untrained": "the initial policy, a control",
    "bc": "behaviour cloning of demonstrations",
    "warmstart": "after early experience; the dream begins here",
    "dpo": "trained from preference pairs alone, without a dream",
    "expert_iteration": "after imitating what it won in the dream",
    "dream": "trained in the dream",
    "s2r": "trained in the dream, then fine-tuned in reality",
    "planner": "the same, planning in the dream at play",
    "real_only": "trained in reality alone, with the fine-tuning's budget",
    "real_only_total": "trained in reality alone, with all real steps of the dream",
}
"""A description of each policy of a run."""


class RunFacts(NamedTuple):
    """What a page shows of a run besides its results; everything is shown as text.

    `request` are pairs of a name and a value, `next_steps` of a sentence and commands,
    `stages` have name, seconds and real steps. `episodes` are views
    (episode_comparison), and `episodes_text` says which they are, or why there are
    none.
    """

    title: str
    request: Sequence[tuple[str, str]]
    settings: Sequence[str]
    stages: Sequence[Mapping[str, Any]]
    episodes: Sequence[Mapping[str, Any]]
    episodes_text: str
    next_steps: Sequence[tuple[str, Sequence[str]]]
    scorecard_command: str
    version: str


def write_page(
    path: Path,
    results: Mapping[str, Any],
    curves: Mapping[str, Curve],
    facts: RunFacts,
) -> None:
    """Write report.html of a run."""
    scorecard = results.get("fidelity")
    if scorecard:
        scorecard = scorecard | {"real_games": benefit_sentence(results)}
    page.write(
        path,
        "run.html",
        **facts._asdict(),
        verdict=_sentences(results.get("verdict")) or _summary(results),
        notes=_notes(results),
        skipped=results.get("skipped"),
        tables=_tables(results),
        bound=_bound(results.get("bound")),
        figures=figures(curves),
        leading=leading(scorecard) if scorecard else [],
        scorecard_verdict=verdict(scorecard) if scorecard else "",
        transitions=scorecard["transitions"] if scorecard else 0,
        legend=LEGEND,
    )


def settings_lines(config: Mapping[str, Any], versions: Mapping[str, str]) -> list[str]:
    """Return settings and versions as lines of indented JSON."""
    text = json.dumps({"settings": config, "versions": versions}, indent=2)
    return text.splitlines()


def _bound(bound: Mapping[str, Any] | None) -> str | None:
    return bound["sentence"] if bound and says_something(bound) else None


def _sentences(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(x) for x in value] if isinstance(value, list | tuple) else []


def _summary(results: Mapping[str, Any]) -> list[str]:
    """Return one sentence on the last policy and the one that it is compared with."""
    pairs = [
        (name.partition("_minus_")[::2], d)
        for name, d in results.get("paired", {}).items()
        if d["mean"] is not None
    ]
    for (policy, other), d in pairs[:1]:
        a, b = (results["policies"][n]["success"] for n in (policy, other))
        return [
            f"The policy {policy} succeeds in {_percent(a['mean'])} of "
            f"{a['episodes']} real test games ({_percent(a['low'])} to "
            f"{_percent(a['high'])}), {other} in {_percent(b['mean'])}: "
            f"{_decision(d)}."
        ]
    return []


def _decision(d: Mapping[str, Any]) -> str:
    """Say what the interval of a difference decides."""
    if d["low"] > 0:
        return "better, as the interval of the difference lies above 0"
    if d["high"] < 0:
        return "worse, as the interval of the difference lies below 0"
    return "not decided, as the interval of the difference holds 0"


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each policy that has a note, or games without a score.

    The first one says which policies are the same.
    """
    same = copies_sentence(results["policies"], results.get("copies", {}))
    out = [same] if same else []
    for name, row in results["policies"].items():
        if row.get("note"):
            out.append(f"{name}: {row['note']}.")
        if row.get("errors"):
            games = row["success"]["episodes"] + row["success"]["unscored"]
            out.append(
                f"{name}: {row['success']['unscored']} of {games} games were not "
                f"scored: {counts_text(row['errors'])}."
            )
    return out


def _tables(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the table of all families, then that of each one if there are more."""
    return [
        {
            "title": title,
            "rows": [_row(name, row) for name, row in part["policies"].items()],
            "differences": [
                _difference(name, d)
                for name, d in distinct_pairs(part, results.get("copies", {}))
            ],
        }
        for title, part in family_groups(results)
        if part["policies"]
    ]


def _row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    s = row["success"]
    unscored = f" (+{s['unscored']} unscored)" if s["unscored"] else ""
    return {
        "name": name,
        "meaning": POLICIES.get(name, ""),
        "mean": s["mean"],
        "low": s["low"],
        "high": s["high"],
        "success": _percent(s["mean"]),
        "interval": f"{_percent(s['low'])} to {_percent(s['high'])}",
        "episodes": f"{s['episodes']}{unscored}",
        "mean_return": _number(row["mean_return"]),
        "mean_steps": _number(row["mean_steps"]),
        "invalid": _percent(row["invalid_action_rate"]),
        "real": f"{row['real_transitions']:,}",
    }


def _difference(name: str, d: Mapping[str, Any]) -> dict[str, str]:
    games = f", {d['episodes']} games" if d.get("episodes") else ""
    return {
        "name": name.replace("_minus_", " minus "),
        "value": difference_text(d) + games,
        "meaning": "" if d["mean"] is None else _decision(d),
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"  # noqa: RUF001


def _number(value: float | None) -> str:
    if value is None:
        return "–"  # noqa: RUF001
    return f"{value:.2f}" if abs(value) < 1e7 else f"{value:.3g}"
