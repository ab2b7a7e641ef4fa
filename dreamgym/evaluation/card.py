"""The evaluation card of a policy: five things to know, each with n and an interval.

trajectories of test games, results of perturbed games, kept rollouts -> success,
efficiency, robustness, safety, traceability -> rows of (name, mean, interval, n).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import counts_as_invalid
from dreamgym.evaluation.evaluate import costs
from dreamgym.evaluation.statistics import percent, rate, ratio
from dreamgym.evaluation.tool_report import episode_tokens
from worldmodel.data.records import Episode, Transition
from worldmodel.text.tools.tool_calls import expected_calls, read_action

UNCHANGED = "nothing changed in any game"
"""What is said of a perturbation that changes nothing that a policy reads."""
PARTS = ("success", "efficiency", "robustness", "safety", "traceability")


class CardRow(NamedTuple):
    """One number of a card; `mean` is None where it was not measured, and why."""

    part: str
    name: str
    mean: float | None
    low: float | None
    high: float | None
    count: int
    unit: str
    note: str = ""


def _by_game(
    episodes: Sequence[Episode], value: Callable[[Episode], Sequence[float]]
) -> dict[str, list[float]]:
    games: dict[str, list[float]] = {}
    for e in episodes:
        games.setdefault(e.task.id, []).extend(value(e))
    return {game: values for game, values in games.items() if values}


def _share(
    part: str, name: str, games: Mapping[str, Sequence[float]], unit: str
) -> CardRow:
    if not games:
        return CardRow(part, name, None, None, None, 0, unit, "no cases")
    r = rate(games)
    return CardRow(part, name, r["mean"], r["low"], r["high"], int(r["count"]), unit)


def _per_success(name: str, sums: Sequence[tuple[float, float]]) -> CardRow:
    if not any(won for _, won in sums):
        return CardRow("efficiency", name, None, None, None, 0, "won games", "none won")
    r = ratio(sums, seed=0)
    count = int(r["count"])
    if count == 1:  # which says nothing of others
        return CardRow("efficiency", name, r["mean"], None, None, 1, "won game")
    return CardRow(
        "efficiency", name, r["mean"], r["low"], r["high"], count, "won games"
    )


def card(
    trajectories: Sequence[Trajectory],
    *,
    count_tokens: Callable[[str], int] | None = None,
    robustness: Mapping[str, Any] | None = None,
    policy: str = "",
    updates: int = 0,
    kept_updates: int = 0,
    counters: Mapping[str, Callable[[Sequence[Transition]], float]] | None = None,
    worst_shares: Mapping[str, float] | None = None,
) -> list[CardRow]:
    """Return the rows of a policy's card.

    Args:
      trajectories: its test games; unscored ones only count as such.
      count_tokens: counts those of a text.
      robustness: the content of robustness.json, if it was measured.
      policy: its name there.
      updates: updates of its training.
      kept_updates: those whose rollouts were kept.
      counters: of the costs that the environment does not report (`costs`).
      worst_shares: the costliest share of games that a limit is of, by its cost.
    """
    scored = [t for t in trajectories if t.error is None]
    episodes = [t.episode for t in scored]
    success = _by_game(episodes, lambda e: [float(bool(e.success))])
    answered = {str(i): [float(t.error is None)] for i, t in enumerate(trajectories)}
    rows = [
        _share("success", "games won", success, "games"),
        _share("success", "games that were scored", answered, "games"),
        *_efficiency(episodes, count_tokens),
        *_robustness(robustness, policy),
        _share("safety", "invalid actions", _by_game(episodes, _invalid), "steps"),
    ]
    for name, r in costs(scored, counters, worst_shares).items():
        rows.append(_cost(f"cost of a game: {name}", r))
        if (worst := r.get("worst")) is not None:
            share = percent(worst["share"])
            rows.append(_cost(f"cost of the worst {share} of games: {name}", worst))
    thoughts = _by_game(
        episodes, lambda e: [float(bool(t.thought)) for t in e.transitions]
    )
    rows.append(_share("traceability", "steps with a thought", thoughts, "steps"))
    kept = {str(i): [float(i < kept_updates)] for i in range(updates)}
    rows.append(_share("traceability", "updates with rollouts", kept, "updates"))
    return rows


def _cost(name: str, r: Mapping[str, Any]) -> CardRow:
    values = (r["mean"], r["low"], r["high"], int(r["count"]))
    return CardRow("safety", name, *values, "games")


def _invalid(episode: Episode) -> list[float]:
    return [float(counts_as_invalid(t)) for t in episode.transitions]


def _efficiency(
    episodes: Sequence[Episode], count_tokens: Callable[[str], int] | None
) -> list[CardRow]:
    counts: dict[str, Callable[[Episode], float]] = {
        "steps of a won game": lambda e: len(e.transitions)
    }
    if any(expected_calls(e.task) is not None for e in episodes):
        counts["calls of a won game"] = lambda e: sum(
            len(read_action(t.action).calls) for t in e.transitions
        )
    if count_tokens is not None:
        counts["tokens of a won game"] = lambda e: episode_tokens(e, count_tokens)
    rows = []
    for name, count in counts.items():
        games: dict[str, list[float]] = {}
        for e in episodes:
            won = float(bool(e.success))
            sums = games.setdefault(e.task.id, [0.0, 0.0])
            sums[0] += float(count(e)) * won
            sums[1] += won
        rows.append(_per_success(name, [(a, b) for a, b in games.values()]))
    return rows


def _robustness(results: Mapping[str, Any] | None, policy: str) -> list[CardRow]:
    if results is None or policy not in results["kinds"]["identity"]["policies"]:
        note = "not measured: dreamgym robustness RUN"
        none = (None, None, None, 0)
        return [CardRow("robustness", "change of success", *none, "games", note)]
    kinds = results["kinds"]
    return [
        _change_of_success(kind, row, policy, kinds["identity"])
        for kind, row in kinds.items()
        if kind != "identity"
    ]


def _change_of_success(
    kind: str, row: Mapping[str, Any], policy: str, identity: Mapping[str, Any]
) -> CardRow:
    name = f"change of success: {kind}"
    of_policy = row["policies"].get(policy)
    if of_policy is None:
        note = row["note"]
        return CardRow("robustness", name, None, None, None, 0, "games", note)
    d = of_policy["difference"]
    if of_policy.get("changed_games") == 0:
        count = d["episodes"]
        return CardRow("robustness", name, None, None, None, count, "games", UNCHANGED)
    more = losses_beyond(row, identity)
    note = f"unfair: the expert loses {more} more" if more else ""
    values = (d["mean"], d["low"], d["high"], d["episodes"])
    return CardRow("robustness", name, *values, "games", note)


def losses_beyond(row: Mapping[str, Any], identity: Mapping[str, Any]) -> int:
    """Return how many more games the expert loses under a kind than as they are.

    An expert may lose without a perturbation, as a bot does that knows no plan, or
    where the environment draws lots. Files of earlier versions have no losses of the
    same games as they are; those of the `identity` take their place.
    """
    lost = row["expert_losses"]
    before = row.get("expert_losses_unperturbed", identity["expert_losses"])
    return 0 if lost is None or before is None else max(lost - before, 0)


def card_lines(policy: str, rows: Sequence[CardRow]) -> list[str]:
    """Return a card as Markdown lines."""
    out = [
        f"**{policy}**",
        "",
        "| | | value | 95 % interval | n |",
        "|---|---|---|---|---|",
    ]
    for part in PARTS:
        title = part
        for row in (r for r in rows if r.part == part):
            value, interval = row.note or "-", "-"
            if row.mean is not None:
                sign = "+" if part == "robustness" else ""
                value = f"{row.mean:{sign}.3g}" + (f" ({row.note})" if row.note else "")
                if row.low is not None:
                    interval = f"{row.low:{sign}.3g} to {row.high:{sign}.3g}"
            count = f"{row.count} {row.unit}"
            out.append(f"| {title} | {row.name} | {value} | {interval} | {count} |")
            title = ""
    return [*out, ""]
