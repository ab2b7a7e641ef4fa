"""The form of results.json, as far as reports and verdicts read it.

the object of the file -> nothing, or an error with file, field and what was expected
"""

from pathlib import Path
from typing import Any

from worldmodel.data.json_reading import Where, check_type, field, strings

_FIGURES = {
    "exact": ("predictable", "forgotten"),
    "copy": ("predictable",),
    "reward": ("recall",),
    "done": ("recall", "predictable"),
    "copying": ("state_unseen",),
    "instruction": ("agree", "shown", "elsewhere"),
    "missing_words": ("new", "earlier"),
}
"""The figures of a scorecard that are read, by the part that holds them."""
_REQUIRED = {"exact": "predictable", "reward": "recall", "done": "recall"}
"""The figures that every scorecard has."""


def check_results(results: Any, path: Path) -> None:
    """Raise an error where results do not have the form of those of a run.

    Raises:
      RecordError: the message names the file, the field and what was expected.
    """
    where = Where(path, 0)
    _check_group(results, where)
    families = field(results, "families", dict, where, {})
    for name, group in families.items():
        _check_group(group, where.at("families").at(name))
    copies = field(results, "copies", dict, where, {})
    for name in copies:
        field(copies, name, str, where.at("copies"))
    field(results, "versions", dict, where, {})
    strings(results, "verdict", where)
    field(results, "skipped", str, where, None)
    if (budget := field(results, "budget", dict, where, None)) is not None:
        for name in ("real_steps", "spent"):
            field(budget, name, int, where.at("budget"))
        field(budget, "control_minimum", int, where.at("budget"), 0)
    _check_rounds(results, where)
    if (bound := field(results, "bound", dict, where, None)) is not None:
        for name in ("total", "span"):
            field(bound, name, float, where.at("bound"), None)
        field(bound, "sentence", str, where.at("bound"))
    if (scorecard := field(results, "fidelity", dict, where, None)) is not None:
        _check_scorecard(scorecard, where.at("fidelity"))
    if (off_policy := field(results, "off_policy", dict, where, None)) is not None:
        _check_off_policy(off_policy, where.at("off_policy"))


def _check_group(group: Any, where: Where) -> None:
    """Check the policies, and their differences, of all games or of a family."""
    policies = field(group, "policies", dict, where)
    for name, row in policies.items():
        at = where.at("policies").at(name)
        success = field(row, "success", dict, at)
        _check_interval(success, at.at("success"))
        field(success, "unscored", int, at.at("success"))
        for key in ("mean_return", "mean_steps", "invalid_action_rate"):
            _check_number(row, key, at)
        field(row, "real_transitions", int, at)
        field(row, "note", str, at, None)
        errors = field(row, "errors", dict, at, None) or {}
        for key in errors:
            field(errors, key, int, at.at("errors"))
        if (tools := field(row, "tools", dict, at, None)) is not None:
            for key in ("measures", "confusion"):
                field(tools, key, dict, at.at("tools"))
    paired = field(group, "paired", dict, where, {})
    for name, difference in paired.items():
        at = where.at("paired").at(name)
        unknown = [x for x in name.split("_minus_") if x not in policies]
        if unknown or name.count("_minus_") != 1:
            raise at.error("a difference of two of its policies, A_minus_B", name)
        _check_interval(difference, at)


def _check_rounds(results: Any, where: Where) -> None:
    for name, rows in field(results, "rounds", dict, where, {}).items():
        at = where.at("rounds").at(name)
        for number, row in enumerate(check_type(rows, list, at)):
            field(row, "real_transitions", int, at.at(f"[{number}]"))


def _check_scorecard(scorecard: dict[str, Any], where: Where) -> None:
    """Check the figures of a scorecard that a verdict on a run may name."""
    for part, names in _FIGURES.items():
        figures = field(scorecard, part, dict, where, {})
        if part in _REQUIRED:
            field(figures, _REQUIRED[part], dict, where.at(part))
        for name in names:
            if name in figures:
                _check_rate(figures[name], where.at(part).at(name))
    for name in ("hidden_state", "training_ends"):
        if (figure := scorecard.get(name)) is not None:
            _check_rate(figure, where.at(name))
    shares = field(scorecard, "share", dict, where, {})
    field(shares, "forgotten", float, where.at("share"), 0.0)
    field(scorecard, "transitions", int, where, 0)
    if "instruction" in scorecard:
        strings(scorecard["instruction"], "words", where.at("instruction"))


def _check_off_policy(off_policy: dict[str, Any], where: Where) -> None:
    policies = field(off_policy, "policies", dict, where)
    for name, row in policies.items():
        at = where.at("policies").at(name)
        agreement = field(row, "action_agreement", dict, at)
        _check_figure(agreement, at.at("action_agreement"))
        won = field(row, "dream_success", dict, at)
        _check_number(won, "mean", at.at("dream_success"))
        field(won, "episodes", int, at.at("dream_success"))
    if field(off_policy, "outcome_agreement", dict, where, None) is not None:
        agreement = off_policy["outcome_agreement"]
        _check_figure(agreement, where.at("outcome_agreement"))


def _check_interval(row: Any, where: Where) -> None:
    """Check a mean over games, null where none was scored, and its interval."""
    _check_number(row, "mean", where)
    for key in ("low", "high"):
        _check_number(row, key, where)
        if row["mean"] is not None:
            field(row, key, float, where)
    field(row, "episodes", int, where)


def _check_rate(rate: Any, where: Where) -> None:
    """Check a figure of a scorecard, whose cases may have unequal weights."""
    _check_figure(rate, where)
    if rate["count"]:
        field(rate, "effective", float, where)


def _check_figure(figure: Any, where: Where) -> None:
    """Check the number of cases of a figure, and its mean, null without a case."""
    if field(figure, "count", float, where):
        field(figure, "mean", float, where)
    else:
        _check_number(figure, "mean", where)


def _check_number(row: Any, key: str, where: Where) -> None:
    """Check a number that is null where nothing was measured."""
    if field(row, key, object, where) is not None:
        field(row, key, float, where)
