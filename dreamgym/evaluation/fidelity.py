"""The scorecard by family and actor, with replays in the real environment."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

from dreamgym.envs import base
from dreamgym.envs.failures import EnvironmentDown
from worldmodel import fidelity
from worldmodel.data.hashing import content_seed
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, lines
from worldmodel.experience.base import ExperienceModel, Query
from worldmodel.fidelity.cases import ReplayResult

MAX_FAILED = 24
"""Replays that may all fail before the environment is down."""
MAX_UNREACHED = 12
"""Queries that replays may all fail to reach before no further one is tried: each costs
real steps, and a task without a seed of its own begins otherwise each time."""


def by_family(
    model: ExperienceModel,
    episodes: Sequence[Episode],
    limit: int,
    progress: Callable[[int, int], None],
    *,
    env: gymnasium.Env | None = None,
    steps_left: Callable[[], int | None] = lambda: None,
    full: bool = False,
    open_loop_steps: int | None = None,
    recorded: Sequence[Episode] = (),
) -> dict[str, Any]:
    """Return the scorecard of all episodes, with those of each family in `families`.

    With the `env` that the episodes come from, near misses are replayed there; if its
    transitions are random, so is every case. `real_transitions` counts these steps;
    `steps_left` returns how many more may be taken, None where there is no bound.
    With `full`, `sources` has the scorecard of each behavior policy, and `ceiling` the
    score of the environment itself when the episodes are replayed. For
    `open_loop_steps` and `recorded` see fidelity.score; only the scorecard of all
    episodes has open-loop steps.
    """
    replays = None if env is None else Replays(env, steps_left)
    ask = functools.partial(
        fidelity.score,
        model,
        full=full,
        replay=replays,
        stochastic=replays is not None and replays.stochastic,
        recorded=recorded,
    )
    scorecard = ask(
        episodes, limit=limit, progress=progress, open_loop_steps=open_loop_steps
    )
    parts = functools.partial(_parts, ask, episodes, max(limit // 2, 1))
    scorecard["families"] = parts(lambda e: e.task.family)
    if full:
        scorecard["sources"] = parts(lambda e: e.source)
    if replays is not None and full:
        scorecard["ceiling"] = replays.exact(episodes)
    scorecard["real_transitions"] = 0 if replays is None else replays.transitions
    scorecard["failed_replays"] = 0 if replays is None else replays.failed
    return scorecard


def _parts(
    score: Callable[..., dict[str, Any]],
    episodes: Sequence[Episode],
    limit: int,
    name_of: Callable[[Episode], str],
) -> dict[str, Any]:
    groups: dict[str, list[Episode]] = {}
    for e in episodes:
        groups.setdefault(name_of(e), []).append(e)
    return {
        name: score(group, limit=limit, open_loop_steps=0)
        for name, group in sorted(groups.items())
    }


class Replays:
    """Replays recorded steps in a real environment.

    `transitions` counts the real steps that this takes, `failed` the replays in which
    the environment raised an exception.
    """

    def __init__(
        self,
        env: gymnasium.Env,
        steps_left: Callable[[], int | None] = lambda: None,
    ):
        self._env, self.transitions, self.failed = env, 0, 0
        self._steps_left = steps_left
        self.stochastic = not base.is_deterministic(env)
        self._results: dict[tuple, ReplayResult | None] = {}
        self._unreached, self._reached = 0, False

    def __call__(self, query: Query) -> ReplayResult | None:
        """Replay the past of a query; return the outcome of its action.

        None if the environment arrives at another state (its transitions are random) or
        does not know the task, if fewer steps are left than this takes, and after
        MAX_UNREACHED queries of which none was reached. Where transitions are random,
        the past is played with the task's own seed, and the action with another one.
        Each query is replayed once and cached, because the scorecard of a family
        repeats queries of the whole one.
        """
        key = (query.task.id, *query[1:4])
        if key not in self._results:
            left = self._steps_left()
            if left is not None and left <= len(query.past):
                return None
            if self._unreached >= MAX_UNREACHED and not self._reached:
                return None
            self._results[key] = self._play(query)
        return self._results[key]

    def _step(self, action: str):
        self.transitions += 1
        return self._env.step(action)

    def _play(self, query: Query) -> ReplayResult | None:
        result = base.guarded(self._env, lambda: self._replay(query))
        if isinstance(result, base.EnvironmentFailure):
            self.failed += 1
            if self.failed >= MAX_FAILED and self.failed == len(self._results) + 1:
                raise EnvironmentDown(
                    f"{result.environment} broke each of {self.failed} episodes that "
                    f"were played again: {result.reason}"
                )
            return None
        self._unreached += result is None
        self._reached |= result is not None
        return result

    def _replay(self, query: Query) -> ReplayResult | None:
        _, state = base.begin(self._env, query.task)
        for action in query.past:
            text, _, terminated, truncated, _ = self._step(action)
            if terminated or truncated:
                return None
            state = lines(text)
        if state != query.state:
            return None
        if self.stochastic:
            base.seed_anew(self._env, content_seed(query.task.id, *query[1:4]))
        text, reward, _, _, info = self._step(query.action)
        return ReplayResult(lines(text), float(reward) > 0 or bool(info.get("success")))

    def exact(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        """Return how often a replay reaches the recorded next state.

        It is the ceiling for an experience model, below 1 if transitions are random.
        Episodes with an unknown task or another initial state are left out, and so is
        what follows a step that led elsewhere.
        """
        rate = Rate()
        for e in episodes:
            result = base.guarded(self._env, lambda e=e: self._compare(e, rate))
            self.failed += isinstance(result, base.EnvironmentFailure)
        return rate.json()

    def _compare(self, episode: Episode, rate: Rate) -> None:
        """Play an episode again; add to the rate which next states are the same."""
        _, state = base.begin(self._env, episode.task)
        if self.stochastic:
            base.seed_anew(self._env, content_seed(episode.id))
        for t in episode.transitions:
            if state != t.state:
                return
            text, _, terminated, truncated, _ = self._step(t.action)
            state = lines(text)
            rate.add(state == t.next_state)
            if terminated or truncated:
                return
