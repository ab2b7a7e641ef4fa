"""The tree of a search by PUCT (Silver et al., 2017; MuZero, arXiv:1911.08265).

A moment of the dream and the policy's candidates there -> paths to new moments -> the
most visited candidate, and pairs of actions of one state whose values differ. What a
moment leads to, and what it is worth, is given from outside (planning.py), so that many
trees take their dreamed steps as one batch.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dreamgym.agent.policy import Turn
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from worldmodel.data.records import Transition

EXPLORATION = 1.25
"""The weight of the prior: c_1 of MuZero's equation 2."""


GIVEN_PRIOR = 1 / 16
"""What a candidate that the policy did not draw weighs beside all that it drew: half a
draw of eight."""


def candidate_priors(turns: Sequence[Turn]) -> np.ndarray:
    """Return the probabilities of candidates, of shape (number of candidates,).

    What the policy drew shares its weight by its own probabilities; each turn that was
    given to it weighs `GIVEN_PRIOR` of that.
    """
    given = np.array([t.given for t in turns])
    logp = np.array([-math.inf if t.given else sum(t.logp) for t in turns])
    drawn = np.zeros(len(turns)) if given.all() else np.exp(logp - logp.max())
    weights = drawn / max(drawn.sum(), 1e-12) + GIVEN_PRIOR * given
    return weights / weights.sum()


def reward_of(step: Step) -> float:
    """Return the reward of a dreamed step; NaN where the answer was malformed."""
    return math.nan if step.error is not None else float(sum(step.rewards.values()))


@dataclasses.dataclass
class Edge:
    """An action in a node of the tree, and what it led to."""

    parent: Snapshot
    turn: Turn
    prior: float
    visits: int = 0
    total: float = 0.0
    value: float = 0.0
    """Q: the returns of its visits, as they were backed up."""
    reward: float = 0.0
    step: Step | None = None
    """What the dream answered."""
    node: "Node | None" = None
    broken: bool = False
    """Whether the dream could not answer it, or what follows it: it is left out."""

    def arrive(self, step: Step) -> None:
        """Record the step that the action took in the dream."""
        self.step, self.reward = step, reward_of(step)
        self.broken = math.isnan(self.reward)
        past = (*self.parent.past, self.turn.action)
        states = (*self.parent.past_states, self.parent.state)
        after = Snapshot(self.parent.task, past, step.state, states)
        self.node = Node(after, ended=step.terminated or step.truncated)

    def back_up(self, value: float, rate: float) -> None:
        """Take in the return of one more visit.

        With a rate eta, Q <- (1 - eta) Q + eta times the return, and the first visit
        sets Q; without one (0), Q is the mean of all returns.
        """
        self.visits, self.total = self.visits + 1, self.total + value
        if rate and self.visits > 1:
            self.value = (1 - rate) * self.value + rate * value
        else:
            self.value = self.total / self.visits


def path_transitions(path: Sequence[Edge]) -> tuple[Transition, ...]:
    """Return the dreamed steps of a path, each of which was taken."""
    return tuple(
        e.step.transition(e.parent.state, e.turn.action)
        for e in path
        if e.step is not None
    )


class Node:
    """A moment of the search: where it is, what may be done, what it is worth."""

    def __init__(self, at: Snapshot, *, ended: bool = False):
        self.at, self.ended, self.value = at, ended, 0.0
        self.edges: list[Edge] = []

    def extend(self, turns: Sequence[Turn]) -> None:
        """Add the candidates, with the priors of `candidate_priors`."""
        self.edges = [
            Edge(self.at, t, float(p))
            for t, p in zip(turns, candidate_priors(turns), strict=True)
        ]

    @property
    def turns(self) -> list[Turn]:
        """The candidates."""
        return [e.turn for e in self.edges]


class Tree:
    """The tree of one situation: PUCT, values scaled to those seen as in MuZero."""

    def __init__(
        self,
        at: Snapshot,
        turns: Sequence[Turn],
        discount: float,
        backup_rate: float = 0.0,
    ):
        """Begin with the candidates; `backup_rate` is that of `Edge.back_up`."""
        self.root, self._discount, self._rate = Node(at), discount, backup_rate
        self.root.extend(turns)
        self._low, self._high = math.inf, -math.inf

    def select(self, depth: int) -> list[Edge]:
        """Return the path to a new edge, to an end, or to the depth.

        It is empty where the dream could answer no candidate of the root.
        """
        path: list[Edge] = []
        for node in self._walk(path):
            edges = [e for e in node.edges if not e.broken]
            if len(path) == depth or node.ended or not edges:
                break
            path.append(max(edges, key=lambda e, n=node: self._score(n, e)))
        return path

    def _walk(self, path: list[Edge]) -> Iterator[Node]:
        """Yield the node at the end of the path, as long as there is one."""
        node: Node | None = self.root
        while node is not None:
            yield node
            node = path[-1].node

    def _score(self, node: Node, edge: Edge) -> float:
        visits = sum(e.visits for e in node.edges)
        bonus = EXPLORATION * edge.prior * math.sqrt(visits + 1) / (1 + edge.visits)
        return self._scaled(edge.value) * bool(edge.visits) + bonus

    def _scaled(self, value: float) -> float:
        """Return a value in [0, 1] by those seen so far, whatever rewards are."""
        spread = self._high - self._low
        return (value - self._low) / spread if spread > 0 else 0.5

    def record(self, path: Sequence[Edge]) -> None:
        """Add the discounted return of a path to each of its edges.

        A path that the dream could not answer adds nothing.
        """
        if path[-1].broken:
            return
        last = path[-1].node
        value = 0.0 if last is None or last.ended else last.value
        for edge in reversed(path):
            value = edge.reward + self._discount * value
            edge.back_up(value, self._rate)
            self._low = min(self._low, edge.value)
            self._high = max(self._high, edge.value)

    def choice(self) -> Turn:
        """Return the most visited candidate; the higher value decides between equals.

        If the dream could answer none, it is the first one.
        """
        edges = [e for e in self.root.edges if not e.broken] or self.root.edges
        return max(edges, key=lambda e: (e.visits, e.value)).turn

    def nodes(self) -> Iterator[tuple[tuple[Edge, ...], Node]]:
        """Yield all moments of the tree, each with the path from the root to it."""
        stack: list[tuple[tuple[Edge, ...], Node]] = [((), self.root)]
        while stack:
            path, node = stack.pop()
            yield path, node
            stack += [((*path, e), e.node) for e in node.edges if e.node is not None]


class SiblingPair(NamedTuple):
    """Two actions of one state, of which the `better` has the higher value.

    `path` leads from the root of its tree to the state.
    """

    path: tuple[Edge, ...]
    better: Edge
    worse: Edge


def sibling_pairs(tree: Tree, *, margin: float, min_visits: int) -> list[SiblingPair]:
    """Return the best action of each state over those worth less by the margin.

    Such pairs are the step-level preferences of Agent Q (arXiv:2408.07199). Only
    actions with `min_visits` count: the value of a single visit is one rollout's.

    Args:
      margin: above 0, in the units of the values.
    """
    out = []
    for path, node in tree.nodes():
        edges = [e for e in node.edges if not e.broken and e.visits >= min_visits]
        if edges:
            best = max(edges, key=lambda e: e.value)
            out += [
                SiblingPair(path, best, e)
                for e in edges
                if best.value - e.value >= margin
            ]
    return out
