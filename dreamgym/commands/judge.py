"""Episodes that nobody scored -> a judge's verdicts -> episodes with an outcome.

Episodes whose outcome is known are judged as well, at most a sample of them: what the
verdicts on them are worth is printed, and decides whether to use the others.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dreamgym.evaluation.statistics import wilson
from dreamgym.rewards.outcome_judge import (
    JUDGE,
    Agreement,
    OutcomeJudge,
    agreement,
    with_outcome,
)
from worldmodel.data.records import Episode, write_episodes

CHUNK = 16
"""Episodes that are asked about before progress is shown."""


class Result(NamedTuple):
    """What the judge said of the episodes without a score, and its audit."""

    won: int
    lost: int
    without_verdict: int
    audit: Agreement


def needs_verdict(episode: Episode) -> bool:
    """Return whether an episode lacks a score, and is not one that broke."""
    return episode.success is None and not episode.error


def judge_outcomes(
    episodes: Sequence[Episode],
    file: Path,
    judge: OutcomeJudge,
    *,
    audit: int,
    seed: int,
    progress: Callable[[int], object],
) -> Result:
    """Write the episodes with the outcomes that a judge finds; return what it said.

    Episodes with a score keep it. Those of which the judge has no verdict stay without
    one, and so do those in which the environment failed.

    Args:
      audit: of the episodes with a score, how many are judged, at most; those that a
        judge has scored are left out.
      progress: is called with the number of episodes that are done.
    """
    open_ones = [i for i, e in enumerate(episodes) if needs_verdict(e)]
    # Its own verdicts would agree with the judge.
    scored = [
        i
        for i, e in enumerate(episodes)
        if e.success is not None and e.scored_by != JUDGE
    ]
    order = np.random.default_rng(seed).permutation(len(scored))
    sample = [scored[i] for i in order[:audit].tolist()]
    numbers, verdicts = [*sample, *open_ones], list[str]()
    for start in range(0, len(numbers), CHUNK):
        chunk = [episodes[i] for i in numbers[start : start + CHUNK]]
        verdicts += judge.verdicts(chunk)
        progress(start + len(chunk))
    by_episode = dict(zip(numbers, verdicts, strict=True))
    out = list(episodes)
    for i in open_ones:
        if by_episode[i] in ("won", "lost"):
            out[i] = with_outcome(out[i], won=by_episode[i] == "won")
    write_episodes(file, out)
    answers = [by_episode[i] for i in open_ones]
    return Result(
        won=answers.count("won"),
        lost=answers.count("lost"),
        without_verdict=len(answers) - answers.count("won") - answers.count("lost"),
        audit=agreement([episodes[i] for i in sample], [by_episode[i] for i in sample]),
    )


def summary(result: Result) -> str:
    """Return the result as lines."""
    count = result.won + result.lost
    out = [
        f"judged: {count} episodes, {result.won} won and {result.lost} lost; "
        f"{result.without_verdict} stay without a score"
    ]
    a = result.audit
    if a.without_verdict and not (count or a.count or result.without_verdict):
        out.append(
            "no answer of the judge could be read: it must be JSON with a verdict "
            "(`dreamgym annotate` shows what a server answers)"
        )
        return "\n".join(out)
    if not a.count:
        out.append(
            "agreement: unknown, no episode with an outcome of its own was judged as "
            "well (score some by hand, and see whether the judge finds the same)"
        )
        return "\n".join(out)
    parts = [
        _share("right", a.right, a.count),
        _share("won ones found", a.won[0], sum(a.won)),
        _share("lost ones found", a.lost[0], sum(a.lost)),
    ]
    kappa = "" if a.kappa is None else f"; kappa {a.kappa:.2f}"
    out.append(
        f"agreement with known outcomes: {', '.join(filter(None, parts))}{kappa}"
    )
    base = max(sum(a.won), sum(a.lost)) / a.count
    out.append(f"whoever always says the same is right in {100 * base:.1f} %")
    if a.without_verdict:
        out.append(f"{a.without_verdict} of these without a verdict")
    return "\n".join(out)


def _share(name: str, count: int, total: int) -> str:
    if not total:
        return ""
    low, high = wilson(count, total)
    return (
        f"{name} {100 * count / total:.1f} % [{100 * low:.0f}, {100 * high:.0f}] "
        f"of {total}"
    )
