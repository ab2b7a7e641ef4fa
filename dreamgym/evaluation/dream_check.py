"""Compares a policy in the dream with the same policy in the real environment.

real and dreamed trajectories on the same tasks -> the difference in success with its
interval -> a description of what differs -> whether to train in this dream.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import counts_as_invalid
from dreamgym.evaluation.evaluate import costs, paired, summary
from dreamgym.evaluation.leading_numbers import ends_found, training_ends
from dreamgym.evaluation.statistics import difference_text, wilson
from worldmodel.data.outcomes import commonest_reward
from worldmodel.data.records import Transition
from worldmodel.experience.base import same_reward

FEW = 8
"""Cases of a scorecard's figure below which nothing is refused by it."""
RARELY = 0.25
"""The share of the real success that a dream must at least show."""
MOSTLY = 0.5
"""The share of the dreamed episodes of which more may not break off."""
CLEARLY = 0.15
"""The difference between two shares from which on it is named."""


RARE_EVENTS = frozenset({"missed_ends", "missed_rewards", "missed_wins"})
"""The faults for which a refit weights rare rewards and ends."""


class Fault(NamedTuple):
    """What a dream gets wrong about a policy: its kind, and the numbers as text."""

    name: str
    text: str


def success_gap(
    real: Sequence[Trajectory], dreamed: Sequence[Trajectory], *, seed: int
) -> dict[str, float | None]:
    """Return dreamed minus real success over tasks scored in both, and its interval."""
    return paired(dreamed, real, seed=seed)


def cost_gaps(
    real: Sequence[Trajectory],
    dreamed: Sequence[Trajectory],
    counters: Mapping[str, Callable[[Sequence[Transition]], float]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the mean cost of an episode by name, `real` and `dreamed`, with intervals.

    Those that the environment reports, and those of `counters`. A dream reports none,
    so that there only counters count.
    """
    costs_real, costs_dreamed = costs(real, counters), costs(dreamed, counters)
    nothing = {"mean": 0.0, "low": 0.0, "high": 0.0}
    return {
        name: {
            "real": costs_real.get(name, nothing),
            "dreamed": costs_dreamed.get(name, nothing),
        }
        for name in sorted(costs_real.keys() | costs_dreamed.keys())
    }


def cost_text(name: str, gap: Mapping[str, Mapping[str, float]], games: int) -> str:
    """Return a sentence on what an episode costs really and in the dream."""
    real, dreamed = (
        "{mean:.3f} [{low:.3f}, {high:.3f}]".format(**gap[k])
        for k in ("real", "dreamed")
    )
    return (
        f"an episode of the warm start costs {real} of {name} really and {dreamed} in "
        f"the dream, over {games} dev tasks"
    )


def gap_text(gap: Mapping[str, float | None]) -> str:
    """Return what a gap means that is too large, as the beginning of a sentence."""
    if gap["mean"] is None:
        return "no dev game of the warm start could be scored in the dream"
    return (
        "the dream is wrong about how often the warm start wins (dreamed minus real "
        f"{difference_text(gap)} over {gap['episodes']} dev tasks)"
    )


def agreement_text(gap: Mapping[str, float | None]) -> str:
    """Return what a gap means that is not too large, as the beginning of a sentence."""
    return (
        "the dream is not refused for how often the warm start wins in it (dreamed "
        f"minus real {difference_text(gap)} over {gap['episodes']} dev tasks)"
    )


def disagrees(
    gap: Mapping[str, float | None], tolerance: float, real_success: float = 0.0
) -> bool:
    """Return whether success differs by more than chance and by more than a tolerance.

    A dream in which less than RARELY of the real success is left disagrees by more than
    any tolerance: there is nothing to learn from. So does one of which no task was
    scored in both.
    """
    mean, low, high = gap["mean"], gap["low"], gap["high"]
    if mean is None or low is None or high is None:
        return True
    too_rarely = real_success > 0 and real_success + mean < RARELY * real_success
    return (abs(mean) > tolerance or too_rarely) and not low <= 0.0 <= high


def dream_faults(
    real: Sequence[Trajectory], dreamed: Sequence[Trajectory]
) -> list[Fault]:
    """Return how dreamed episodes differ from real ones of the same policy."""
    a, b = _shares(real), _shares(dreamed)
    out = []
    if b["broken"] > a["broken"] + CLEARLY:
        text = f"{_percent(b['broken'])} of the dreamed episodes broke off"
        out.append(Fault("broken_episodes", text))
    missed_ends = a["ended"] > b["ended"] + CLEARLY
    for name, what, share, missing in (
        ("missed_ends", "episodes reach an end", "ended", True),
        ("early_ends", "episodes end too early", "ended", False),
        ("missed_wins", "episodes are won", "won", True),
        ("easy_wins", "episodes are won too easily", "won", False),
        ("missed_rewards", "episodes hold an unusual reward", "rewarded", True),
        ("accepted_actions", "actions are refused as invalid", "invalid", True),
        ("refused_actions", "actions have no effect", "invalid", False),
    ):
        if name == "missed_wins" and missed_ends:
            continue  # who never ends wins nothing: said already
        excess = a[share] - b[share] if missing else b[share] - a[share]
        if excess > CLEARLY:
            both = f"{_percent(a[share])} really, {_percent(b[share])} in the dream"
            out.append(Fault(name, f"{what}: {both}"))
    return out


def _shares(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    scored = [t for t in trajectories if t.error is None]
    steps = [x for t in scored for x in t.episode.transitions]
    usual = commonest_reward([t.episode for t in scored])
    rewarded = [
        any(not same_reward(x.reward, usual) for x in t.episode.transitions)
        for t in scored
    ]
    return {
        "broken": 1 - len(scored) / max(len(trajectories), 1),
        "ended": _mean([t.episode.transitions[-1].terminated for t in scored]),
        "won": _mean([bool(t.episode.success) for t in scored]),
        "rewarded": _mean(rewarded),
        "invalid": _mean([counts_as_invalid(x) for x in steps]),
    }


def _mean(values: Sequence[bool]) -> float:
    return float(np.mean(values)) if len(values) else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def scorecard_refusals(
    scorecard: Mapping[str, Any], *, min_predictable: float, min_ends: float
) -> list[Fault]:
    """Return the reasons in a scorecard not to train in this dream; empty if none.

    Figures of fewer than FEW cases are ignored.
    """
    rows = (
        (
            scorecard["exact"].get("predictable"),
            min_predictable,
            "predictable next states are right",
            "wrong_states",
        ),
        (ends_found(scorecard), min_ends, "ends are found", "missed_ends"),
        (
            training_ends(scorecard),
            min_ends,
            "ends of the training episodes are found",
            "missed_ends",
        ),
    )
    return [
        Fault(name, f"only {_percent(rate['mean'])} of {rate['count']} {what}")
        for rate, threshold, what, name in rows
        if rate
        and rate["mean"] is not None
        and rate["count"] >= FEW
        and rate["mean"] < threshold
    ]


def broken_refusals(dreamed: Sequence[Trajectory]) -> list[Fault]:
    """Return why not to train in a dream of whose episodes most broke off, if they did.

    What could be scored of them says little: it is of tasks that end soon. Most are
    more than half, by the lower end of the 95 % interval.
    """
    broken = sum(t.error is not None for t in dreamed)
    if broken < len(dreamed) and wilson(broken, len(dreamed))[0] <= MOSTLY:
        return []
    text = f"none of {broken} dreamed episodes could be scored"
    if broken < len(dreamed):
        text = f"{broken} of {len(dreamed)} dreamed episodes broke off"
    return [Fault("broken_episodes", text)]


def describe_unmeasured(scorecard: Mapping[str, Any]) -> str:
    """Return a sentence on what no case of the scorecard could show, else ''."""
    predictable = scorecard.get("exact", {}).get("predictable")
    ends = scorecard.get("done", {}).get("recall")
    missing = [
        text
        for rate, text in (
            (predictable, "next states can be known: every step reveals something new"),
            (ends, "ends are among the dev episodes"),
        )
        if not (rate and rate["count"])
    ]
    if not missing:
        return ""
    what = "; no ".join(missing)
    return f"the scorecard could not measure the dream, because no {what}"


def dev_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the metrics of played dev games: success and return, by family too.

    `real_success`, `real_return`, of two games or more its standard error
    `real_return_error`, and for each family `real_success/NAME` and `real_games/NAME`;
    what nobody scored has none.
    """
    row = summary(trajectories, real_transitions=0)
    if row["success"]["mean"] is None:
        return {}
    returns = [t.episode.episode_return for t in trajectories if t.error is None]
    out = {"real_success": row["success"]["mean"], "real_return": row["mean_return"]}
    if len(returns) > 1:
        error = np.std(returns, ddof=1) / np.sqrt(len(returns))
        out["real_return_error"] = float(error)
    families: dict[str, list[bool]] = {}
    for t in trajectories:
        if t.error is None:
            wins = families.setdefault(t.episode.task.family, [])
            wins.append(bool(t.episode.success))
    for name, wins in sorted(families.items()):
        out[f"real_success/{name}"] = float(np.mean(wins))
        out[f"real_games/{name}"] = float(len(wins))
    return out
