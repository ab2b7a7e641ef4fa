"""Planning at play: a policy tries actions in the dream before it takes one.

situations -> candidate actions of the policy -> what the dream says they lead to
(search/batch.py) -> the turn with the best simulated return. The policy is not changed,
and no real step is taken: candidates that it draws itself are compared in the
experience model (compare WebDreamer, arXiv:2411.06559, and the search of Agent Q,
arXiv:2408.07199).
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax

from dreamgym.agent.config import PlanConfig, PolicyConfig
from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.recorded_turns import given_turn
from dreamgym.agent.search.a_star import WonPlans
from dreamgym.agent.search.batch import Dream, Noise, Search
from dreamgym.agent.search.tree_search import Tree
from dreamgym.agent.shield import Shield, valid_shield
from dreamgym.envs.vector import Snapshot
from worldmodel.data.records import State


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
        self,
        policy: Policy,
        make_dream: Callable[[int], Dream],
        config: PlanConfig,
        *,
        won_actions: Sequence[Sequence[str]] = (),
        recorded_actions: Sequence[str] = (),
        observe: Callable[[Sequence[Tree]], None] | None = None,
    ):
        """Create the planner.

        Args:
          make_dream: returns a dream of so many slots.
          won_actions: the actions of won episodes, from which "a_star" estimates what
            is left.
          recorded_actions: what "a_star" tries besides the policy's draws
            (search/recorded.py).
          observe: is called with the trees of each search of "puct".

        Raises:
          ValueError: the method is "auto", which a run decides
            (build.planning.chosen_plan).
        """
        if config.method == "auto":
            raise ValueError('method "auto" must be decided before: "mpc" or "a_star"')
        self.policy, self.make_dream, self._plan = policy, make_dream, config
        self._won_plans, self._observe = WonPlans(won_actions), observe
        self._recorded = recorded_actions
        self._grammar = policy.grammar(1.0) if config.method == "a_star" else None
        self._planned: dict[tuple[str, tuple[str, ...], State], str] = {}
        """The next action of a win that "a_star" found, by task, past and state."""
        self._refuted: dict[str, set[tuple[State, str]]] = {}
        """By task, planned actions that should have won, or that changed nothing, each
        with the state in which it was taken."""
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
        for situation in situations:
            self._compare_with_plan(situation)
        noise = Noise(keys)
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
            turns += self._given_turns(situation)
            usable = self._usable(situation, turns)
            planned = [t for t in usable if t.action == self._planned_action(situation)]
            candidates.append(planned[:1] or usable or [turn])
        search = Search(
            self.policy,
            self.make_dream,
            self._plan,
            noise,
            temperature,
            self._won_plans,
            self._recorded,
            self._refuted,
        )
        chosen = search.choose([_snapshot(s) for s in situations], candidates)
        if self._observe is not None:
            self._observe(search.trees)
        for path in search.won_paths:
            for edge in path:
                at = edge.parent
                self._planned[at.task.id, at.past, at.state] = edge.turn.action
        self.counts.steps += len(situations)
        self.counts.dreamed_steps += search.dreamed_steps
        self.counts.overruled += sum(
            a.action != b.action for a, b in zip(first_turns, chosen, strict=True)
        )
        return chosen

    def _compare_with_plan(self, situation: Situation) -> None:
        """Give up a plan whose last action did not lead where the dream said.

        The action is on no later path where it should have won, or changed nothing:
        a state that differs in a detail may still be on the way. A new attempt at a
        task makes a plan of its own. Where the environment draws lots (`max_redraws`
        0), an action may lead elsewhere the next time.
        """
        task, past, states = situation.task.id, situation.past, situation.past_states
        if not past:
            self._forget_plans(task)
        if not past or not states or not self.config.max_redraws:
            return
        before = task, tuple(past[:-1]), states[-1]
        expected = task, tuple(past), situation.state
        if self._planned.get(before) != past[-1] or expected in self._planned:
            return
        longest = max(len(key[1]) for key in self._planned if key[0] == task)
        if longest < len(past) or situation.state == states[-1]:
            self._refuted.setdefault(task, set()).add((states[-1], past[-1]))
        self._forget_plans(task)

    def _forget_plans(self, task: str) -> None:
        for plan in [key for key in self._planned if key[0] == task]:
            del self._planned[plan]

    def _planned_action(self, situation: Situation) -> str | None:
        """Return the next action of a win found before, if all came as it was dreamed.

        A search that began here would find the rest of that win again.
        """
        where = situation.task.id, tuple(situation.past), situation.state
        return self._planned.get(where)

    def _given_turns(self, situation: Situation) -> list[Turn]:
        """Return the recorded and the planned actions as turns of the policy.

        Those that it cannot write are left out.
        """
        if self._grammar is None:
            return []
        planned = self._planned_action(situation)
        turns = (
            given_turn(self.policy, self._grammar, situation, action)
            for action in (*self._recorded, *([planned] if planned else []))
        )
        return [turn for turn in turns if turn is not None]

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
