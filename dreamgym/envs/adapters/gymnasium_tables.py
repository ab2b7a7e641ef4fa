"""Tables of transitions of Gymnasium environments, `P`, and the plans in them.

environment -> its table, if it has one that holds for what a player sees -> whether it
draws lots, the best end, a shortest plan.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

Outcome = tuple[float, int, float, bool]
Table = Mapping[int, Mapping[int, tuple[Outcome, ...]]]
"""P[state][action] -> (probability, next state, reward, terminated) of each outcome."""

PASSIVE = (
    gymnasium.wrappers.OrderEnforcing,
    gymnasium.wrappers.PassiveEnvChecker,
    gymnasium.wrappers.RecordEpisodeStatistics,
    gymnasium.wrappers.TimeLimit,
)
"""Wrappers that have a step of their own, and change neither rewards nor states."""


def table_of(env: gymnasium.Env) -> Table | None:
    """Return the table of transitions of an environment.

    None where it has none, where `P` is something else, or where a wrapper may change
    what the environment shows, pays or is given.
    """
    if is_transformed(env):
        return None
    try:
        return _read_table(getattr(env.unwrapped, "P"), env.action_space)  # noqa: B009
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def is_transformed(
    env: gymnasium.Env, *, besides: tuple[type[gymnasium.Wrapper], ...] = ()
) -> bool:
    """Return whether a wrapper may change an environment's states or rewards.

    Args:
      besides: kinds of wrappers whose changes do not matter.
    """
    while isinstance(env, gymnasium.Wrapper):
        passes_on = (type(env).step, type(env).reset) == (
            gymnasium.Wrapper.step,
            gymnasium.Wrapper.reset,
        )
        if not passes_on and not isinstance(env, (*PASSIVE, *besides)):
            return True
        env = env.env
    return False


def _read_table(raw: Any, actions: gymnasium.Space) -> Table | None:
    table = {
        int(state): {
            int(action): tuple(
                (float(p), int(next_state), float(reward), bool(int(end)))
                for p, next_state, reward, end in outcomes
            )
            for action, outcomes in by_action.items()
        }
        for state, by_action in raw.items()
    }
    every = [o for by_action in table.values() for o in by_action.values()]
    complete = all(
        any(outcome[0] > 0 for outcome in outcomes)
        and all(
            math.isfinite(p) and math.isfinite(reward) and (end or next_state in table)
            for p, next_state, reward, end in outcomes
        )
        for outcomes in every
    )
    possible = all(
        actions.contains(a) for by_action in table.values() for a in by_action
    )
    return table if every and complete and possible else None


def place_in(table: Table, env: gymnasium.Env) -> int | None:
    """Return the state of its table that an environment is in, by its attribute `s`."""
    place = getattr(env.unwrapped, "s", None)
    if not isinstance(place, int | np.integer) or int(place) not in table:
        return None
    return int(place)


PLAYS, PLAYED_STEPS = 20, 40
"""Episodes by which a table is compared with play, and steps of each, at most."""


def holds_in_play(table: Table, env: gymnasium.Env) -> bool:
    """Return whether an environment plays as its table says, as far as is tried.

    Episodes take a shortest plan and then random actions. One whose place in its table
    is not known is not tried.
    """
    best, rng = best_end(table), np.random.default_rng(0)
    for seed in range(PLAYS):
        env.reset(seed=seed)
        if (place := place_in(table, env)) is None:
            return True
        plan = shortest_plan(table, place, best)
        for step in range(PLAYED_STEPS):
            actions = sorted(table[place])
            action = plan[step] if step < len(plan) else int(rng.choice(actions))
            outcomes = _possible(table[place][action])
            _, reward, terminated, truncated, _ = env.step(action)
            place = place_in(table, env)
            result = place, float(reward), bool(terminated)
            if not any(_is_outcome(result, outcome) for outcome in outcomes):
                return False
            if terminated or truncated or place is None:
                break
    return True


def _is_outcome(
    result: tuple[int | None, float, bool], outcome: tuple[int, float, bool]
) -> bool:
    """Return whether a step led where the table says; an end may leave any place."""
    pays_the_same = math.isclose(result[1], outcome[1], abs_tol=1e-9)
    same_end = pays_the_same and result[2] == outcome[2]
    return same_end and (result[2] or result[0] == outcome[0])


def _possible(outcomes: Sequence[Outcome]) -> list[tuple[int, float, bool]]:
    """Return next state, reward and end of the outcomes of a probability above 0."""
    return [outcome[1:] for outcome in outcomes if outcome[0] > 0]


def _results(table: Table) -> Iterator[list[tuple[int, float, bool]]]:
    """Yield the possible outcomes of each action in each state."""
    for actions in table.values():
        yield from map(_possible, actions.values())


def best_end(table: Table) -> float | None:
    """Return the best reward that an end pays; None where nothing ends."""
    ends = (o[1] for outcomes in _results(table) for o in outcomes if o[2])
    return max(ends, default=None)


def draws_lots(table: Table) -> bool:
    """Return whether an action in a state has several possible outcomes."""
    return any(len(set(outcomes)) > 1 for outcomes in _results(table))


def shortest_plan(table: Table, start: int, best: float | None) -> list[int]:
    """Return the fewest actions from a state to an end with this reward."""
    ways: dict[int, list[int]] = {start: []}
    queue = [start]  # breadth first: the first way to a state is a shortest one
    for state in queue:
        for action, outcomes in table[state].items():
            next_state, reward, terminated = _possible(outcomes)[0]
            way = [*ways[state], action]
            if terminated:
                if reward == best:
                    return way
            elif next_state not in ways:
                ways[next_state] = way
                queue.append(next_state)
    return []
