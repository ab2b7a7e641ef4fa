"""Branches: what other actions lead to in the states of expert episodes (Eq. 2).

episodes -> K alternative actions a state (valid actions, or a policy's proposals) ->
each is taken in the real environment, in a fork or after a verified replay -> branches.
Alternatives that are left out are counted: duplicates, and errors beyond their share
(papers.md 2.5). Equation numbers are those of arXiv:2510.08558.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gymnasium
import jax
import numpy as np

from dreamgym.agent.arrival import StateNotReached, branch_point
from dreamgym.agent.policy import Policy
from worldmodel.data.hashing import content_seed
from worldmodel.data.invalid_actions import is_invalid
from worldmodel.data.records import Branch, Episode

Proposals = Mapping[tuple[str, int], Sequence[str]]
"""Proposed actions by episode id and step."""

SAMPLES_PER_ALTERNATIVE = 2
"""Samples of a policy for each alternative; many repeat each other or the expert."""


class BranchingResult(NamedTuple):
    """The branches, the real transitions that they cost, and what was left out.

    `drifted` holds the ids of episodes in which a state was not reached again. The
    others are counts: `duplicates` of alternatives already tried in an equal state,
    `replaced` of proposals that were no valid action, `errors` of error transitions
    beyond their share, `broken` of alternatives at which the environment raised.
    """

    branches: list[Branch]
    transitions: int
    drifted: list[str]
    duplicates: int
    replaced: int
    errors: int
    broken: int


def branch(
    env: gymnasium.Env,
    episodes: Sequence[Episode],
    *,
    alternatives: int,
    max_episodes: int,
    seed: int,
    max_error_share: float | int = 1.0,
    proposals: Proposals | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BranchingResult:
    """Try other actions than the expert's in every state of some expert episodes.

    The alternatives are the `proposals`, if there are any. Otherwise they are drawn
    from the environment's valid actions, or from the actions of all episodes where it
    lists none. A proposal that is no valid action is replaced by one that is drawn (the
    rule of the paper). No action is tried twice in equal states of a task, and none is
    the expert's.

    A state is reached by a fork of the environment, or else by a replay of the actions
    before it. Where this comes to another state or raises, the rest of the episode is
    left out; an alternative at which the environment raises is left out.

    Args:
      alternatives: the number of actions tried in a state, at most.
      max_episodes: how many of the episodes are used, from the first.
      max_error_share: the largest share of error transitions (cap_error_share).
      progress: is called with the episodes done and their number.
    """
    rng = np.random.default_rng(seed)
    all_actions = sorted({t.action for e in episodes for t in e.transitions})
    chosen = list(episodes)[:max_episodes]
    tried = {(e.task.id, t.state, t.action) for e in chosen for t in e.transitions}
    branches: list[Branch] = []
    drifted: list[str] = []
    transitions = duplicates = replaced = crashes = 0
    for number, episode in enumerate(chosen):
        point = branch_point(env, episode)
        try:
            for step, t in enumerate(episode.transitions):
                valid = point.valid_actions(step)
                candidates = None
                if proposals is not None:
                    candidates = proposals.get((episode.id, step), ())
                actions, count = _alternatives(
                    t.action, valid, all_actions, candidates, alternatives, rng
                )
                replaced += count
                for action in actions:
                    key = (episode.task.id, t.state, action)
                    if key in tried:
                        duplicates += 1
                        continue
                    result = point.branch(step, action)
                    tried.add(key)
                    crashes += result is None
                    if result is not None:
                        branches.append(result)
        except StateNotReached:
            drifted.append(episode.id)
        point.leave()
        transitions += point.transitions
        if progress is not None:
            progress(number + 1, len(chosen))
    capped = cap_error_share(branches, max_error_share, seed=seed)
    return BranchingResult(
        capped,
        transitions,
        sorted(set(drifted)),
        duplicates,
        replaced,
        len(branches) - len(capped),
        crashes,
    )


def _alternatives(
    expert: str,
    valid: Sequence[str] | None,
    all_actions: Sequence[str],
    candidates: Sequence[str] | None,
    count: int,
    rng: np.random.Generator,
) -> tuple[list[str], int]:
    """At most `count` actions other than the expert's, and how many replace others.

    Candidates that are no valid action are replaced by actions that are drawn.
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

    Which errors remain is drawn by `seed`. Without a cap errors fill the next-state
    targets of open action spaces, and implicit world modelling falls below imitation
    (papers.md 2.5). If there are only errors, none remains.
    """
    errors = [i for i, b in enumerate(branches) if is_invalid(b.transition)]
    good = len(branches) - len(errors)
    # e <= share (good + e); the small term is for shares no float holds exactly.
    limit = len(errors)
    if share < 1:
        limit = min(math.floor(share * good / (1 - share) + 1e-9), limit)
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
    situations = []
    for e, step, _ in samples:
        past = tuple(t.action for t in e.transitions[:step])
        situations.append((e.task, past, e.transitions[step].state))
    keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
    turns = policy.act(situations, keys, temperature=float(temperature))
    for (e, step, _), turn in zip(samples, turns, strict=True):
        out[e.id, step].append(turn.action)
    return out
