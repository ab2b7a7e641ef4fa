"""Branches: what other actions lead to in the states of expert episodes (Eq. 2).

episodes -> K alternative actions a state (valid actions, or a policy's proposals) ->
each is taken in the real environment, in a fork or after a verified replay -> branches.
Alternatives that are left out are counted: duplicates, and errors beyond their share.
Equation numbers are those of arXiv:2510.08558.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gymnasium
import jax
import numpy as np

from dreamgym.agent.early_experience.arrival import (
    BranchPoint,
    StateNotReached,
    branch_point,
)
from dreamgym.agent.policy import Policy, Situation
from dreamgym.envs.base import as_forkable
from dreamgym.envs.failures import EnvironmentDown
from worldmodel.data.hashing import content_seed
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Branch, Episode

Proposals = Mapping[tuple[str, int], Sequence[str]]
"""Proposed actions by episode id and step."""

SAMPLES_PER_ALTERNATIVE = 2
"""Samples of a policy for each alternative; many repeat each other or the expert."""


class BranchingResult(NamedTuple):
    """The branches, the real transitions that they cost, and what was left out.

    `states` is the number of states in which alternatives were taken, of `planned`:
    fewer where the budget was spent.

    `unreachable_episodes` holds the ids of episodes in which a state was not reached
    again. The others are counts: `duplicates` of alternatives already tried in an equal
    state, `invalid_proposals` of proposals that were no valid action, `errors` of error
    transitions beyond their share, `crashed` of alternatives at which the environment
    raised.
    """

    branches: list[Branch]
    transitions: int
    unreachable_episodes: list[str]
    duplicates: int
    invalid_proposals: int
    errors: int
    crashed: int
    states: int = 0
    planned: int = 0


def branch(
    env: gymnasium.Env,
    episodes: Sequence[Episode],
    *,
    alternatives: int,
    max_episodes: int,
    seed: int,
    max_error_share: float | int = 1.0,
    max_transitions: int = 0,
    proposals: Proposals | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BranchingResult:
    """Try other actions than the expert's in every state of some expert episodes.

    The alternatives are the `proposals`, if there are any. Otherwise they are drawn
    from the environment's valid actions, or from the actions of all episodes where it
    lists none. A proposal that is no valid action is replaced by one that is drawn, as
    in the paper. No action is tried twice in equal states of a task, and none is the
    expert's.

    A state is reached by a fork of the environment, or else by a replay of the actions
    before it. Where this comes to another state or raises, the rest of the episode is
    left out; an alternative at which the environment raises is left out.

    Args:
      alternatives: the number of actions tried in a state, at most.
      max_episodes: how many of the episodes are used, from the first.
      max_error_share: the largest share of error transitions (cap_error_share).
      max_transitions: real transitions that are spent, at most; 0 sets no bound. A
        state in which not all alternatives can be paid for is left out. The cheapest
        states come first (`branch_states`).
      progress: is called with the states done and their number.

    Raises:
      EnvironmentDown: the environment raised at every branch that was tried.
    """
    all_actions = sorted({t.action for e in episodes for t in e.transitions})
    subset = list(episodes)[:max_episodes]
    attempts = {(e.task.id, t.state, t.action) for e in subset for t in e.transitions}
    points = [branch_point(env, e) for e in subset]
    states = branch_states(env, subset)
    branches: dict[tuple[int, int], list[Branch]] = {}
    unreachable = set[int]()
    counts = Counter[str]()
    for done, (number, step) in enumerate(states):
        point = points[number]
        transitions = sum(p.transitions for p in points)
        cost = point.cost(step, alternatives)
        if number in unreachable or 0 < max_transitions < transitions + cost:
            continue
        counts["visited"] += 1
        results: list[Branch] = []
        branches[number, step] = results
        try:
            actions, count = _alternatives_at(
                point, step, all_actions, proposals, alternatives, seed
            )
            counts["invalid_proposals"] += count
            _take_all(point, step, actions, attempts, results, counts)
        except StateNotReached as error:
            unreachable.add(number)
            counts["raised"] += bool(str(error))
        point.leave()
        if progress is not None:
            progress(done + 1, len(states))
    every = [b for place in sorted(branches) for b in branches[place]]
    if not every:
        _require_no_crash(env, counts, len(unreachable))
    capped = cap_error_share(every, max_error_share, seed=seed)
    return BranchingResult(
        capped,
        sum(p.transitions for p in points),
        sorted({subset[i].id for i in unreachable}),
        counts["duplicates"],
        counts["invalid_proposals"],
        len(every) - len(capped),
        counts["crashed"],
        counts["visited"],
        len(states),
    )


def _alternatives_at(
    point: BranchPoint,
    step: int,
    all_actions: Sequence[str],
    proposals: Proposals | None,
    count: int,
    seed: int,
) -> tuple[list[str], int]:
    """Return `_alternatives` in the state of a step; see there."""
    episode, valid, candidates = point.episode, point.valid_actions(step), None
    if proposals is not None:
        candidates = proposals.get((episode.id, step), ())
    rng = np.random.default_rng(content_seed(seed, episode.id, step))
    expert = episode.transitions[step].action
    return _alternatives(expert, valid, all_actions, candidates, count, rng)


def _require_no_crash(
    env: gymnasium.Env, counts: Counter[str], unreachable: int
) -> None:
    """Raise EnvironmentDown where nothing was branched because the environment raised.

    That is no bad luck with some states: the environment or its server is broken.
    """
    crashes = counts["raised"] + counts["crashed"]
    if crashes and counts["raised"] == unreachable:
        raise EnvironmentDown(
            f"{type(env.unwrapped).__name__} raised at each of {crashes} branches that "
            "were tried; the errors are printed above. Nothing was written"
        )


def _take_all(
    point: BranchPoint,
    step: int,
    actions: Sequence[str],
    attempts: set[tuple],
    results: list[Branch],
    counts: Counter[str],
) -> None:
    """Take actions that were not tried in an equal state; add what they lead to.

    Raises:
      StateNotReached: the environment did not come to the state.
    """
    episode = point.episode
    for action in actions:
        key = (episode.task.id, episode.transitions[step].state, action)
        if key in attempts:
            counts["duplicates"] += 1
            continue
        result = point.branch(step, action)
        attempts.add(key)
        if result is None:
            counts["crashed"] += 1
        else:
            results.append(result)


def branch_states(
    env: gymnasium.Env, episodes: Sequence[Episode]
) -> list[tuple[int, int]]:
    """Return (episode, step) of all states, in the order in which they are visited.

    Where the environment forks, an episode is walked through once: one after another.
    Elsewhere each alternative replays all actions before it: first steps of all
    episodes come first, because they cost least.
    """
    states = [(i, s) for i, e in enumerate(episodes) for s in range(len(e.transitions))]
    if as_forkable(env) is not None:
        return states
    return sorted(states, key=lambda place: (place[1], place[0]))


def branch_cost(
    env: gymnasium.Env, episodes: Sequence[Episode], alternatives: int
) -> int:
    """Return the real transitions that all branches of some episodes cost, at most."""
    lengths = [len(e.transitions) for e in episodes]
    if as_forkable(env) is not None:
        return sum(n - 1 + alternatives * n for n in lengths)
    return sum(alternatives * n * (n + 1) // 2 for n in lengths)


def _alternatives(
    expert: str,
    valid: Sequence[str] | None,
    all_actions: Sequence[str],
    candidates: Sequence[str] | None,
    count: int,
    rng: np.random.Generator,
) -> tuple[list[str], int]:
    """Return at most `count` actions other than the expert's, and a count.

    Candidates that are no valid action are replaced by actions that are drawn; the
    count is the number of these candidates.
    """
    others = [a for a in (all_actions if valid is None else valid) if a != expert]
    if candidates is None:
        return [others[i] for i in rng.permutation(len(others))][:count], 0
    distinct = [a for a in dict.fromkeys(candidates) if a and a != expert][:count]
    if valid is None:
        return distinct, 0
    rest = [a for a in others if a not in distinct]
    spare = iter([rest[i] for i in rng.permutation(len(rest))])
    replacements = [a if a in others else next(spare, None) for a in distinct]
    actions = [a for a in replacements if a is not None]
    return actions, len(set(distinct) - set(actions))


def cap_error_share(
    branches: Sequence[Branch], share: float | int, *, seed: int
) -> list[Branch]:
    """Return the branches, in order, with at most a share of error transitions.

    Which errors remain is drawn by `seed`. Without a cap error messages fill the
    next-state targets of open action spaces, and implicit world modelling falls below
    imitation. If there are only errors, none remains.
    """
    errors = [i for i, b in enumerate(branches) if is_invalid(b.transition)]
    good = len(branches) - len(errors)
    # At most e errors, where e <= share (good + e). The small term is for shares that
    # no float holds exactly: 0.9 * 1 / (1 - 0.9) is 9 up to rounding.
    limit = len(errors)
    if share < 1:
        limit = min(math.floor(share * good / (1 - share) + 1e-9), limit)
    # (seed, 1): a stream of its own, apart from the one that drew the alternatives.
    order = np.random.default_rng((seed, 1)).permutation(len(errors))
    removed = {errors[i] for i in order[limit:]}
    return [b for i, b in enumerate(branches) if i not in removed]


def policy_proposals(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    count: int,
    temperature: float | int,
    seed: int,
) -> dict[tuple[str, int], list[str]]:
    """Return `count` actions of the policy in every state of the episodes (Eq. 2).

    The noise of a sample depends on its seed, episode, step and number alone.
    """
    samples = [
        (e, step, i)
        for e in episodes
        for step in range(len(e.transitions))
        for i in range(count)
    ]
    out: dict[tuple[str, int], list[str]] = {(e.id, step): [] for e, step, _ in samples}
    if not samples:
        return out
    seeds = [content_seed(seed, e.id, step, i) for e, step, i in samples]
    situations = [
        Situation.at_step(e.task, e.transitions, step) for e, step, _ in samples
    ]
    keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
    turns = policy.act(situations, keys, temperature=float(temperature))
    for (e, step, _), turn in zip(samples, turns, strict=True):
        out[e.id, step].append(turn.action)
    return out
