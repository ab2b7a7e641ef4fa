"""The real-step factor: how many times the real steps another method takes.

success against real steps of two methods -> the steps at which real RL reaches the
dream's success -> their ratio, with a bootstrap interval over test tasks and seeds. All
are pure functions.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

DRAWS = 2000
"""Bootstrap draws of an interval."""


class Point(NamedTuple):
    """The real steps of a policy, everything counted, and its success."""

    steps: float
    success: float


class Bounds(NamedTuple):
    """A number that lies in [low, high]; both are equal where it is known."""

    low: float
    high: float


class Played(NamedTuple):
    """What a method came to with one budget.

    For each seed its real steps, and for each test task 1 or 0. `seconds` of the run
    are known for some seeds. `budget` is the number of real steps that was allowed.
    """

    steps: Mapping[int, float]
    games: Mapping[int, Mapping[str, float]]
    seconds: Mapping[int, float] = MappingProxyType({})
    budget: int | None = None


class Factor(NamedTuple):
    """A real-step factor, with the 95 % interval of a bootstrap."""

    value: Bounds
    interval: Bounds

    def text(self) -> str:
        """Return it as text; a bound where the other method's curve ends."""
        low, high = self.value
        text = f"{low:.2g}"
        if math.isinf(high):
            text = f">= {low:.2g}"
        elif low != high:
            text = f"<= {high:.2g}"
        return f"{text} [{self.interval.low:.2g}, {self.interval.high:.2g}]"


def steps_to_reach(curve: Sequence[Point], success: float) -> Bounds:
    """Return the real steps at which a curve first reaches a success.

    Between two points success is interpolated in the logarithm of the steps. What the
    first point has reached already took its steps at most; what no point reaches takes
    more than those of the last.

    Args:
      curve: points in the order of their steps, one at least.
    """
    if curve[0].success >= success:
        return Bounds(0.0, curve[0].steps)
    for before, after in itertools.pairwise(curve):
        if after.success >= success:
            share = (success - before.success) / (after.success - before.success)
            logs = math.log(before.steps), math.log(after.steps)
            steps = math.exp(logs[0] + share * (logs[1] - logs[0]))
            return Bounds(steps, steps)
    return Bounds(curve[-1].steps, math.inf)


def step_factor(point: Point, curves: Sequence[Sequence[Point]]) -> Bounds:
    """Return the fewest real steps to the point's success, divided by the point's.

    They are those of the curve that first reaches it, of several. Above 1 the point's
    method needs fewer steps than every curve.
    """
    reached = [steps_to_reach(curve, point.success) for curve in curves if curve]
    low, high = min(r.low for r in reached), min(r.high for r in reached)
    return Bounds(low / point.steps, high / point.steps)


def real_step_factor(
    dream: Played, others: Sequence[Sequence[Played]], *, seed: int = 0
) -> Factor | None:
    """Return the factor of one budget, None where no point of others has its seeds.

    A point that lacks a seed of the dream's is left out: with the seeds that all points
    share, one unfinished cell would change every factor. Seeds and test tasks are drawn
    with replacement, the same for all methods. A draw in which a curve ends before it
    reaches the success counts with its bound: the interval is open there.
    """
    seeds = sorted(dream.games)
    others = [[p for p in curve if p.games.keys() >= set(seeds)] for curve in others]
    if not seeds or not any(others):
        return None
    every = [dream, *(p for curve in others for p in curve)]
    tasks = sorted({t for p in every for s in seeds for t in p.games[s]})
    columns = [_Columns.of(p, seeds, tasks) for p in every]

    def factor(seed_weights: np.ndarray, task_weights: np.ndarray) -> Bounds | None:
        first, *rest = (c.point(seed_weights, task_weights) for c in columns)
        points = iter(rest)
        curves = [
            sorted(p for p in itertools.islice(points, len(curve)) if p is not None)
            for curve in others
        ]
        if first is None or not any(curves):
            return None
        return step_factor(first, curves)

    value = factor(np.ones(len(seeds)), np.ones(len(tasks)))
    rng = np.random.default_rng(seed)
    draws = [
        factor(_weights(rng, len(seeds)), _weights(rng, len(tasks)))
        for _ in range(DRAWS)
    ]
    known = [d for d in draws if d is not None]
    if value is None or not known:
        return None
    low = np.percentile([d.low for d in known], 2.5, method="lower")
    high = np.percentile([d.high for d in known], 97.5, method="higher")
    return Factor(value, Bounds(float(low), float(high)))


def _weights(rng: np.random.Generator, count: int) -> np.ndarray:
    """Return how often each of `count` is drawn in as many draws."""
    return rng.multinomial(count, np.full(count, 1 / count)).astype(float)


class _Columns(NamedTuple):
    """The results of a method as arrays: by seed, by seed and task, and which are."""

    steps: np.ndarray
    won: np.ndarray
    scored: np.ndarray

    @classmethod
    def of(
        cls, played: Played, seeds: Sequence[int], tasks: Sequence[str]
    ) -> "_Columns":
        won = np.array([[played.games[s].get(t, np.nan) for t in tasks] for s in seeds])
        steps = np.array([played.steps[s] for s in seeds], float)
        return cls(steps, np.nan_to_num(won), ~np.isnan(won))

    def point(self, seeds: np.ndarray, tasks: np.ndarray) -> Point | None:
        """Return the pooled point under weights; None where no game is scored."""
        count = seeds @ self.scored @ tasks
        if not count:
            return None
        steps = float(seeds @ self.steps / seeds.sum())
        return Point(steps, float(seeds @ self.won @ tasks / count))
