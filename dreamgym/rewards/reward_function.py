"""Episodes to rewards: who scores each step, and what the parts add up to.

episodes (and what was done before them) -> rules, then a learned model, then a judge
(or all, blended) -> process of each step; gate and mixture with the outcome -> named
components, their tiers, and why an episode could not be scored.
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
    added,
    kept_rewards,
    process_rewards,
    scaled,
    task_rewards,
)
from worldmodel.data.records import Episode, Task, Transition

Pasts = Sequence[Sequence[str]]
"""Of each episode the actions before its first step; none where it begins a task."""

NOBODY = "none"
"""The tier of a step that nobody had anything to say of: its process is 0."""


NO_OUTCOME = "outcome: nobody scored the episode"
"""The problem of an episode without an outcome, whoever could pay its steps."""


class Scored(NamedTuple):
    """What an episode's steps are paid.

    `rewards` has the named components of each transition (their sum is its reward),
    `tiers` who scored its process: "rule", "learned", "judge", several joined by "+",
    or "none". With a `problem` the episode is not scored: rewards are what is known
    without it, and must not be compared with others'.
    """

    rewards: tuple[Components, ...]
    tiers: tuple[str, ...]
    problem: str | None


@runtime_checkable
class StepScores(Protocol):
    """A learned model of rewards (dreamgym.rewards.reward_model.RewardModel)."""

    def scores(
        self,
        attempts: Sequence[tuple[Task, Sequence[Transition]]],
        pasts: Pasts | None = None,
    ) -> list[Float[np.ndarray, " S"]]:
        """R of each step of each attempt."""
        ...


@runtime_checkable
class StepJudge(Protocol):
    """Whoever judges steps at a cost (dreamgym.rewards.judge.Judge)."""

    def scores(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts | None = None,
    ) -> list[dict[int, float] | str]:
        """What each wanted step is paid, or why it could not be told."""
        ...


class _Opinion(NamedTuple):
    """What a tier says of a step. Unsure: the next one is asked."""

    parts: Components
    sure: bool


_Told = list[dict[int, _Opinion] | str]
"""Of each episode: opinions by step, or a problem."""


class Scorer:
    """Rewards of episodes under one configuration."""

    def __init__(
        self,
        config: RewardConfig,
        *,
        learned: StepScores | None = None,
        judge: StepJudge | None = None,
    ):
        """Raise ValueError where a tier is named that is not given."""
        for tier, part in (("learned", learned), ("judge", judge)):
            if tier in config.tiers and part is None:
                raise ValueError(f"tiers name {tier!r}, and no such model was given")
        self.config, self._learned, self._judge = config, learned, judge

    def score(
        self, episodes: Sequence[Episode], pasts: Pasts | None = None
    ) -> list[Scored]:
        """What each step is paid, in the order of the episodes.

        Args:
          pasts: what was done before them; None where all begin at their task's start.

        Raises:
          ValueError: a task whose due calls are of no sense.
          ChatError: the judge's server is gone, or answers nothing (Judge.scores).
        """
        pasts = [()] * len(episodes) if pasts is None else pasts
        process, tiers, problems = self._process(episodes, pasts)
        out = []
        for e, parts, who, told in zip(episodes, process, tiers, problems, strict=True):
            unknown = e.success is None and self._needs_outcome(e)
            without = NO_OUTCOME if unknown else None
            problem = without if told is None else told
            out.append(Scored(self._mixed(e, parts), tuple(who), problem))
        return out

    def _needs_outcome(self, episode: Episode) -> bool:
        c = self.config
        calls = c.tools.enabled and "calls" in episode.task.options
        return c.alpha > 0 or c.gated or calls

    def _mixed(
        self, episode: Episode, process: Sequence[Components]
    ) -> tuple[Components, ...]:
        """alpha outcome + (1 - alpha) process, and what stands outside of it."""
        c, steps = self.config, episode.transitions
        rest = 1.0 - c.alpha
        out = []
        for t, parts, kept in zip(
            steps, process, kept_rewards(steps, c.kept), strict=True
        ):
            paid = [scaled(parts, rest) if c.alpha else parts, kept]
            if c.invalid and t.invalid:
                paid.append({"invalid": -float(c.invalid)})
            out.append(added(paid))
        if c.alpha and episode.success is not None:
            worth = c.success if episode.success else c.failure
            out[-1] = added([out[-1], {"outcome": c.alpha * worth}])
        # Not process: a gate that withheld it would hide the failure it is there for.
        final = task_rewards(episode, c.tools)
        if final and rest:
            out[-1] = added([out[-1], scaled(final, rest)])
        return tuple(out)

    def _process(
        self, episodes: Sequence[Episode], pasts: Pasts
    ) -> tuple[list[list[Components]], list[list[str]], list[str | None]]:
        """(parts of each step, who scored it, what went wrong) of each episode."""
        c = self.config
        parts: list[list[Components]] = [[{} for _ in e.transitions] for e in episodes]
        who: list[list[list[str]]] = [[[] for _ in e.transitions] for e in episodes]
        problems: list[str | None] = [None] * len(episodes)
        left = [self._payable(e) for e in episodes]
        for tier, weight in zip(
            c.tiers, c.blend if c.blend else (None,) * len(c.tiers), strict=True
        ):
            if weight == 0:
                continue
            for i, told in enumerate(self._ask(tier, episodes, left, pasts)):
                if isinstance(told, str):
                    problems[i], left[i] = told, []
                    continue
                for step, opinion in told.items():
                    said = opinion.parts
                    if weight is not None:
                        said = scaled(said, weight)
                    elif not opinion.sure and tier != "rule":
                        continue
                    parts[i][step] = added([parts[i][step], said])
                    if opinion.sure or weight is not None:
                        who[i][step].append(tier)
                if weight is None:
                    left[i] = [s for s in left[i] if not told[s].sure]
        names = [["+".join(x) if x else NOBODY for x in steps] for steps in who]
        return parts, names, problems

    def _payable(self, episode: Episode) -> list[int]:
        """The steps whose process is paid at all: nobody need be asked of the rest."""
        c = self.config
        shut = c.alpha == 1 or (c.gated and episode.success is not True)
        return [] if shut else list(range(len(episode.transitions)))

    def _ask(
        self,
        tier: str,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _Told:
        if tier == "rule":
            return self._ruled(episodes, wanted, pasts)
        if tier == "learned":
            return self._inferred(episodes, wanted, pasts)
        assert self._judge is not None
        return [
            told
            if isinstance(told, str)
            else {s: _Opinion({"judge": x}, True) for s, x in told.items()}
            for told in self._judge.scores(episodes, wanted, pasts)
        ]

    def _ruled(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _Told:
        """A rule knows a step where it pays or takes something there."""
        out: _Told = []
        for e, steps, past in zip(episodes, wanted, pasts, strict=True):
            told = process_rewards(e, self.config, past) if steps else []
            out.append({s: _Opinion(told[s], any(told[s].values())) for s in steps})
        return out

    def _inferred(
        self,
        episodes: Sequence[Episode],
        wanted: Sequence[Sequence[int]],
        pasts: Pasts,
    ) -> _Told:
        """R_phi knows a step where it is far enough from indifferent."""
        assert self._learned is not None
        c = self.config.learned
        some = [i for i, steps in enumerate(wanted) if steps]
        found = self._learned.scores(
            [(episodes[i].task, episodes[i].transitions) for i in some],
            [pasts[i] for i in some],
        )
        out: _Told = [{} for _ in episodes]
        for i, scores in zip(some, found, strict=True):
            chance = {s: _sigmoid(float(scores[s])) for s in wanted[i]}
            out[i] = {
                s: _Opinion(
                    {"learned": c.scale * (2 * p - 1)}, abs(p - 0.5) >= c.confidence
                )
                for s, p in chance.items()
            }
        return out


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))


def rewarded(episode: Episode, scored: Scored) -> Episode:
    """The episode with its new rewards in place of the old ones."""
    steps = tuple(
        dataclasses.replace(t, rewards=parts)
        for t, parts in zip(episode.transitions, scored.rewards, strict=True)
    )
    return dataclasses.replace(episode, transitions=steps)
