"""Whether invented tasks can be solved, asked of the dream they will be played in.

proposals -> the current policy's first actions -> several samples of the dream's answer
to each -> agreement; proposals -> n rollouts of the policy -> wins; both -> the verdict
of curriculum.feasibility.
"""

import math
from collections.abc import Hashable, Sequence

import jax

from curriculum import feasibility
from curriculum.feasibility import FeasibilityConfig
from curriculum.sampler import CurriculumConfig
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.dream import DreamVectorEnv, Trust
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Task
from worldmodel.experience.base import ExperienceModel, Prediction, Query, Sampling

KEYS = 64
"""Turns are asked for in multiples of it: few compiled shapes, as in rollouts."""


class FeasibilityFilter:
    """A Feasible: tries tasks out in the dream under the policy it was last given."""

    def __init__(
        self,
        experience: ExperienceModel,
        policy: Policy,
        config: FeasibilityConfig,
        *,
        max_steps: int,
        temperature: float | int,
        seed: int,
        trust: Trust | None = None,
    ):
        """`temperature` is the policy's, `trust` as in the dream it trains in.

        Raises:
          ValueError: samples are asked for, and the experience model gives one answer.
        """
        if config.samples and not isinstance(experience, Sampling):
            raise ValueError(
                "feasibility.samples needs an experience model that can be asked "
                f"again, and {type(experience).__name__} cannot: set it to 0"
            )
        self._experience, self._config, self._seed = experience, config, seed
        self._max_steps, self._temperature = max_steps, temperature
        self._trust = trust
        self.policy = policy
        self.transitions = 0
        """Dreamed steps that trials took so far."""

    def __call__(self, tasks: Sequence[Task]) -> list[str | None]:
        """Why each task is refused, or None; see curriculum.feasibility.verdict."""
        seed = content_seed(self._seed, "trial", *(t.id for t in tasks))
        first, second = jax.random.split(jax.random.key(seed))
        agreed: list[float | None] = [None] * len(tasks)
        if self._config.samples:
            agreed = list(self._agreement(tasks, first))
        found: list[Trajectory] = []
        if self._config.rollouts:
            found = self._played(tasks, second)
        size, out = self._config.rollouts, []
        for i, share in enumerate(agreed):
            group = [t for t in found[i * size : (i + 1) * size] if t.error is None]
            won = sum(bool(t.episode.success) for t in group)
            out.append(
                feasibility.refusal_reason(
                    self._config, agreement_rate=share, won=won, scored=len(group)
                )
            )
        return out

    def _played(self, tasks: Sequence[Task], key: jax.Array) -> list[Trajectory]:
        groups = [t for t in tasks for _ in range(self._config.rollouts)]
        envs = DreamVectorEnv(
            self._experience, len(groups), max_steps=self._max_steps, trust=self._trust
        )
        found = rollout(
            self.policy, envs, groups, key=key, temperature=self._temperature,
            source="trial",
        )  # fmt: skip
        self.transitions += envs.transitions
        return found

    def _agreement(self, tasks: Sequence[Task], key: jax.Array) -> list[float]:
        experience, c = self._experience, self._config
        assert isinstance(experience, Sampling)  # checked on construction
        starts = [(t, (), t.initial_state) for t in tasks for _ in range(c.actions)]
        keys = jax.random.split(key, math.ceil(len(starts) / KEYS) * KEYS)
        turns = self.policy.act(starts, keys, temperature=self._temperature)
        queries = [
            Query(task, (), state, turn.action)
            for (task, _, state), turn in zip(starts, turns, strict=True)
        ]
        asked = list(dict.fromkeys(map(_question, queries)))
        known = {_question(q): q for q in queries}
        samples: dict[Hashable, list[Hashable | None]] = {k: [] for k in asked}
        for number in range(c.samples):
            answers = experience.sample([known[k] for k in asked], number)
            for k, answer in zip(asked, answers, strict=True):
                samples[k].append(outcome_signature(known[k], answer))
        self.transitions += c.samples * len(asked)
        out = []
        for i in range(len(tasks)):
            mine = map(_question, queries[i * c.actions : (i + 1) * c.actions])
            out.append(feasibility.agreement([samples[k] for k in dict.fromkeys(mine)]))
        return out


def feasibility_filter_for(
    config: CurriculumConfig,
    experience: ExperienceModel,
    policy: Policy,
    *,
    max_steps: int,
    temperature: float | int,
    seed: int,
    trust: Trust | None = None,
) -> FeasibilityFilter | None:
    """The trial that the settings ask for, None where they ask for none."""
    asked = config.feasibility
    if not asked.rollouts and not asked.samples:
        return None
    return FeasibilityFilter(
        experience, policy, asked, max_steps=max_steps, temperature=temperature,
        seed=seed, trust=trust,
    )  # fmt: skip


def _question(query: Query) -> tuple[str, str]:
    return query.task.id, query.action


def outcome_signature(query: Query, answer: Prediction) -> Hashable | None:
    """What samples must agree on: whether anything changes, the reward, the end.

    Not the next state itself: behind a door that was never opened there may rightly be
    something else each time. None where the answer made no sense.
    """
    if answer.error is not None:
        return None
    changes = answer.next_state != query.state
    return changes, round(answer.reward, 3), answer.outcome
