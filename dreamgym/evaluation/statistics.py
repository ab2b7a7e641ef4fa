"""Intervals: of a rate (Wilson), of a difference of two, paired or not; a front.

Differences of wins have the interval of Bonett and Price, others that of a paired
bootstrap.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from worldmodel.data.rates import mean_of_worst

Z95 = 1.959963984540054
WORST_DRAWS = 2000
"""Draws of the bootstrap of a mean of the worst games."""


def wilson(hits: int, count: int, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson score interval (1927) of a rate; (0, 1) for no cases."""
    if not 0 <= hits <= count:
        raise ValueError(f"hits must be in [0, {count}], got {hits}")
    return wilson_of(hits / count, count, z) if count else (0.0, 1.0)


def wilson_of(p: float, count: float | int, z: float = Z95) -> tuple[float, float]:
    """Return the Wilson interval of a rate over an effective number of cases."""
    centre = p + z**2 / (2 * count)
    half = z * np.sqrt(p * (1 - p) / count + z**2 / (4 * count**2))
    scale = 1 + z**2 / count
    # Exactly 0 and 1 at the ends, where rounding would put them inside the rate.
    low = (centre - half) / scale if p > 0 else 0.0
    high = (centre + half) / scale if p < 1 else 1.0
    return float(max(low, 0.0)), float(min(high, 1.0))


def rate_difference(a: float, b: float, counts: tuple[int, int]) -> tuple[float, float]:
    """Return the 95 % interval of the difference a - b of two rates.

    It is the hybrid score interval of Newcombe (Statistics in Medicine 17, 1998, method
    10), for rates over separate cases; for the same cases it is wider than needed.

    Args:
      counts: the cases of `a`, and those of `b`, at least one of each.
    """
    (low_a, high_a), (low_b, high_b) = (
        wilson_of(p, count) for p, count in zip((a, b), counts, strict=True)
    )
    below, above = math.hypot(a - low_a, high_b - b), math.hypot(high_a - a, b - low_b)
    return a - b - below, a - b + above


def pareto_front(values: Float[np.ndarray, "N K"]) -> Bool[np.ndarray, " N"]:
    """Return which of N points no other one dominates, in K objectives to maximise.

    A point dominates another that it is nowhere worse than, and somewhere better.
    """
    at_least = (values[:, None] >= values[None, :]).all(-1)
    better = (values[:, None] > values[None, :]).any(-1)
    return np.logical_not((at_least & better).any(0))


def rate(games: Mapping[str, Sequence[float | int | bool]]) -> dict[str, float]:
    """Return the share of hits over games with a 95 % Wilson interval.

    A game may be played with several seeds. Results on one game are alike, so that they
    count less than results on as many games: the interval is that of the effective
    number of independent games (Kish's design effect). If all are hits, or none, each
    game counts once.
    """
    outcomes = [np.asarray(hits, float) for hits in games.values() if len(hits)]
    count = sum(map(len, outcomes))
    hits = sum(float(x.sum()) for x in outcomes)
    out = {"mean": hits / count if count else 0.0, "count": count}
    if not count:
        return out | {"low": 0.0, "high": 1.0}
    p, n = hits / count, len(outcomes)
    alone = p * (1 - p) / count
    effect = count / n
    # With one game its spread is unknown; where all outcomes are equal there is none.
    if alone and n > 1:
        spread = sum((float(x.sum()) - p * len(x)) ** 2 for x in outcomes)
        effect = max(spread / count**2 / alone, 1.0)
    low, high = wilson_of(p, count / effect)
    return out | {"low": low, "high": high}


def ratio(
    games: Sequence[tuple[float, float]], *, seed: int, draws: int = 2000
) -> dict[str, float]:
    """Return the ratio of two sums over games, with a 95 % bootstrap interval.

    Games are resampled whole; draws without a denominator are left out.

    Raises:
      ValueError: no game has a denominator.
    """
    sums = np.asarray(games, float).reshape(-1, 2)
    total = sums.sum(0)
    if not total[1]:
        raise ValueError("a ratio needs a denominator that is not 0")
    rng = np.random.default_rng(seed)
    drawn = np.array(
        [sums[rng.integers(0, len(sums), len(sums))].sum(0) for _ in range(draws)]
    )
    drawn = drawn[drawn[:, 1] > 0]
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], [2.5, 97.5])
    return {
        "mean": float(total[0] / total[1]),
        "count": float(total[1]),
        "low": float(low),
        "high": float(high),
    }


def bonett_price(differences: Float[np.ndarray, " N"]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of differences in [-1, 1], at least one.

    For differences of wins (-1, 0 and 1) it is the adjusted Wald interval of Bonett and
    Price (Journal of Educational and Behavioral Statistics 37, 2012): one game is added
    to each of the two kinds in which the pairs differ. Means over several plays of a
    game have the same two games added. With few games a percentile bootstrap excludes 0
    far more often than one time in twenty (docs/LOG.md, 2026-11-29).
    """
    count = len(differences) + 2
    mean = differences.sum() / count
    variance = ((differences**2).sum() + 2) / count - mean**2
    half = Z95 * np.sqrt(variance / count)
    return float(max(mean - half, -1.0)), float(min(mean + half, 1.0))


def paired_difference(
    a: Sequence[float],
    b: Sequence[float],
    *,
    seed: int,
    of_wins: bool = False,
    draws: int = 10_000,
) -> dict[str, float | None]:
    """Return the mean of a - b over the same games, with a 95 % interval.

    Where the values are shares of won games (`of_wins`) it is that of `bonett_price`,
    else that of a bootstrap over games: of costs nobody knows what two more would be.
    Without a game there is none: mean, low and high are None.

    Raises:
      ValueError: the two are not of one length.
    """
    if len(a) != len(b):
        raise ValueError(f"paired lists must be of one length, got {len(a)}, {len(b)}")
    if not len(a):
        return {"mean": None, "low": None, "high": None, "episodes": 0}
    d = np.asarray(a, float) - np.asarray(b, float)
    if of_wins:
        low, high = bonett_price(d)
        return {"mean": float(d.mean()), "low": low, "high": high, "episodes": len(d)}
    rng = np.random.default_rng(seed)
    # In pieces of 1,000 draws: all at once would need draws times games numbers.
    means = np.concatenate(
        [
            d[rng.integers(0, len(d), (min(1000, draws), len(d)))].mean(1)
            for _ in range(-(-draws // 1000))
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return {
        "mean": float(d.mean()),
        "low": float(low),
        "high": float(high),
        "episodes": len(d),
    }


def mean_of_games(
    games: Mapping[str, Sequence[float | int]], *, seed: int
) -> dict[str, float]:
    """Return the mean of values by game, with a 95 % interval over games.

    If all are 0 or 1 it is a share with the interval of `rate`, which is not empty
    where nothing happened; else the interval is a bootstrap.
    """
    if all(x in (0, 1) for values in games.values() for x in values):
        return rate(games)
    return ratio([(sum(x), float(len(x))) for x in games.values()], seed=seed)


def worst_of_games(
    games: Mapping[str, Sequence[float | int]], share: float, *, seed: int
) -> dict[str, float]:
    """Return `mean_of_worst` of values by game, with a 95 % interval over games.

    If all are 0 or 1, at most the `share` can be 1 in the tail: mean and interval are
    those of `rate`, divided by the share. Else the interval is a bootstrap.
    """
    values = [float(x) for of_game in games.values() for x in of_game]
    out = {"share": float(share), "mean": mean_of_worst(values, share)}
    if all(x in (0, 1) for x in values):
        r = rate(games)
        bounds = [min(r[name] / share, 1.0) for name in ("low", "high")]
    else:
        rng, of_games = np.random.default_rng(seed), list(games.values())
        draws = rng.integers(0, len(of_games), (WORST_DRAWS, len(of_games)))
        means = [
            mean_of_worst([float(x) for i in draw for x in of_games[i]], share)
            for draw in draws
        ]
        bounds = [float(x) for x in np.percentile(means, [2.5, 97.5])]
    low, high = bounds
    return out | {"low": low, "high": high, "count": float(len(values))}


def paired_by_game(
    rows: Iterable[tuple[str, float, float]], *, seed: int, of_wins: bool = False
) -> dict[str, float | None]:
    """Return the mean of a - b over rows (game, a, b), with an interval over games.

    Runs of several seeds play the same games: those are one draw, not several.
    """
    games: dict[str, list[tuple[float, float]]] = {}
    for game, a, b in rows:
        games.setdefault(game, []).append((a, b))
    means = [np.mean(pairs, axis=0) for pairs in games.values()]
    difference = paired_difference(
        [m[0] for m in means], [m[1] for m in means], seed=seed, of_wins=of_wins
    )
    return difference | {"episodes": sum(map(len, games.values()))}


def percent(share: float | None) -> str:
    """Format a share as a percentage, in words where it is not known."""
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


def success_change(
    after: float | None, before: float | None, lost_families: Sequence[str] = ()
) -> str:
    """Format the success after a stage and before it, and the families it destroyed."""
    phrase = f"{percent(after)} won after it, {percent(before)} before"
    if after is None and before is None:
        phrase = "none could be scored, neither after it nor before"
    if lost_families:
        names = (family or "the only one" for family in lost_families)
        phrase += f" (families lost: {', '.join(names)})"
    return phrase


def difference_text(difference: Mapping[str, float | None]) -> str:
    """Format a paired difference; "none" where no game was scored for both."""
    if difference["mean"] is None:
        return "none (no game was scored for both)"
    return "{mean:+.3f} [{low:+.3f}, {high:+.3f}]".format(**difference)
