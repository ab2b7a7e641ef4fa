"""Rollouts for one update: groups of tasks, more where they agree, forks of states."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from curriculum import sampler
from curriculum.pool import TaskPool, TaskQuota
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.base import UNTRUSTED
from dreamgym.envs.vector import Snapshot, VectorEnv
from dreamgym.rewards.reward_function import (
    NO_OUTCOME,
    Pasts,
    RewardedEpisode,
    with_rewards,
)
from dreamgym.training.config import LoopConfig
from worldmodel.data.records import Episode, Task

Score = Callable[[Sequence[Episode], Pasts], Sequence[RewardedEpisode]]
"""What pays the steps of episodes (rewards.RewardFunction.score)."""


class Rollouts(NamedTuple):
    """Groups of `group_size` that follow each other: from tasks' starts, from forks.

    Where their steps were scored, `paid` tells by whom and for what (see scored).
    """

    started: list[Trajectory]
    forked: list[Trajectory]
    paid: Mapping[str, float] = MappingProxyType({})

    @property
    def all(self) -> list[Trajectory]:
        """Both, the forks last."""
        return [*self.started, *self.forked]


def gather(
    policy: Policy,
    envs: VectorEnv,
    pool: TaskPool,
    chosen: Sequence[Task],
    config: LoopConfig,
    *,
    key: jax.Array,
    rng: np.random.Generator,
    source: str,
    mix: Sequence[TaskQuota] = (),
    show: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Roll out a group of every task chosen, then what the config asks for beyond.

    Further tasks are of the same `mix`, and others while there are any.
    """
    size = config.group_size

    def roll(starts: Sequence[Task | Snapshot], wave: str, key: jax.Array):
        return rollout(
            policy, envs, [t for t in starts for _ in range(size)], key=key,
            source=source + wave, temperature=config.update.temperature, progress=show,
        )  # fmt: skip

    found = wave = roll(chosen, "", key)
    for number in range(1, config.resample + 1):
        silent = sum(not differs(group) for group in groups(wave, size))
        if not silent:
            break
        played = {t.episode.task.id for t in found}
        more = sampler.sample(
            pool, silent, config.curriculum, rng, task_mixture=mix, exclude=played
        )
        wave = roll(more, f"-more{number}", jax.random.fold_in(key, number))
        found = [*found, *wave]
    starts = fork_points(found, config, rng)
    forked = roll(starts, "-fork", jax.random.fold_in(key, 0)) if starts else []
    return Rollouts(found, forked)


def scored(found: Rollouts, score: Score) -> Rollouts:
    """The rollouts with other rewards; what cannot be scored has an error.

    One that was cut is paid, too, as far as it went: a critic goes on from there. That
    nobody knows its outcome is no problem of its own. `paid` then holds the share of
    steps that each tier scored (tiers/NAME) and what an episode got on average for each
    component (paid/NAME).
    A fork's steps are paid what they would be in a whole episode: its past counts.
    """
    out = found.all
    broken = [t.error is not None and not t.error.startswith(UNTRUSTED) for t in out]
    known = [i for i, gone in enumerate(broken) if not gone]
    told = score([out[i].episode for i in known], [out[i].past for i in known])
    for i, row in zip(known, told, strict=True):
        t = out[i]
        error = t.error
        expected = error is not None and row.problem == NO_OUTCOME
        if row.problem is not None and not expected:
            error = f"reward: {row.problem}"
        out[i] = t._replace(episode=with_rewards(t.episode, row), error=error)
    count = len(found.started)
    return Rollouts(out[:count], out[count:], _paid(told))


def _paid(told: Sequence[RewardedEpisode]) -> dict[str, float]:
    who = Counter(tier for row in told for tier in row.sources)
    parts: Counter[str] = Counter()
    for row in told:
        for step in row.rewards:
            parts.update(step)
    steps, episodes = who.total(), len(told)
    return {
        **{f"tiers/{name}": n / steps for name, n in sorted(who.items())},
        **{f"paid/{name}": float(x) / episodes for name, x in sorted(parts.items())},
    }


def groups(rows: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    """Neighbours of `size`."""
    for at in range(0, len(rows), size):
        yield rows[at : at + size]


def differs(group: Sequence[Trajectory]) -> bool:
    """Whether some of a group won and some did not: whether it can be learnt from."""
    return len({bool(t.episode.success) for t in group if t.error is None}) > 1


def fork_points(
    rows: Sequence[Trajectory], config: LoopConfig, rng: np.random.Generator
) -> list[Snapshot]:
    """States on the way of groups that do not agree, each once; beginnings left out."""
    if not config.forks:
        return []
    found: dict[tuple, Snapshot] = {}
    for group in groups(rows, config.group_size):
        if differs(group):
            passed = [s for t in group for s in _way(t)]
            found |= {(s.task.id, s.past, s.state): s for s in passed}
    points = list(found.values())
    return [points[i] for i in rng.permutation(len(points))[: config.forks]]


def _way(t: Trajectory) -> Iterator[Snapshot]:
    past = t.past
    for x in t.episode.transitions:
        if past != t.past:
            yield Snapshot(t.episode.task, past, x.state)
        past = (*past, x.action)
