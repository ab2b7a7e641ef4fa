"""Planning at play: a policy tries actions in the dream before it takes one.

situations -> candidate actions of the policy -> what the dream says they lead to -> the
turn with the best simulated return. The policy is not changed, and no real step is
taken: candidates that it draws itself are compared in the experience model (compare
WebDreamer, arXiv:2411.06559, and the search of Agent Q, arXiv:2408.07199).
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.agent.config import PlanConfig, PolicyConfig
from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.shield import Shield, valid_shield
from dreamgym.agent.tree_search import Edge, Node, Tree, reward_of
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


@dataclasses.dataclass
class PlanCounts:
    """What planning has cost and changed so far."""

    steps: int = 0
    """Turns that were planned. What is drawn again because all candidates were refused
    counts once more."""
    dreamed_steps: int = 0
    """Steps of the dream that this took."""
    overruled: int = 0
    """Turns whose action is another one than the policy's own."""


class Simulation(NamedTuple):
    """The result of one sequence of actions in the dream."""

    value: float
    """The discounted sum of rewards; NaN where the dream's answer was malformed."""
    changes: bool
    """Whether its first action changes the state."""


class PlanningPolicy:
    """A policy that compares its candidate actions in a dream; acts like a `Policy`.

    Candidates are the policy's own action and further draws at temperature 1 or more,
    without those that the present state has refused before. Where the policy keeps to
    listed actions, one that is not listed is replaced by the most similar. Draws that
    were taken in this very state before are left out: whatever the dream promises of
    them, it did not come. The own action is left out if it led back here
    (`avoid_loops`) and there are others; otherwise only a strictly better result
    overrules it with "best-of-n" and "mpc".
    """

    def __init__(
        self, policy: Policy, make_dream: Callable[[int], Dream], config: PlanConfig
    ):
        """Create the planner; `make_dream` returns a dream of so many slots."""
        self.policy, self.make_dream, self._plan = policy, make_dream, config
        self.counts = PlanCounts()

    @property
    def config(self) -> PolicyConfig:
        """The configuration of the policy's turns."""
        return self.policy.config

    @property
    def shield(self) -> Shield | None:
        """What replaces the policy's actions before they are executed."""
        return self.policy.shield

    def act(
        self,
        situations: Sequence[Situation],
        keys: jax.Array,
        *,
        temperature: float,
    ) -> list[Turn]:
        """Return the turn with the best simulated return for each situation.

        Args:
          situations: where the policy stands; `Situation.refused` leaves out actions.
          keys: one PRNG key for each situation, or more.
          temperature: of the policy's own action; further ones have at least 1.
        """
        noise = _Noise(keys)
        first_turns = [
            _kept_to_list(situation, turn)
            for situation, turn in zip(
                situations,
                self.policy.act(situations, keys, temperature=temperature),
                strict=True,
            )
        ]
        rows = [
            i for i in range(len(situations)) for _ in range(self._plan.simulations - 1)
        ]
        draws = iter(
            self.policy.act(
                [situations[i] for i in rows],
                noise.draw(rows),
                temperature=max(temperature, 1.0),
            )
            if rows
            else ()
        )
        candidates = []
        for turn, situation in zip(first_turns, situations, strict=True):
            others = [next(draws) for _ in range(self._plan.simulations - 1)]
            turns = [turn, *(_kept_to_list(situation, t) for t in others)]
            usable = self._usable(situation, turns)
            candidates.append(usable or [turn])
        search = _Search(self.policy, self.make_dream, self._plan, noise, temperature)
        chosen = search.choose([_snapshot(s) for s in situations], candidates)
        self.counts.steps += len(situations)
        self.counts.dreamed_steps += search.dreamed_steps
        self.counts.overruled += sum(
            a.action != b.action for a, b in zip(first_turns, chosen, strict=True)
        )
        return chosen

    def _usable(self, situation: Situation, turns: Sequence[Turn]) -> list[Turn]:
        """Return the turns that may be taken; the first one is the policy's own.

        Where the policy draws nothing again (`max_redraws` 0), the environment draws
        lots, and an action may have another effect the next time.
        """
        if not self.config.max_redraws:
            return [t for t in turns if not t.void]
        usable = [t for t in turns if not t.void and situation.may_take(t.action)]
        before = zip(situation.past_states, situation.past, strict=False)
        tried = {action for state, action in before if state == situation.state}
        untried = [t for t in usable if t.action not in tried]
        first = [t for t in usable if t.action == turns[0].action]
        led_back = turns[0].action in situation.return_counts
        if self.config.avoid_loops and led_back and untried:
            first = []
        return first + [t for t in untried if t.action != turns[0].action]


def _snapshot(situation: Situation) -> Snapshot:
    return Snapshot(
        situation.task,
        tuple(situation.past),
        situation.state,
        tuple(situation.past_states),
    )


def _kept_to_list(situation: Situation, turn: Turn) -> Turn:
    """Return the turn with the most similar allowed action, if its own is not allowed.

    Else a policy that writes mostly what is not allowed has no candidates to compare.
    """
    allowed = sorted(situation.allowed)
    action = valid_shield(situation.task, situation.state, turn.action, allowed)
    return turn if action == turn.action else turn._replace(action=action)


def _distinct(turns: Sequence[Turn]) -> list[Turn]:
    """Return the first turn of each action, in order."""
    return list({t.action: t for t in reversed(turns)}.values())[::-1]


@jax.jit
def _fold(keys: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in)(keys, numbers)


class _Noise:
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


class _Search:
    """One search for all situations of a batch, each independent of the others."""

    def __init__(
        self,
        policy: Policy,
        make_dream: Callable[[int], Dream],
        config: PlanConfig,
        noise: _Noise,
        temperature: float,
    ):
        self._policy, self._make_dream, self._config = policy, make_dream, config
        self._noise, self._temperature = noise, temperature
        self.dreamed_steps = 0

    def choose(
        self, at: Sequence[Snapshot], candidates: Sequence[Sequence[Turn]]
    ) -> list[Turn]:
        """Return the chosen turn of each snapshot's candidates.

        The policy's own turn is the first of them.
        """
        if self._config.method == "puct":
            return self._tree_search(at, candidates)
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
        trees = [
            Tree(s, _distinct(turns), self._config.discount)
            for s, turns in zip(at, candidates, strict=True)
        ]
        searched = [i for i, t in enumerate(trees) if len(t.root.turns) > 1]
        for _ in range(self._config.simulations):
            paths = {i: trees[i].select(self._config.depth) for i in searched}
            self._expand(trees, {i: path for i, path in paths.items() if path})
        return [t.choice() for t in trees]

    def _expand(self, trees: Sequence[Tree], paths: dict[int, list[Edge]]) -> None:
        """Take the last edge of each path in the dream, and record what it is worth."""
        fresh = {i: path[-1] for i, path in paths.items() if path[-1].node is None}
        if fresh:
            dream = self._make_dream(len(fresh))
            for slot, edge in enumerate(fresh.values()):
                dream.restore(slot, edge.parent)
            steps = dream.step([e.turn.action for e in fresh.values()])
            self.dreamed_steps += len(fresh)
            leaves: dict[int, tuple[Edge, Node, int]] = {}
            for (i, edge), step in zip(fresh.items(), steps, strict=True):
                assert step is not None
                edge.arrive(step)
                assert edge.node is not None
                left = self._config.depth - len(paths[i])
                if not edge.node.ended and left:
                    leaves[i] = edge, edge.node, left
            self._evaluate_leaves(leaves)
        for i, path in paths.items():
            trees[i].record(path)

    def _evaluate_leaves(self, leaves: dict[int, tuple[Edge, Node, int]]) -> None:
        """Give new nodes their candidates, and the return that the policy gets there.

        Each comes with the edge that led to it, and the steps that are left.
        """
        if not leaves:
            return
        nodes = {i: node for i, (_, node, _) in leaves.items()}
        rows = [i for i in nodes for _ in range(self._config.simulations)]
        turns = iter(
            self._policy.act(
                [
                    Situation(*nodes[i].at[:3], past_states=nodes[i].at.past_states)
                    for i in rows
                ],
                self._noise.draw(rows),
                temperature=max(self._temperature, 1.0),
            )
        )
        first_actions = []
        for node in nodes.values():
            drawn = [next(turns) for _ in range(self._config.simulations)]
            node.extend(_distinct([t for t in drawn if not t.void] or drawn))
            first_actions.append(drawn[0].action)
        results = self._continue(
            [n.at for n in nodes.values()],
            first_actions,
            list(nodes),
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
