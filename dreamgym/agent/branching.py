"""Branches: what other actions lead to at the states of expert episodes (eq. 2).

episodes -> K alternatives a state (valid actions, or a policy's proposals) -> each one
taken in the real environment, from a snapshot or after a verified replay -> branches.
What is left out is counted: duplicates, and errors beyond their share (papers.md 2.5).
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

Proposed = Mapping[tuple[str, int], Sequence[str]]
"""Actions somebody proposes, by episode and step."""

TRIES = 2
"""Samples of a policy for each alternative: it often says the same, or the expert's."""


class Branched(NamedTuple):
    """The branches, the real transitions they cost, and what was left out.

    `drifted` names episodes whose replay did not arrive, `duplicates` counts
    alternatives that were known of their state, `replaced` proposals the environment
    would not take, `errors` error transitions beyond their share, `broken`
    alternatives at which the environment raised.
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
    most: int,
    seed: int,
    errors: float | int = 1.0,
    proposed: Proposed | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Branched:
    """Real alternatives at every step of at most `most` expert episodes.

    Alternatives are those `proposed` where given, else drawn from the environment's
    valid actions where it declares them, else from actions seen on other tasks. A
    proposal that is no valid action gives way to one drawn from those (the paper's
    rule). Nobody's is the expert's own, nor one known of the same state of the task. An
    environment that declares `fork()` is branched by snapshot; in any other each
    alternative is reached by replaying the prefix from a reset. Where that does not
    arrive at the recorded state, or raises on the way, the episode is left; an
    alternative at which the environment raises is dropped.

    Args:
      errors: the largest share of error transitions among the branches (see capped).
    """
    rng = np.random.default_rng(seed)
    seen = sorted({t.action for e in episodes for t in e.transitions})
    chosen = list(episodes)[:most]
    known = {(e.task.id, t.state, t.action) for e in chosen for t in e.transitions}
    out: list[Branch] = []
    drifted: list[str] = []
    spent = duplicates = replaced = crashed = 0
    for number, episode in enumerate(chosen):
        point = branch_point(env, episode)
        try:
            for step, t in enumerate(episode.transitions):
                valid = point.valid_actions(step)
                named = (episode.id, step)
                said = None if proposed is None else proposed.get(named, ())
                picked, other = _picked(t.action, valid, seen, said, alternatives, rng)
                replaced += other
                for action in picked:
                    key = (episode.task.id, t.state, action)
                    if key in known:
                        duplicates += 1
                        continue
                    result = point.branch(step, action)
                    known.add(key)
                    crashed += result is None
                    if result is not None:
                        out.append(result)
        except StateNotReached:
            drifted.append(episode.id)
        point.leave()
        spent += point.transitions
        if progress is not None:
            progress(number + 1, len(chosen))
    kept = capped(out, errors, seed=seed)
    left = len(out) - len(kept)
    return Branched(
        kept, spent, sorted(set(drifted)), duplicates, replaced, left, crashed
    )


def _picked(
    expert: str,
    valid: Sequence[str] | None,
    seen: Sequence[str],
    said: Sequence[str] | None,
    number: int,
    rng: np.random.Generator,
) -> tuple[list[str], int]:
    """At most `number` actions other than the expert's, and how many replace others.

    Where somebody `said` which, those that are not valid give way to others, drawn.
    """
    others = [a for a in (seen if valid is None else valid) if a != expert]
    if said is None:
        return [others[i] for i in rng.permutation(len(others))][:number], 0
    named = [a for a in dict.fromkeys(said) if a and a != expert][:number]
    if valid is None:
        return named, 0
    rest = [a for a in others if a not in named]
    spare = iter([rest[i] for i in rng.permutation(len(rest))])
    found = [a if a in others else next(spare, None) for a in named]
    picked = [a for a in found if a is not None]
    return picked, len(set(named) - set(picked))


# --- errors ------------------------------------------------------------------


def capped(
    branches: Sequence[Branch], share: float | int, *, seed: int
) -> list[Branch]:
    """The branches, in order, with error transitions at most that share of them.

    Which errors stay is drawn by seed. Uncapped, errors fill the next-state targets of
    open action spaces, and IWM falls below imitation (papers.md 2.5). Where there is
    nothing but errors, none stays.
    """
    wrong = [i for i, b in enumerate(branches) if is_invalid(b.transition)]
    good = len(branches) - len(wrong)
    # e <= share (good + e); the small term is for shares no float holds exactly.
    most = len(wrong)
    if share < 1:
        most = min(math.floor(share * good / (1 - share) + 1e-9), most)
    order = np.random.default_rng((seed, 1)).permutation(len(wrong))
    left = {wrong[i] for i in order[most:]}
    return [b for i, b in enumerate(branches) if i not in left]


# --- proposals ---------------------------------------------------------------


def proposals(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    number: int,
    temperature: float | int,
    seed: int,
) -> dict[tuple[str, int], list[str]]:
    """`number` samples of the policy at every state of the episodes (eq. 2).

    A sample is the same whatever other states are asked about.
    """
    asked = [
        (e, step, i)
        for e in episodes
        for step in range(len(e.transitions))
        for i in range(number)
    ]
    out: dict[tuple[str, int], list[str]] = {(e.id, step): [] for e, step, _ in asked}
    if not asked:
        return out
    seeds = [content_seed(seed, e.id, step, i) for e, step, i in asked]
    situations = []
    for e, step, _ in asked:
        past = tuple(t.action for t in e.transitions[:step])
        situations.append((e.task, past, e.transitions[step].state))
    keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
    turns = policy.act(situations, keys, temperature=float(temperature))
    for (e, step, _), turn in zip(asked, turns, strict=True):
        out[e.id, step].append(turn.action)
    return out
