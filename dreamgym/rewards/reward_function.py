"""The reward function: named reward components for every step of an episode.

episodes (and the actions before them) -> process rewards of each step, by rules, then
the reward model, then the judge (or all of them, weighted) -> mixture with the outcome
-> named components, their sources, and the reason where an episode has no reward.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.rules import (
    Components,
    add_components,
    process_rewards,
    scale_components,
    task_rewards,
    unscaled_rewards,
)
from worldmodel.data.records import Episode, Task, Transition

Pasts = Sequence[Sequence[str]]
"""For each episode the actions before its first step; none if it starts its task."""

NO_SOURCE = "none"
"""The source of a step that no source scores: its process reward is 0."""

NO_OUTCOME = "outcome: nobody scored the episode"
"""The problem of an episode without an outcome where the outcome is rewarded."""


class RewardedEpisode(NamedTuple):
    """The rewards of an episode.

    `rewards` holds the named components of each step; their sum is its reward.
    `sources` holds what scored the process of each step: "rule", "learned", "judge",
    several of them joined by "+", or "none". With a `problem` the rewards are
    incomplete, and must not be compared with those of other episodes.
    """

    rewards: tuple[Components, ...]
    sources: tuple[str, ...]
    problem: str | None


@runtime_checkable
class StepScorer(Protocol):
    """A reward model (dreamgym.rewards.reward_model.RewardModel)."""

    def scores(
        self,
        attempts: Sequence[tuple[Task, Sequence[Transition]]],
        pasts: Pasts | None = None,
    ) -> list[Float[np.ndarray, " S"]]:
        """Return the score R of each step of each attempt."""
        ...


@runtime_checkable
class StepJudge(Protocol):
    """A judge of steps, at a cost for each call (dreamgym.rewards.judge.Judge)."""

    def scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts | None = None,
    ) -> list[dict[int, float] | str]:
        """Return the reward of each wanted step, or why an episode has none."""
        ...


class _StepScore(NamedTuple):
    """What a source says about a step; if it is not sure, the next source decides."""

    components: Components
    sure: bool


_EpisodeScores = list[dict[int, _StepScore] | str]
"""For each episode: scores by step, or the problem that prevented them."""


class RewardFunction:
    """Rewards episodes under one configuration."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        learned: StepScorer | None = None,
        judge: StepJudge | None = None,
    ):
        """Raise ValueError if the settings name a source that is not given."""
        for source, model in (("learned", learned), ("judge", judge)):
            if source in config.tiers and model is None:
                raise ValueError(f"tiers name {source!r}, and no such model was given")
        self.config, self._learned, self._judge = config, learned, judge

    def score(
        self, episodes: Sequence[Episode], pasts: Pasts | None = None
    ) -> list[RewardedEpisode]:
        """Return the rewards of every step, in the order of the episodes.

        Args:
          pasts: the actions before each episode; None if all start their task.

        Raises:
          ValueError: the expected tool calls of a task are malformed.
          ChatError: the judge's server is gone or gives no answer (Judge.scores).
        """
        pasts = [()] * len(episodes) if pasts is None else pasts
        processes, sources, problems = self._process(episodes, pasts)
        out = []
        for e, process, names, problem in zip(
            episodes, processes, sources, problems, strict=True
        ):
            unknown = e.success is None and self._needs_outcome(e)
            reason = NO_OUTCOME if problem is None and unknown else problem
            out.append(RewardedEpisode(self._mix(e, process), tuple(names), reason))
        return out

    def _needs_outcome(self, episode: Episode) -> bool:
        c = self.config
        calls = c.tools.enabled and "calls" in episode.task.options
        return c.alpha > 0 or c.gated or calls

    def _mix(
        self, episode: Episode, process: Sequence[Components]
    ) -> tuple[Components, ...]:
        """alpha outcome + (1 - alpha) process, and the components outside of it."""
        c, steps = self.config, episode.transitions
        process_weight = 1.0 - c.alpha
        out = []
        for t, components, unscaled in zip(
            steps, process, unscaled_rewards(steps, c.kept), strict=True
        ):
            if c.alpha:
                terms = [scale_components(components, process_weight), unscaled]
            else:
                terms = [components, unscaled]
            if c.invalid and t.invalid:
                terms.append({"invalid": -float(c.invalid)})
            out.append(add_components(terms))
        if c.alpha and episode.success is not None:
            outcome = c.success if episode.success else c.failure
            out[-1] = add_components([out[-1], {"outcome": c.alpha * outcome}])
        # Not process: the gate would withhold it from the failures that it punishes.
        final = task_rewards(episode, c.tools)
        if final and process_weight:
            out[-1] = add_components([out[-1], scale_components(final, process_weight)])
        return tuple(out)

    def _process(
        self, episodes: Sequence[Episode], pasts: Pasts
    ) -> tuple[list[list[Components]], list[list[str]], list[str | None]]:
        """Components and sources of each step, and the problem, of each episode."""
        c = self.config
        process: list[list[Components]] = [
            [{} for _ in e.transitions] for e in episodes
        ]
        sources: list[list[list[str]]] = [[[] for _ in e.transitions] for e in episodes]
        problems: list[str | None] = [None] * len(episodes)
        wanted = [self._rewarded_steps(e) for e in episodes]
        for source, weight in zip(
            c.tiers, c.blend if c.blend else (None,) * len(c.tiers), strict=True
        ):
            if weight == 0:
                continue
            results = self._scores(source, episodes, wanted, pasts)
            for i, scores in enumerate(results):
                if isinstance(scores, str):
                    problems[i], wanted[i] = scores, []
                    continue
                for step, score in scores.items():
                    components = score.components
                    if weight is not None:
                        components = scale_components(components, weight)
                    elif not score.sure and source != "rule":
                        continue
                    process[i][step] = add_components([process[i][step], components])
                    if score.sure or weight is not None:
                        sources[i][step].append(source)
                if weight is None:
                    wanted[i] = [s for s in wanted[i] if not scores[s].sure]
        names = [["+".join(x) if x else NO_SOURCE for x in steps] for steps in sources]
        return process, names, problems

    def _rewarded_steps(self, episode: Episode) -> list[int]:
        """The steps with a process reward: all of them, or none."""
        c = self.config
        if c.alpha == 1 or (c.gated and episode.success is not True):
            return []
        return list(range(len(episode.transitions)))

    def _scores(
        self,
        source: str,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _EpisodeScores:
        if source == "rule":
            return self._rule_scores(episodes, wanted, pasts)
        if source == "learned":
            return self._model_scores(episodes, wanted, pasts)
        assert self._judge is not None
        return [
            rewards
            if isinstance(rewards, str)
            else {s: _StepScore({"judge": x}, True) for s, x in rewards.items()}
            for rewards in self._judge.scores(episodes, wanted, pasts)
        ]

    def _rule_scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _EpisodeScores:
        """The rules are sure of a step to which they give a reward that is not 0."""
        out: _EpisodeScores = []
        for e, steps, past in zip(episodes, wanted, pasts, strict=True):
            rewards = process_rewards(e, self.config, past) if steps else []
            out.append(
                {s: _StepScore(rewards[s], any(rewards[s].values())) for s in steps}
            )
        return out

    def _model_scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _EpisodeScores:
        """The reward model is sure of a step if its probability is far from 0.5."""
        assert self._learned is not None
        c = self.config.learned
        index = [i for i, steps in enumerate(wanted) if steps]
        results = self._learned.scores(
            [(episodes[i].task, episodes[i].transitions) for i in index],
            [pasts[i] for i in index],
        )
        out: _EpisodeScores = [{} for _ in episodes]
        for i, scores in zip(index, results, strict=True):
            probability = {s: _sigmoid(float(scores[s])) for s in wanted[i]}
            out[i] = {
                s: _StepScore(
                    {"learned": c.scale * (2 * p - 1)}, abs(p - 0.5) >= c.confidence
                )
                for s, p in probability.items()
            }
        return out


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))


def with_rewards(episode: Episode, result: RewardedEpisode) -> Episode:
    """Return the episode with new rewards in place of its own."""
    steps = tuple(
        dataclasses.replace(t, rewards=components)
        for t, components in zip(episode.transitions, result.rewards, strict=True)
    )
    return dataclasses.replace(episode, transitions=steps)
