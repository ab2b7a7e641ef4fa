"""Searches of a batch of situations: their dreamed steps and draws are taken together.

moments of the dream and candidates there -> simulated sequences (best-of-n, mpc), trees
(tree_search.py) or open actions (a_star.py) -> the chosen candidate of each.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.search.a_star import AStar, WonPlans
from dreamgym.agent.search.recorded import with_recorded
from dreamgym.agent.search.tree_search import Edge, Node, Tree, reward_of
from dreamgym.envs.base import Step
from dreamgym.envs.vector import Snapshot
from worldmodel.backbone.streams import bucket
from worldmodel.data.records import State


class Dream(Protocol):
    """A batch of dreamed episodes that can start at any moment."""

    def restore(self, slot: int, snapshot: Snapshot) -> State:
        """Let a slot continue from a snapshot; return the state there."""
        ...

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """Step the slots whose episode runs; None for the others."""
        ...


class Simulation(NamedTuple):
    """The result of one sequence of actions in the dream."""

    value: float
    """The discounted sum of rewards; NaN where the dream's answer was malformed."""
    changes: bool
    """Whether its first action changes the state."""


def _distinct(turns: Sequence[Turn]) -> list[Turn]:
    """Return the first turn of each action, in order."""
    return list({t.action: t for t in reversed(turns)}.values())[::-1]


@jax.jit
def _fold(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in)(keys, numbers)


class Noise:
    """Fresh PRNG keys for what is drawn besides the policy's own action."""

    def __init__(self, keys: jax.Array):
        self._keys, self._drawn = keys, dict[int, int]()

    def draw(self, rows: Sequence[int]) -> jax.Array:
        """Return a key for each entry of `rows`, of the situation of that number.

        A situation's keys depend on how many were drawn for it before, and on no other
        situation.
        """
        width = bucket(len(rows))  # few shapes are compiled
        index, numbers = np.zeros(width, np.int32), np.zeros(width, np.int32)
        index[: len(rows)] = rows
        for i, row in enumerate(rows):
            self._drawn[row] = numbers[i] = self._drawn.get(row, 0) + 1
        return _fold(self._keys[jnp.asarray(index)], jnp.asarray(numbers))


class Search:
    """One search for all situations of a batch, each independent of the others."""

    def __init__(
        self,
        policy: Policy,
        make_dream: Callable[[int], Dream],
        config: PlanConfig,
        noise: Noise,
        temperature: float,
        won_plans: WonPlans,
        recorded: Sequence[str] = (),
        refuted: Mapping[str, Collection[tuple[State, str]]] = MappingProxyType({}),
    ):
        """Create a search.

        Args:
          recorded: further candidates of "a_star".
          refuted: by task, what no path of "a_star" has (AStar).
        """
        self._policy, self._make_dream, self._config = policy, make_dream, config
        self._noise, self._temperature = noise, temperature
        self._won_plans, self._recorded = won_plans, recorded
        self._refuted = refuted
        self.dreamed_steps = 0
        self.trees: list[Tree] = []
        self.won_paths: list[list[Edge]] = []
        """The cheapest win of each situation by "a_star", empty without one."""

    def choose(
        self, at: Sequence[Snapshot], candidates: Sequence[Sequence[Turn]]
    ) -> list[Turn]:
        """Return the chosen turn of each snapshot's candidates.

        The policy's own turn is the first of them.
        """
        if self._config.method == "puct":
            return self._tree_search(at, candidates)
        if self._config.method == "a_star":
            return self._a_star(at, candidates)
        tried = [
            _distinct(turns) if self._config.method == "best-of-n" else list(turns)
            for turns in candidates
        ]
        # A single action needs no comparison.
        tried = [x if len({t.action for t in x}) > 1 else x[:1] for x in tried]
        rows = [i for i, x in enumerate(tried) if len(x) > 1 for _ in x]
        first_actions = [t.action for x in tried if len(x) > 1 for t in x]
        depths = [self._config.depth] * len(rows)
        results = iter(
            self._continue([at[i] for i in rows], first_actions, rows, depths)
        )
        return [
            _best(x, [next(results) for _ in x]) if len(x) > 1 else x[0] for x in tried
        ]

    def _continue(
        self,
        at: Sequence[Snapshot],
        first_actions: Sequence[str],
        rows: Sequence[int],
        depths: Sequence[int],
    ) -> list[Simulation]:
        """Return what taking an action leads to, and the policy after it.

        Args:
          at: where each sequence begins.
          first_actions: the first action of each.
          rows: the number of the situation that it belongs to, for its noise.
          depths: how many steps it has, at most.
        """
        if not at:
            return []
        dream = self._make_dream(len(at))
        states = [dream.restore(i, snapshot) for i, snapshot in enumerate(at)]
        past = [list(s.past) for s in at]
        past_states = [list(s.past_states) for s in at]
        values, changes = [0.0] * len(at), [False] * len(at)
        actions: dict[int, str] = dict(enumerate(first_actions))
        for depth in range(max(depths)):
            steps = dream.step([actions.get(i) for i in range(len(at))])
            self.dreamed_steps += len(actions)
            running = []
            for i, action in actions.items():
                step = steps[i]
                assert step is not None
                past[i].append(action)
                past_states[i].append(states[i])
                if not depth:
                    changes[i] = step.state != states[i]
                values[i] += self._config.discount**depth * reward_of(step)
                states[i] = step.state
                ended = step.terminated or step.truncated
                if not ended and depth + 1 < depths[i]:
                    running.append(i)
            if not running:
                break
            turns = self._policy.act(
                [
                    Situation(at[i].task, past[i], states[i], (), past_states[i])
                    for i in running
                ],
                self._noise.draw([rows[i] for i in running]),
                temperature=self._temperature,
            )
            actions = {i: t.action for i, t in zip(running, turns, strict=True)}
        return [Simulation(*x) for x in zip(values, changes, strict=True)]

    def _tree_search(
        self, at: Sequence[Snapshot], candidates: Sequence[Sequence[Turn]]
    ) -> list[Turn]:
        """Return the most visited candidate of a tree search (PUCT) in each situation.

        A leaf is worth what the policy wins from it in the dream, up to the depth.
        """
        c = self._config
        self.trees = trees = [
            Tree(s, _distinct(turns), c.discount, c.backup_rate)
            for s, turns in zip(at, candidates, strict=True)
        ]
        searched = [i for i, t in enumerate(trees) if len(t.root.turns) > 1]
        for _ in range(c.simulations):
            paths = {i: trees[i].select(c.depth) for i in searched}
            self._expand({i: path for i, path in paths.items() if path})
        return [t.choice() for t in trees]

    def _a_star(
        self, at: Sequence[Snapshot], candidates: Sequence[Sequence[Turn]]
    ) -> list[Turn]:
        """Return the first action of the cheapest win in each situation (a_star.py).

        A search takes as many dreamed steps as "mpc" may: `simulations` times `depth`.
        """
        searches = self._searches(at, [_distinct(turns) for turns in candidates])
        searched = [i for i, s in enumerate(searches) if len(s.root.turns) > 1]
        self._search(searches, searched, self._config.simulations * self._config.depth)
        self.won_paths = [s.path() for s in searches]
        return [s.choice() for s in searches]

    def wins(self, at: Sequence[Snapshot], steps: int) -> list[list[Edge]]:
        """Return the cheapest win that A* finds from each moment, empty without one.

        Args:
          steps: of the dream in each search, at most.
        """
        drawn = self._draw({i: Node(s) for i, s in enumerate(at)})
        searches = self._searches(
            at, [with_recorded(turns, self._recorded) for turns in drawn.values()]
        )
        self._search(searches, range(len(searches)), steps)
        return [s.path() for s in searches]

    def _searches(
        self, at: Sequence[Snapshot], candidates: Sequence[Sequence[Turn]]
    ) -> list[AStar]:
        return [
            AStar(
                s,
                turns,
                depth=self._config.depth,
                plans=self._won_plans,
                weight=self._config.estimate_weight,
                refuted=self._refuted.get(s.task.id, ()),
            )
            for s, turns in zip(at, candidates, strict=True)
        ]

    def _search(
        self, searches: Sequence[AStar], searched: Sequence[int], steps: int
    ) -> None:
        """Take up to so many dreamed steps in each of the numbered searches."""
        for _ in range(steps):
            popped = ((i, searches[i].pop()) for i in searched)
            edges = {i: edge for i, edge in popped if edge is not None}
            if not edges:
                break
            taken = self._take(edges.values())
            arrived = (
                (i, searches[i].record(step))
                for i, step in zip(edges, taken, strict=True)
            )
            nodes = {i: node for i, node in arrived if node is not None}
            for i, turns in self._draw(nodes).items():
                searches[i].extend(with_recorded(turns, self._recorded))

    def _take(self, edges: Collection[Edge]) -> list[Step]:
        """Take actions in the dream, each in its own moment."""
        dream = self._make_dream(len(edges))
        for slot, edge in enumerate(edges):
            dream.restore(slot, edge.parent)
        steps = dream.step([e.turn.action for e in edges])
        self.dreamed_steps += len(edges)
        return [step for step in steps if step is not None]

    def _draw(self, nodes: Mapping[int, Node]) -> dict[int, list[Turn]]:
        """Return `simulations` turns of the policy in each node, by the same keys.

        The keys are numbers of situations, for their noise.
        """
        if not nodes:
            return {}
        count = self._config.simulations
        rows = [i for i in nodes for _ in range(count)]
        at = [nodes[i].at for i in rows]
        turns = iter(
            self._policy.act(
                [Situation(*s[:3], past_states=s.past_states) for s in at],
                self._noise.draw(rows),
                temperature=max(self._temperature, 1.0),
            )
        )
        return {i: [next(turns) for _ in range(count)] for i in nodes}

    def _expand(self, paths: dict[int, list[Edge]]) -> None:
        """Take the last edge of each path in the dream, and record what it is worth."""
        fresh = {i: path[-1] for i, path in paths.items() if path[-1].node is None}
        if fresh:
            steps = self._take(fresh.values())
            leaves: dict[int, tuple[Edge, Node, int]] = {}
            for (i, edge), step in zip(fresh.items(), steps, strict=True):
                edge.arrive(step)
                assert edge.node is not None
                left = self._config.depth - len(paths[i])
                if not edge.node.ended and left:
                    leaves[i] = edge, edge.node, left
            self._evaluate_leaves(leaves)
        for i, path in paths.items():
            self.trees[i].record(path)

    def _evaluate_leaves(self, leaves: dict[int, tuple[Edge, Node, int]]) -> None:
        """Give new nodes their candidates, and the return that the policy gets there.

        Each comes with the edge that led to it, and the steps that are left.
        """
        drawn = self._draw({i: node for i, (_, node, _) in leaves.items()})
        for i, (_, node, _) in leaves.items():
            node.extend(with_recorded(drawn[i], ()))
        results = self._continue(
            [node.at for _, node, _ in leaves.values()],
            [turns[0].action for turns in drawn.values()],
            list(leaves),
            [left for _, _, left in leaves.values()],
        )
        for (edge, node, _), result in zip(leaves.values(), results, strict=True):
            node.value, edge.broken = result.value, math.isnan(result.value)


def _best(turns: Sequence[Turn], results: Sequence[Simulation]) -> Turn:
    """Return the turn with the best simulated return; the first of equal ones.

    A greater return counts first, then that the action changes the state. What the
    dream could not answer comes last.
    """

    def rank(result: Simulation) -> tuple[float, bool]:
        broken = math.isnan(result.value)
        return (-math.inf if broken else result.value, result.changes and not broken)

    best = max(range(len(turns)), key=lambda i: (*rank(results[i]), -i))
    return turns[best]
