"""Branches: what other actions lead to at the states of expert episodes (eq. 2).

episodes -> K alternatives a state (valid actions, or a policy's proposals) -> each one
taken in the real environment, from a snapshot or after a verified replay -> branches.
What is left out is counted: duplicates, and errors beyond their share (papers.md 2.5).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gymnasium
import jax
import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.envs.base import begin, take
from worldmodel.experience import content_seed
from worldmodel.text.records import Branch, Episode, State, Transition

Proposed = Mapping[tuple[str, int], Sequence[str]]
"""Actions somebody proposes, by episode and step."""

TRIES = 2
"""Samples of a policy for each alternative: it often says the same, or the expert's."""

_ERROR = re.compile(
    r"\b(error|invalid|unknown|illegal|cannot|can't|could not|couldn't|not possible|"
    r"don't understand|do not understand|nothing happens|no such|not recogni[sz]ed)\b",
    re.IGNORECASE,
)


class Branched(NamedTuple):
    """The branches, the real transitions they cost, and what was left out.

    `drifted` names episodes whose replay did not arrive, `duplicates` counts
    alternatives that were known of their state, `replaced` proposals the environment
    would not take, `errors` error transitions beyond their share.
    """

    branches: list[Branch]
    transitions: int
    drifted: list[str]
    duplicates: int
    replaced: int
    errors: int


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
    arrive at the recorded state the episode is left.

    Args:
      errors: the largest share of error transitions among the branches (see capped).
    """
    rng = np.random.default_rng(seed)
    seen = sorted({t.action for e in episodes for t in e.transitions})
    chosen = list(episodes)[:most]
    known = {(e.task.id, t.state, t.action) for e in chosen for t in e.transitions}
    out: list[Branch] = []
    drifted: list[str] = []
    spent = duplicates = replaced = 0
    for number, episode in enumerate(chosen):
        place = _place(env, episode)
        for step, t in enumerate(episode.transitions):
            there = place.at(step)
            valid = getattr(there[0], "valid_actions", None) if there else None
            pool = seen if valid is None else list(valid())
            others = [a for a in pool if a != t.action]
            if proposed is None:
                picked = [others[i] for i in rng.permutation(len(others))]
                picked = picked[:alternatives]
            else:
                said = [a for a in proposed.get((episode.id, step), ()) if a]
                said = [a for a in dict.fromkeys(said) if a != t.action][:alternatives]
                picked = said if valid is None else _taken(said, others, rng)
                replaced += len(set(said) - set(picked))
            for action in picked:
                if there is None:
                    break
                if (episode.task.id, t.state, action) in known:
                    duplicates += 1
                    continue
                there = place.at(step)
                if there is not None:
                    known.add((episode.task.id, t.state, action))
                    found = place.take(*there, t.state, action)
                    out.append(Branch(episode=episode.id, step=step, transition=found))
            if there is None:
                drifted.append(episode.id)
                break
        spent += place.spent
        if progress is not None:
            progress(number + 1, len(chosen))
    kept = capped(out, errors, seed=seed)
    left = len(out) - len(kept)
    return Branched(kept, spent, sorted(set(drifted)), duplicates, replaced, left)


def _taken(
    said: Sequence[str], valid: Sequence[str], rng: np.random.Generator
) -> list[str]:
    """Proposals, those that are not valid replaced by other valid ones, drawn."""
    rest = [a for a in valid if a not in said]
    spare = iter([rest[i] for i in rng.permutation(len(rest))])
    found = [a if a in valid else next(spare, None) for a in said]
    return [a for a in found if a is not None]


# --- arriving at a state -----------------------------------------------------


class _Taking:
    """An environment and an expert's episode; `spent` counts real transitions."""

    def __init__(self, env: gymnasium.Env, episode: Episode):
        self.env, self.episode, self.spent = env, episode, 0

    def take(
        self, env: gymnasium.Env, earned: float, state: State, action: str
    ) -> Transition:
        result = take(env, action, earned)
        self.spent += 1
        return Transition(
            state=state, action=action, next_state=result.state,
            rewards=result.rewards, terminated=result.terminated,
            truncated=result.truncated, success=result.success,
            invalid=result.invalid, reveals=result.reveals,
        )  # fmt: skip


class _Replays(_Taking):
    """Arrives by a reset and the expert's actions, each time anew."""

    def at(self, step: int) -> tuple[gymnasium.Env, float] | None:
        """An environment in the state of the step, with the return so far."""
        rows = self.episode.transitions
        _, state = begin(self.env, self.episode.task)
        earned = 0.0
        for t in rows[:step]:
            result = self.take(self.env, earned, state, t.action)
            state = result.next_state
            earned += result.reward
            if result.terminated or result.truncated:
                return None
        return (self.env, earned) if state == rows[step].state else None


class _Snapshots(_Taking):
    """Walks the episode once and hands out forks of where it stands."""

    def __init__(self, env: gymnasium.Env, episode: Episode):
        super().__init__(env, episode)
        _, self._state = begin(env, episode.task)
        self._earned, self._step, self._over = 0.0, 0, False

    def at(self, step: int) -> tuple[gymnasium.Env, float] | None:
        rows = self.episode.transitions
        while self._step < step and not self._over:
            t = rows[self._step]
            result = self.take(self.env, self._earned, self._state, t.action)
            self._state, self._step = result.next_state, self._step + 1
            self._earned += result.reward
            self._over = result.terminated or result.truncated
        if self._over or self._state != rows[step].state:
            return None
        return self.env.fork(), self._earned  # type: ignore[attr-defined]


def _place(env: gymnasium.Env, episode: Episode) -> _Replays | _Snapshots:
    forks = getattr(env, "fork", None) is not None
    return _Snapshots(env, episode) if forks else _Replays(env, episode)


# --- errors ------------------------------------------------------------------


def failed(t: Transition) -> bool:
    """Whether the environment could not take the action.

    As it says itself; where it says nothing, whether the state stayed as it was, one
    line aside that speaks of an error.
    """
    if t.invalid is not None:
        return t.invalid
    if t.terminated or t.reward:
        return False
    new = [line for line in t.next_state if line not in t.state]
    gone = [line for line in t.state if line not in t.next_state]
    if not new:
        return not gone
    return len(gone) <= 1 and all(_ERROR.search(line) for line in new)


def capped(
    branches: Sequence[Branch], share: float | int, *, seed: int
) -> list[Branch]:
    """The branches, in order, with error transitions at most that share of them.

    Which errors stay is drawn by seed. Uncapped, errors fill the next-state targets of
    open action spaces, and IWM falls below imitation (papers.md 2.5). Where there is
    nothing but errors, none stays.
    """
    wrong = [i for i, b in enumerate(branches) if failed(b.transition)]
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
