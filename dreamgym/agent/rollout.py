"""Rollouts: the policy acts in a batch of environments, dreamed or real.

tasks -> slots -> (state -> turn -> step)* -> Trajectory: an episode, and its turns as
they were sampled. A slot whose episode ends gets the next task. A trajectory whose
environment failed has no success: it is left unscored, not scored 0.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.refused_actions import RefusedActions
from dreamgym.agent.shield import SHIELDED, keep_action, valid_shield
from dreamgym.agent.subgoals import present_subgoal
from dreamgym.envs.base import Step
from dreamgym.envs.vector import (
    Snapshot,
    VectorEnv,
    as_restorable,
    episode_seed,
)
from worldmodel.backbone.streams import bucket
from worldmodel.data.records import Episode, State, Task, Transition
from worldmodel.text.tools.tool_calls import read_action


class Trajectory(NamedTuple):
    """One episode with the turns of its actions.

    `error` says why it is not scored, None if it is. `past` holds the actions before
    the episode, if it does not begin at the start of its task, and `past_states` the
    states in which these were taken. `plan_lengths` are those of the expert's plans in
    the states of its turns, where they were asked for (VectorEnv.plan_length).
    """

    episode: Episode
    turns: tuple[Turn, ...]
    error: str | None
    past: tuple[str, ...] = ()
    past_states: tuple[State, ...] = ()
    plan_lengths: tuple[int | None, ...] = ()

    @property
    def has_void_turn(self) -> bool:
        """Whether a turn decides nothing: it is empty, cut off, or, where the task has
        tools, neither a call that can be read nor an answer.
        """
        tools = {"tools", "calls"} & self.episode.task.options.keys()
        return any(
            turn.void or (tools and read_action(turn.action).void)
            for turn in self.turns
        )


@dataclasses.dataclass
class _Slot:
    index: int
    task: Task
    state: State
    earlier_actions: tuple[str, ...]
    earlier_states: tuple[State, ...]
    transitions: list[Transition]
    turns: list[Turn]
    valid_actions: tuple[str, ...] = ()
    """Those that the policy reads, or that are only recorded (keep_action)."""
    allowed: frozenset[str] = frozenset()
    """Those that the policy keeps to; if empty, it keeps to none."""
    refused: RefusedActions = dataclasses.field(default_factory=RefusedActions)
    plan_lengths: list[int | None] = dataclasses.field(default_factory=list)

    @property
    def past(self) -> tuple[str, ...]:
        return (*self.earlier_actions, *(t.action for t in self.transitions))

    def situation(self, policy: Policy | PlanningPolicy) -> Situation:
        """Return what the policy acts in."""
        past = self.past
        states = (*self.earlier_states, *(t.state for t in self.transitions))
        return Situation(
            self.task,
            past,
            self.state,
            self.valid_actions,
            states,
            present_subgoal(self.transitions, policy.config.subgoal_steps),
            self.refused.at(self.state),
            self.allowed,
            _return_counts(past, states, self.state),
        )


def _return_counts(
    past: Sequence[str], past_states: Sequence[State], state: State
) -> Mapping[str, int]:
    """Count the actions that were taken in a state, left it, and led back to it."""
    following = (*past_states[1:], state)
    return Counter(
        action
        for action, before, after in zip(past, past_states, following, strict=False)
        if before == state != after
    )


@jax.jit
def _keys(key: jax.Array, index: jax.Array, step: jax.Array) -> jax.Array:
    # By episode and step, not by slot: an episode's noise does not depend on which
    # other episodes are in the batch.
    def one(i: Any, t: Any) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, i), t)

    return jax.vmap(one)(index, step)


@jax.jit
def _redraw_keys(keys: jax.Array, redraw: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in)(keys, redraw)


REDRAWS_PER_PASS = 8
"""Redraws of a turn that are sampled at once: a pass costs its compiled batch, however
few of the turns are still refused."""


def rollout(
    policy: Policy | PlanningPolicy,
    envs: VectorEnv,
    tasks: Sequence[Task | Snapshot],
    *,
    key: jax.Array,
    temperature: float,
    redraw_temperature: float | None = None,
    reset_seed: int | None = None,
    source: str = "policy",
    max_transitions: int | None = None,
    asks_plans: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trajectory]:
    """Return one trajectory for each task, in their order.

    An episode starts at its task, or continues from a snapshot. An action is drawn
    again, up to `policy.config.max_redraws` times, that the present state has refused
    before in the episode, or that the environment does not list, where the shield of
    the policy is "valid". So is, with `avoid_loops`, one that was taken in this very
    state before and led back to it: of such draws the one counts that was taken least
    often. Several redraws are sampled at once, and the first of the best counts. The
    turns keep the log-probabilities of the policy's own, unconditioned distribution. A
    draw that would be refused costs no step and leads to the same state, so that its
    advantage is zero; one that would lead back costs steps, so that updates credit the
    policy with what this rule saves.

    Args:
      key: episode i draws the noise of step t from fold_in(fold_in(key, i), t), and
        that of its n-th redraw from fold_in of this and n.
      redraw_temperature: the temperature of redraws; None: as the first draw's, which
        turns that are trained on need.
      reset_seed: with it, episode i resets a real environment with a seed of this and
        i, so that all policies that play the tasks meet the same chances.
      source: the `source` of the episodes, and the first part of their ids.
      max_transitions: the transitions that are taken at most. An episode starts only
        if it and those that run may take `envs.max_steps` each; tasks whose episode did
        not start, the last ones, are missing from the result.
      asks_plans: whether the expert is asked for its plan in the state of each turn.
      progress: is called with the episodes done and their number.

    Raises:
      TypeError: a snapshot, and a batch that is not Restorable.
    """
    slots: list[_Slot | None] = [None] * envs.size
    out: dict[int, Trajectory] = {}
    next_index, transitions_before = 0, envs.transitions
    while True:
        starts: list[Task | Snapshot | None] = [None] * envs.size
        for i, slot in enumerate(slots):
            if max_transitions is not None:
                taken = envs.transitions - transitions_before
                if not _pays_for_another(max_transitions - taken, slots, envs):
                    break
            if slot is None and next_index < len(tasks):
                starts[i] = tasks[next_index]
                slots[i] = _slot(next_index, tasks[next_index])
                next_index += 1
        _begin(envs, slots, starts, reset_seed)
        running = [(i, s) for i, s in enumerate(slots) if s is not None]
        if not running:
            return [out[i] for i in sorted(out)]
        reads, keeps = _uses_of_valid_actions(policy)
        if reads or keeps:
            for i, slot in running:
                listed = tuple(envs.valid_actions(i) or ())
                slot.valid_actions = listed if reads else ()
                slot.allowed = frozenset(listed) if keeps else frozenset()
        for i, slot in running if asks_plans else ():
            slot.plan_lengths.append(envs.plan_length(i))
        turns = _act(
            policy,
            [s for _, s in running],
            key,
            temperature,
            temperature if redraw_temperature is None else redraw_temperature,
        )
        actions: list[str | None] = [None] * envs.size
        for (i, slot), turn in zip(running, turns, strict=True):
            actions[i] = _shielded(policy, envs, i, slot, turn.action)
        steps = envs.step(actions)
        for (i, slot), turn in zip(running, turns, strict=True):
            step = steps[i]
            assert step is not None, "a running slot must be stepped"
            if _advance(slot, turn, actions[i] or "", step):
                out[slot.index] = _finish(slot, step, source)
                slots[i] = None
        if progress is not None:
            progress(len(out), len(tasks))


def _pays_for_another(
    left: int, slots: Sequence[_Slot | None], envs: VectorEnv
) -> bool:
    """Return whether `left` transitions are enough for one more episode.

    It and those that run may each be as long as episodes may be.
    """
    running = [slot for slot in slots if slot is not None]
    reserved = sum(envs.max_steps - len(slot.transitions) for slot in running)
    return reserved + envs.max_steps <= left


def _uses_of_valid_actions(policy: Policy | PlanningPolicy) -> tuple[bool, bool]:
    """Return whether valid actions are read or recorded, and whether they are kept to.

    The policy keeps to them by redraws, and by its shield where these do not help.
    """
    redraws = policy.config.max_redraws > 0
    return (
        policy.config.admissible_actions > 0 or policy.shield is keep_action,
        redraws and policy.shield is valid_shield,
    )


def _slot(index: int, start: Task | Snapshot) -> _Slot:
    if isinstance(start, Snapshot):
        before = start.past, start.past_states
        return _Slot(index, start.task, start.state, *before, [], [])
    return _Slot(index, start, (), (), (), [], [])


def _begin(
    envs: VectorEnv,
    slots: Sequence[_Slot | None],
    starts: Sequence[Task | Snapshot | None],
    reset_seed: int | None,
) -> None:
    """Start episodes: reset slots to their task, or restore a snapshot."""
    tasks = [t if isinstance(t, Task) else None for t in starts]
    if any(tasks):
        options: dict[str, Any] = {
            "tasks": tasks,
            "reset_mask": [t is not None for t in tasks],
        }
        if reset_seed is not None:
            options["seeds"] = [
                None if s is None else episode_seed(reset_seed, s.index) for s in slots
            ]
        states = envs.reset(options=options)
        for slot, state in zip(slots, states, strict=True):
            if slot is not None and state is not None:
                slot.state = state
    for i, start in enumerate(starts):
        if isinstance(start, Snapshot):
            restorable = as_restorable(envs)
            if restorable is None:
                raise TypeError(f"{type(envs).__name__} cannot start from a snapshot")
            restorable.restore(i, start)


def _act(
    policy: Policy | PlanningPolicy,
    slots: list[_Slot],
    key: jax.Array,
    temperature: float,
    redraw_temperature: float,
) -> list[Turn]:
    """Return a turn for each slot; what it may not take, or leads back, is redrawn."""
    turns = _draw(policy, slots, key, temperature)
    limit = policy.config.max_redraws
    situations = [slot.situation(policy) for slot in slots]

    def rank(index: int, turn: Turn) -> float:
        return _rank(policy, situations[index], turn)

    for first in range(1, limit + 1, REDRAWS_PER_PASS):
        again = [i for i, turn in enumerate(turns) if rank(i, turn) > 0]
        if not again:
            break
        numbers = range(first, min(first + REDRAWS_PER_PASS, limit + 1))
        redrawn = iter(
            _draw(
                policy,
                [slots[i] for i in again for _ in numbers],
                key,
                redraw_temperature,
                [number for _ in again for number in numbers],
            )
        )
        for i in again:
            draws = [next(redrawn) for _ in numbers]
            for draw in draws:
                old = rank(i, turns[i])
                # Of those that may not be taken the last one counts.
                if old == math.inf or (rank(i, draw) < old and not draw.void):
                    turns[i] = draw
    return turns


def _rank(policy: Policy | PlanningPolicy, situation: Situation, turn: Turn) -> float:
    """Return how often a turn's action led back here; infinite if it may not be taken.

    A planner has its own rule for actions that were taken before.
    """
    if not situation.may_take(turn.action):
        return math.inf
    if isinstance(policy, PlanningPolicy) or not policy.config.avoid_loops:
        return 0.0
    return float(situation.return_counts.get(turn.action, 0))


def _draw(
    policy: Policy | PlanningPolicy,
    slots: list[_Slot],
    key: jax.Array,
    temperature: float,
    redraws: Sequence[int] = (),
) -> list[Turn]:
    """Return a turn for each slot, or its redraw of the given number."""
    # Padded to a bucket, so that few shapes are compiled while slots run empty.
    width = bucket(len(slots))
    index, step = np.zeros(width, np.int32), np.zeros(width, np.int32)
    index[: len(slots)] = [s.index for s in slots]
    step[: len(slots)] = [len(s.turns) for s in slots]
    keys = _keys(key, jnp.asarray(index), jnp.asarray(step))
    if redraws:
        numbers = np.zeros(width, np.int32)
        numbers[: len(slots)] = redraws
        keys = _redraw_keys(keys, jnp.asarray(numbers))
    situations = [slot.situation(policy) for slot in slots]
    return policy.act(situations, keys, temperature=temperature)


def _shielded(
    policy: Policy | PlanningPolicy,
    envs: VectorEnv,
    index: int,
    slot: _Slot,
    action: str,
) -> str:
    """Return the action that is executed in place of the one that was sampled."""
    if policy.shield is None:
        return action
    valid = envs.valid_actions(index)
    executed: Any = policy.shield(slot.task, slot.state, action, valid)
    if not isinstance(executed, str):
        name = getattr(policy.shield, "__qualname__", repr(policy.shield))
        raise TypeError(
            f"policy.shield: {name}(task, state, action, valid_actions) must return "
            f"the action to execute as a text, got {executed!r:.40}"
        )
    return executed


def _advance(slot: _Slot, turn: Turn, action: str, step: Step) -> bool:
    """Record a step by the executed action; return whether the episode has ended."""
    slot.turns.append(turn)
    if action != turn.action:
        step = step._replace(costs={**step.costs, SHIELDED: 1.0})
    if step.error is not None:  # what the environment shows after a failure is no state
        step = step._replace(state=slot.state)
    transition = step.transition(slot.state, action, turn.thought)
    if slot.valid_actions:
        transition = dataclasses.replace(transition, valid_actions=slot.valid_actions)
    slot.transitions.append(transition)
    slot.refused.record(transition)
    slot.state = step.state
    return step.terminated or step.truncated


def _finish(slot: _Slot, step: Step, source: str) -> Trajectory:
    success = None if step.error is not None else step.success
    episode = Episode(
        id=f"{source}-{slot.index}-{slot.task.id}",
        task=slot.task,
        transitions=tuple(slot.transitions),
        source=source,
        success=success,
        error=step.error,
    )
    before = slot.earlier_actions, slot.earlier_states
    plans = tuple(slot.plan_lengths)
    return Trajectory(episode, tuple(slot.turns), step.error, *before, plans)
