"""How policies use tools in their test games: measures with intervals, and tables.

trajectories of tasks that say which calls are expected -> each measure of
worldmodel.text.tools.skills with a 95 % interval over games, and the confusion matrix
of tools -> a part of results.json, and Markdown.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.evaluation.statistics import rate, ratio
from worldmodel.data.records import Episode
from worldmodel.text.tools import skills
from worldmodel.text.tools.skills import SkillRate, Skills
from worldmodel.text.tools.tool_calls import expected_calls

PER_SUCCESS = ("calls_per_success", "steps_per_success", "tokens_per_success")
"""Measures that are no shares."""

PER_TURN = ("call_rate", "due_rate")

HEADINGS = {
    "call_precision": "precision",
    "call_recall": "recall",
    "tool_accuracy": "right tool",
    "argument_score": "arguments",
    "valid_json": "valid JSON",
    "valid_schema": "valid schema",
    "execution": "ran",
    "unnecessary_calls": "unnecessary",
    "missed_calls": "missed",
    "repeated_calls": "repeated",
    "redundant_calls": "redundant",
    "void_turns": "void turns",
    "calls_per_success": "calls per success",
    "tokens_per_success": "tokens per success",
}
"""The measures of the table, and the names of its rows."""


def tool_report(
    trajectories: Sequence[Trajectory],
    *,
    seed: int,
    count_tokens: Callable[[str], int] | None = None,
    match: str = "assignment",
) -> dict[str, Any] | None:
    """Return the tool use of a policy, or None where no task expects calls.

    Unscored episodes are left out. `count_tokens` counts those of a text, and
    `match` says which call is which (reward.tools.match).
    """
    parts = _skills(trajectories, match)
    if not parts:
        return None
    games = _by_game(parts, count_tokens)
    return {
        "episodes": len(parts),
        "measures": {
            name: with_interval(name, by_game, seed=seed)
            for name, by_game in sorted(games.items())
            if any(r.count for x in by_game.values() for r in x)
        },
        "confusion": skills.total(part for _, part in parts).confusion,
    }


def game_rates(
    trajectories: Sequence[Trajectory], *, match: str
) -> dict[str, dict[str, list[SkillRate]]]:
    """Return the measures of `tool_report` without tokens, by name and by task id."""
    return _by_game(_skills(trajectories, match), None)


def _by_game(
    parts: Sequence[tuple[Episode, Skills]], count_tokens: Callable[[str], int] | None
) -> dict[str, dict[str, list[SkillRate]]]:
    games: dict[str, dict[str, list[SkillRate]]] = {}
    for e, part in parts:
        rates = {k: v for k, v in part.rates.items() if k not in PER_TURN}
        if count_tokens is not None and e.success is not None:
            won = float(e.success)
            spent = episode_tokens(e, count_tokens) * won
            rates["tokens_per_success"] = SkillRate(spent, won)
        for name, value in rates.items():
            games.setdefault(name, {}).setdefault(e.task.id, []).append(value)
    return games


def _skills(
    trajectories: Sequence[Trajectory], match: str
) -> list[tuple[Episode, Skills]]:
    """Return the scored episodes whose tasks expect calls, each with its skills."""
    return [
        (t.episode, skills.of_episode(t.episode, match))
        for t in trajectories
        if t.error is None and expected_calls(t.episode.task) is not None
    ]


def episode_tokens(episode: Episode, count_tokens: Callable[[str], int]) -> int:
    """Return the tokens of the actions and thoughts of an episode."""
    return sum(
        count_tokens(t.action) + (count_tokens(t.thought) if t.thought else 0)
        for t in episode.transitions
    )


def with_interval(
    measure: str, games: Mapping[str, Sequence[SkillRate]], *, seed: int
) -> dict[str, float]:
    """Return the mean of a measure over games, with its 95 % interval."""
    if measure in PER_SUCCESS:
        sums = [
            (sum(r.hits for r in rates), sum(r.count for r in rates))
            for rates in games.values()
        ]
        return ratio(sums, seed=seed)
    # Each case as the mean of its game: an interval over games needs no more.
    return rate(
        {
            game: [r.hits / r.count for r in rates for _ in range(int(r.count))]
            for game, rates in games.items()
        }
    )


def tool_tables(results: Mapping[str, Any]) -> list[str]:
    """Return Markdown lines: a table of measures by policy, and confusion matrices."""
    rows = {
        name: row["tools"]
        for name, row in results["policies"].items()
        if row.get("tools")
    }
    if not rows:
        return []
    out = ["**tool use**", "", "| | " + " | ".join(rows) + " |"]
    out.append("|---" * (len(rows) + 1) + "|")
    for name, heading in HEADINGS.items():
        cells = [_cell(row["measures"].get(name), name) for row in rows.values()]
        if any(cell != "-" for cell in cells):
            out.append(f"| {heading} | " + " | ".join(cells) + " |")
    out.append("")
    for name, row in rows.items():
        out += [f"**tools expected (rows) and called by {name}**", ""]
        out += [*_confusion(row["confusion"]), ""]
    return out


def _cell(measure: Mapping[str, float] | None, name: str) -> str:
    if measure is None:
        return "-"
    unit, digits = (1.0, 2) if name in PER_SUCCESS else (100.0, 1)
    mean, low, high = (unit * measure[k] for k in ("mean", "low", "high"))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def _confusion(confusion: Mapping[str, Mapping[str, int]]) -> list[str]:
    called = sorted({tool for row in confusion.values() for tool in row})
    return [
        "| | " + " | ".join(tool or "(unreadable)" for tool in called) + " |",
        "|---" * (len(called) + 1) + "|",
        *(
            f"| {want} | " + " | ".join(str(row.get(t, 0)) for t in called) + " |"
            for want, row in confusion.items()
        ),
    ]
