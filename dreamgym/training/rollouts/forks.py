"""Forks: states on the way of rollouts from which a group of further ones begins."""

import collections
from collections.abc import Iterator, Sequence

import numpy as np

from dreamgym.agent.policy import Turn
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.vector import Snapshot
from dreamgym.rl.credit import Fork
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.groups import Rollouts, groups_of, is_informative


def fork_points(
    rows: Sequence[Trajectory], config: LoopConfig, rng: np.random.Generator
) -> list[Snapshot]:
    """Return at most `forks_per_update` states to fork, taken from informative groups.

    Each state counts once; the states in which rollouts begin are left out. They are
    drawn at random, or are those of the largest entropy or of the least sure value
    (ForkConfig.by).
    """
    if not config.forks_per_update:
        return []
    # In an informative group some decision on the way made the difference: there it is
    # worth comparing actions in one and the same state.
    unique: dict[tuple, Snapshot] = {}
    turns: dict[tuple, list[Turn]] = {}
    won = collections.defaultdict[tuple, list[bool]](list)
    group_success: dict[tuple, float] = {}
    for group in groups_of(rows, config.group_size):
        if is_informative(group):
            scored = [bool(t.episode.success) for t in group if t.error is None]
            for t in group:
                for state, turn in zip(_states(t), t.turns, strict=True):
                    if state.past != t.past:
                        unique[key := _key(state)] = state
                        turns.setdefault(key, []).append(turn)
                        group_success[key] = float(np.mean(scored))
                        if t.error is None:
                            won[key].append(bool(t.episode.success))
    keys = list(unique)
    order = [keys[i] for i in rng.permutation(len(keys))]
    if config.fork.by == "entropy":  # of equals those that were drawn first
        order.sort(key=lambda key: -entropy_estimate(turns[key]))
    elif config.fork.by == "value":
        order.sort(key=lambda key: -outcome_variance(won[key], group_success[key]))
    return [unique[key] for key in order[: config.forks_per_update]]


def entropy_estimate(turns: Sequence[Turn]) -> float:
    """Return the mean of -log p over the sampled tokens of turns in one state.

    Its expectation is the mean entropy of these tokens, in nats.
    """
    sampled = [
        logp
        for turn in turns
        for logp, is_sampled in zip(turn.logp, turn.sampled, strict=True)
        if is_sampled
    ]
    return -float(np.mean(sampled)) if sampled else 0.0


def outcome_variance(won: Sequence[bool], prior: float) -> float:
    """Return p (1 - p), p the estimated probability to win from a state.

    p is the mean over the rollouts that passed the state and one more, which is won
    with the `prior` probability: a state that one rollout passed tells little.
    """
    p = (sum(won) + prior) / (len(won) + 1)
    return p * (1.0 - p)


def forks_of(rollouts: Rollouts, size: int) -> list[Fork]:
    """Return the forks of the rollouts, by numbers of `rollouts.all`."""
    members: dict[tuple, list[int]] = {}
    for number, t in enumerate(rollouts.started):
        for state in _states(t):
            members.setdefault(_key(state), []).append(number)
    first, out = len(rollouts.started), []
    for group in groups_of(rollouts.forked, size):
        start = next(_states(group[0]))
        continuations = tuple(range(first, first + len(group)))
        passing = tuple(members.get(_key(start), ()))
        out.append(Fork(passing, continuations, len(start.past)))
        first += len(group)
    return out


def _key(state: Snapshot) -> tuple:
    return state.task.id, state.past, state.state


def _states(t: Trajectory) -> Iterator[Snapshot]:
    """Yield the moment before each step of a trajectory."""
    past, states = t.past, t.past_states
    for step in t.episode.transitions:
        yield Snapshot(t.episode.task, past, step.state, states)
        past, states = (*past, step.action), (*states, step.state)
