"""The reward function: named reward components for every step of an episode.

episodes (and the actions before them) -> process rewards of each step, by rules, then
the reward model, then the judge (or all of them, weighted) -> mixture with the outcome
-> named components, their sources, and the reason where an episode has no reward.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from dreamgym.rewards.components.questions import ComponentLabeller, label_steps
from dreamgym.rewards.config import RewardConfig
from dreamgym.rewards.rules import (
    Components,
    StepLabels,
    add_components,
    process_rewards,
    rewards_tool_use,
    scale_components,
    step_costs,
    task_rewards,
    unscaled_rewards,
    weigh_components,
)
from dreamgym.rewards.tool_config import ToolLabelsConfig
from worldmodel.data.records import Episode, State, Task, Transition

Pasts = Sequence[Sequence[str]]
"""For each episode the actions before its first step; none if it starts its task."""

PastStates = Sequence[Sequence[State]]
"""For each episode the states in which these were taken, as far as they are known."""

NO_SOURCE = "none"
"""The source of a step that no source scores: its process reward is 0."""

NO_OUTCOME = "outcome: nobody scored the episode"
"""The problem of an episode without an outcome where the outcome is rewarded."""


class RewardedEpisode(NamedTuple):
    """The rewards of an episode.

    `rewards` holds the named components of each step; their sum is its reward.
    `sources` holds what scored the process of each step: "rule", "reward_model",
    "judge", several of them joined by "+", or "none". With a `problem` the rewards are
    incomplete, and must not be compared with those of other episodes.
    """

    rewards: tuple[Components, ...]
    sources: tuple[str, ...]
    problem: str | None


@runtime_checkable
class StepScorer(Protocol):
    """A reward model (dreamgym.rewards.reward_model.RewardModel).

    With the `objective` "progress" the score of a step is its share of the outcome.
    """

    objective: str

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
        step_numbers: Sequence[Sequence[int]],
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
    """Rewards episodes under one configuration.

    `reward_model` is the model of the source "reward_model", if there is one.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        reward_model: StepScorer | None = None,
        judge: StepJudge | None = None,
        labellers: Mapping[str, ComponentLabeller] = MappingProxyType({}),
    ):
        """Raise ValueError if the settings name a source that is not given.

        `labellers` are the "classifier" and the "judge" of components of tool use.
        """
        for source, model in (("reward_model", reward_model), ("judge", judge)):
            if source in config.sources and model is None:
                raise ValueError(
                    f"sources name {source!r}, and no such model was given"
                )
        labels = config.tools.labels
        for name in ("classifier", "judge") if config.tools.enabled else ():
            if labels.asks(name) and name not in labellers:
                raise ValueError(f"tools.labels name a {name}, and none was given")
        self.config, self.reward_model, self._judge = config, reward_model, judge
        self._labellers = labellers

    def score(
        self,
        episodes: Sequence[Episode],
        pasts: Pasts | None = None,
        past_states: PastStates | None = None,
    ) -> list[RewardedEpisode]:
        """Return the rewards of every step, in the order of the episodes.

        Args:
          pasts: the actions before each episode; None if all start their task.
          past_states: the states in which these were taken, as far as they are known.

        Raises:
          ValueError: the expected tool calls of a task are malformed.
          ChatError: the judge's server is gone or gives no answer (Judge.scores).
        """
        pasts = [()] * len(episodes) if pasts is None else pasts
        if past_states is None:
            past_states = [()] * len(episodes)
        processes, sources, problems = self._process(episodes, pasts, past_states)
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
        tools = rewards_tool_use(episode.task, c.tools)
        return c.outcome_weight > 0 or c.process_requires_success or tools

    def _mix(
        self, episode: Episode, process: Sequence[Components]
    ) -> tuple[Components, ...]:
        """Return alpha outcome + (1 - alpha) process, and the unscaled components.

        alpha is `outcome_weight`. Costs of steps and calls are not scaled by it.
        """
        c, steps = self.config, episode.transitions
        process_weight = 1.0 - c.outcome_weight
        out = []
        for t, components, unscaled in zip(
            steps, process, unscaled_rewards(steps, c.unscaled_components), strict=True
        ):
            if c.outcome_weight:
                terms = [scale_components(components, process_weight), unscaled]
            else:
                terms = [components, unscaled]
            if c.invalid_penalty and t.invalid:
                terms.append({"invalid": -float(c.invalid_penalty)})
            terms.append(step_costs(t.action, c.cost))
            out.append(add_components(terms))
        if c.outcome_weight and episode.success is not None:
            outcome = c.success_reward if episode.success else c.failure_reward
            out[-1] = add_components([out[-1], {"outcome": c.outcome_weight * outcome}])
        # Not process: `process_requires_success` would withhold it from the failures
        # that it punishes.
        final = task_rewards(episode, c.tools)
        if final and process_weight:
            out[-1] = add_components([out[-1], scale_components(final, process_weight)])
        return tuple(weigh_components(part, c.component_weights) for part in out)

    def _process(
        self, episodes: Sequence[Episode], pasts: Pasts, past_states: PastStates
    ) -> tuple[list[list[Components]], list[list[str]], list[str | None]]:
        """Return the components and sources of each step, and each episode's problem.

        Without weights a source leaves the steps that it is not sure of to the next;
        with weights each source scores every step.
        """
        c = self.config
        process: list[list[Components]] = [
            [{} for _ in e.transitions] for e in episodes
        ]
        sources: list[list[list[str]]] = [[[] for _ in e.transitions] for e in episodes]
        problems: list[str | None] = [None] * len(episodes)
        step_numbers = [self._rewarded_steps(e) for e in episodes]
        for source, weight in zip(
            c.sources,
            c.source_weights if c.source_weights else (None,) * len(c.sources),
            strict=True,
        ):
            if weight == 0:
                continue
            results = self._scores(source, episodes, step_numbers, pasts, past_states)
            for i, scores in enumerate(results):
                if isinstance(scores, str):
                    problems[i], step_numbers[i] = scores, []
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
                    step_numbers[i] = [s for s in step_numbers[i] if not scores[s].sure]
        names = [["+".join(x) if x else NO_SOURCE for x in steps] for steps in sources]
        return process, names, problems

    def _rewarded_steps(self, episode: Episode) -> list[int]:
        """Return the steps with a process reward: all of them, or none.

        Where it would have no effect, no reward model and no judge is asked for it.
        """
        c = self.config
        if c.outcome_weight == 1 or (
            c.process_requires_success and episode.success is not True
        ):
            return []
        return list(range(len(episode.transitions)))

    def _scores(
        self,
        source: str,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Pasts,
        past_states: PastStates,
    ) -> _EpisodeScores:
        if source == "rule":
            return self._rule_scores(episodes, step_numbers, pasts, past_states)
        if source == "reward_model":
            return self._model_scores(episodes, step_numbers, pasts)
        assert self._judge is not None
        return [
            rewards
            if isinstance(rewards, str)
            else {s: _StepScore({"judge": x}, True) for s, x in rewards.items()}
            for rewards in self._judge.scores(episodes, step_numbers, pasts)
        ]

    def _rule_scores(
        self,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Pasts,
        past_states: PastStates,
    ) -> _EpisodeScores:
        """Return the rules' scores; they are sure where a reward is not 0."""
        out: _EpisodeScores = []
        labels = self._tool_labels(episodes, step_numbers, pasts)
        for e, steps, past, states, label in zip(
            episodes, step_numbers, pasts, past_states, labels, strict=True
        ):
            if isinstance(label, str):
                out.append(label)
                continue
            rewards: list[Components] = []
            if steps:
                rewards = process_rewards(e, self.config, past, label, states)
            out.append(
                {s: _StepScore(rewards[s], any(rewards[s].values())) for s in steps}
            )
        return out

    def _tool_labels(
        self,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> list[dict[int, StepLabels] | str]:
        """Return the labels of tool use that are not by rule, or a problem.

        Nobody is asked about an episode whose tool use is not rewarded.
        """
        tools = self.config.tools
        if not tools.enabled or tools.labels == ToolLabelsConfig():
            return [{} for _ in episodes]
        rewarded = [
            steps if rewards_tool_use(e.task, tools) else ()
            for e, steps in zip(episodes, step_numbers, strict=True)
        ]
        return label_steps(episodes, rewarded, pasts, tools.labels, self._labellers)

    def _model_scores(
        self,
        episodes: Sequence[Episode],
        step_numbers: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _EpisodeScores:
        """Return the reward model's scores; it is sure where p is far from 0.5.

        Of shares of the outcome it is always sure: they count only together.
        """
        assert self.reward_model is not None
        c, shares = self.config.reward_model, self.reward_model.objective == "progress"
        index = [i for i, steps in enumerate(step_numbers) if steps]
        results = self.reward_model.scores(
            [(episodes[i].task, episodes[i].transitions) for i in index],
            [pasts[i] for i in index],
        )
        out: _EpisodeScores = [{} for _ in episodes]
        for i, scores in zip(index, results, strict=True):
            if shares:
                out[i] = {
                    s: _StepScore({"reward_model": c.scale * float(scores[s])}, True)
                    for s in step_numbers[i]
                }
                continue
            probability = {s: _sigmoid(float(scores[s])) for s in step_numbers[i]}
            out[i] = {
                s: _StepScore(
                    {"reward_model": c.scale * (2 * p - 1)},
                    abs(p - 0.5) >= c.confidence,
                )
                for s, p in probability.items()
            }
        return out


def attempt_pay(scores: Float[np.ndarray, " S"], scale: float) -> float:
    """Return what a reward model pays for an attempt with these scores of its steps."""
    return scale * sum(2 * _sigmoid(float(x)) - 1 for x in scores)


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))


def with_rewards(episode: Episode, result: RewardedEpisode) -> Episode:
    """Return the episode with new rewards in place of its own."""
    steps = tuple(
        dataclasses.replace(t, rewards=components)
        for t, components in zip(episode.transitions, result.rewards, strict=True)
    )
    return dataclasses.replace(episode, transitions=steps)
