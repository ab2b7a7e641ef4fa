"""A* search for the cheapest win (Hart et al., 1968; ToolChain*, arXiv:2310.13227).

A moment of the dream and the policy's candidates there -> the open action whose cost so
far plus estimated rest is the least -> what the dream says it leads to -> the policy's
candidates there -> ... -> the first action of the path to a win.

A step costs 1 - log p - log c, where p is the probability of its action among the
candidates and c the confidence of the dream in its answer: the cheapest path is short,
one that the policy finds likely, and one that the dream is sure of. What is left is
estimated from won episodes: the one whose actions have the longest common subsequence
with those taken so far says how many are left. ToolChain* scores a step by such a
subsequence, too; its other terms are answers of a large language model.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from dreamgym.agent.policy import Turn
from dreamgym.agent.search.tree_search import Edge, Node
from dreamgym.agent.symbolic_memory import action_name
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from worldmodel.data.records import State

MIN_CONFIDENCE = 1e-4
"""A dreamed answer costs no more than one of this confidence."""
MAX_PLANS = 256
"""Distinct plans that the rest is estimated from, at most, the most frequent ones."""


def extend_lcs(
    lengths: Int[np.ndarray, "M T1"], equal: Bool[np.ndarray, "M T"]
) -> Int[np.ndarray, "M T1"]:
    """Return the lengths of longest common subsequences after one more element.

    Entry (m, j) is the length for the elements so far and the first j of sequence m: a
    row of the usual table. `equal` says where sequence m has the new element.
    """
    through = np.maximum(lengths[:, 1:], lengths[:, :-1] + equal)
    out = np.zeros_like(lengths)
    out[:, 1:] = np.maximum.accumulate(through, axis=1)
    return out


class WonPlans:
    """The actions of won episodes, by tool or verb, to estimate what is left.

    Names of things differ between tasks, so that an action is read as its tool or verb.
    """

    def __init__(self, plans: Sequence[Sequence[str]] = ()):
        """Keep the distinct plans; each is the actions of a won episode."""
        names = Counter(tuple(map(action_name, plan)) for plan in plans)
        distinct = [plan for plan, _ in names.most_common(MAX_PLANS)]
        width = max(map(len, distinct), default=0)
        vocabulary = sorted(set(itertools.chain(*distinct)))
        self._numbers = {name: i for i, name in enumerate(vocabulary)}
        self._length = np.array([len(plan) for plan in distinct], int)
        self._names = np.full((len(distinct), width), -1)
        for row, plan in zip(self._names, distinct, strict=True):
            row[: len(plan)] = [self._numbers[name] for name in plan]

    def begin(self) -> Int[np.ndarray, "M T1"]:
        """Return the table before the first action."""
        return np.zeros((len(self._names), self._names.shape[1] + 1), int)

    def extend(
        self, lengths: Int[np.ndarray, "M T1"], action: str
    ) -> Int[np.ndarray, "M T1"]:
        """Return the table after one more action (`extend_lcs`)."""
        number = self._numbers.get(action_name(action), -2)  # -1 is padding
        return extend_lcs(lengths, self._names == number)

    def steps_left(self, lengths: Int[np.ndarray, "M T1"]) -> int:
        """Return how many actions are left of the plan that has most in common.

        They are those that were not taken yet; of plans that have equally much in
        common the one with the fewest counts. 0 where there is no plan.
        """
        if not len(lengths):
            return 0
        common = lengths[:, -1]
        left = self._length - common
        return int(left[common == common.max()].min())


class _Open(NamedTuple):
    """An action that was not taken yet, or that wins, and the path `before` it.

    Entries are ordered by `estimate`, the cost so far plus the estimated rest, then by
    `number`, the order in which they were found.
    """

    estimate: float
    number: int
    cost: float
    depth: int
    first: int
    lengths: np.ndarray
    edge: Edge
    before: "_Open | None"
    won: bool = False


class AStar:
    """The search of one situation.

    An action is taken in the dream when it is the cheapest open one, so that each step
    of the search is one dreamed step. The search is over when nothing that is open can
    be cheaper than a win. A state that was gone on from before, at no higher cost, is
    not gone on from again: the search is over a graph, not a tree. So near the depth a
    shorter path may be left out for a cheaper one that has more steps.
    """

    def __init__(
        self,
        at: Snapshot,
        turns: Sequence[Turn],
        *,
        depth: int,
        plans: WonPlans,
        weight: float = 1.0,
        refuted: Collection[tuple[State, str]] = (),
    ):
        """Begin with the distinct candidates, the policy's own first.

        Args:
          depth: steps of a path, at most.
          plans: won episodes to estimate the rest from.
          weight: of the estimate.
          refuted: actions, each with its state, that reality has shown to be useless;
            they are on no path.
        """
        self.root = Node(at)
        self.root.extend(turns)
        self._depth, self._plans, self._weight = depth, plans, weight
        self._refuted = refuted
        self._open: list[_Open] = []
        self._numbers = itertools.count()
        self._closed: dict[State, float] = {at.state: 0.0}
        self._ends: list[_Open] = []
        self._current: _Open | None = None
        lengths = plans.begin()
        for action in at.past:
            lengths = plans.extend(lengths, action)
        for first, edge in enumerate(self.root.edges):
            self._push(edge, first, lengths, None)

    def _push(
        self, edge: Edge, first: int, lengths: np.ndarray, before: _Open | None
    ) -> None:
        if (edge.parent.state, edge.turn.action) in self._refuted:
            return
        cost, depth = (0.0, 0) if before is None else (before.cost, before.depth)
        cost += 1.0 - math.log(max(edge.prior, 1e-12))
        lengths = self._plans.extend(lengths, edge.turn.action)
        estimate = cost + self._weight * self._plans.steps_left(lengths)
        number = next(self._numbers)
        entry = _Open(estimate, number, cost, depth + 1, first, lengths, edge, before)
        heapq.heappush(self._open, entry)

    def pop(self) -> Edge | None:
        """Return the cheapest open action, None where the search is over."""
        if not self._open or self._open[0].won:
            return None
        self._current = heapq.heappop(self._open)
        return self._current.edge

    @property
    def _win(self) -> _Open | None:
        """The cheapest of the wins so far."""
        return min((entry for entry in self._open if entry.won), default=None)

    def record(self, step: Step) -> Node | None:
        """Record what the last action led to; return the new moment to go on from.

        None where it is a win, an end, a state that was gone on from before, or where
        the path is as long as it may be.
        """
        entry = self._current
        assert entry is not None
        entry.edge.arrive(step)
        node = entry.edge.node
        assert node is not None
        cost = entry.cost - math.log(max(step.confidence, MIN_CONFIDENCE))
        entry = self._current = entry._replace(cost=cost)
        if step.success and not entry.edge.broken:
            heapq.heappush(self._open, entry._replace(estimate=cost, won=True))
        if node.ended or entry.edge.broken:
            return None
        if self._closed.get(step.state, math.inf) <= entry.cost:
            return None
        if entry.depth == self._depth:  # a shorter path may still go on from here
            self._ends.append(entry)
            return None
        self._closed[step.state] = entry.cost
        return node

    def extend(self, turns: Sequence[Turn]) -> None:
        """Open the candidates of the moment that `record` has just returned."""
        entry = self._current
        assert entry is not None
        assert entry.edge.node is not None
        entry.edge.node.extend(turns)
        for edge in entry.edge.node.edges:
            self._push(edge, entry.first, entry.lengths, entry)

    def path(self) -> list[Edge]:
        """Return the cheapest win so far, in order; empty without one."""
        out, entry = list[Edge](), self._win
        while entry is not None:
            out.append(entry.edge)
            entry = entry.before
        return out[::-1]

    def choice(self) -> Turn:
        """Return the first action of the cheapest win so far.

        Without a win it is the policy's own, unless all that follows it was lost or led
        back: then that of the cheapest path that may still go on.
        """
        first, win = 0, self._win
        if win is not None:
            first = win.first
        elif going_on := [*self._open, *self._ends]:
            if all(entry.first for entry in going_on):
                first = min(going_on).first
        return self.root.turns[first]
