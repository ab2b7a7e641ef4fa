"""Test in the dream whether generated tasks can be solved.

proposals -> the current policy's first actions -> several samples of the dream's answer
to each -> agreement; proposals -> n rollouts of the policy -> successes; both ->
curriculum.feasibility.refusal_reason.
"""

import math
from collections.abc import Hashable, Sequence

import jax

from curriculum import feasibility
from curriculum.config import CurriculumConfig, FeasibilityConfig
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.dream import DreamVectorEnv, UncertaintyGate
from worldmodel.data.hashing import content_seed
from worldmodel.data.outcomes import number_text
from worldmodel.data.records import Task
from worldmodel.experience.base import ExperienceModel, Prediction, Query, Sampling

KEYS = 64
"""Turns are sampled in batches of a multiple of this, so that few shapes compile."""


class FeasibilityFilter:
    """Tests tasks in the dream with `policy`, which may be replaced between calls.

    It is a curriculum.feasibility.Feasible. `transitions` counts the dreamed steps that
    the tests have taken.
    """

    def __init__(
        self,
        experience: ExperienceModel,
        policy: Policy,
        config: FeasibilityConfig,
        *,
        max_steps: int,
        temperature: float | int,
        seed: int,
        uncertainty: UncertaintyGate | None = None,
        lasting_wins: bool = False,
    ):
        """`temperature` is the policy's, what follows is as in the dream it trains in.

        Raises:
          ValueError: `config.samples` is not 0, and the experience model has only one
            answer to a query.
        """
        if config.samples and not isinstance(experience, Sampling):
            raise ValueError(
                "feasibility.samples needs an experience model that samples several "
                f"answers, and {type(experience).__name__} cannot: set it to 0"
            )
        self._experience, self._config, self._seed = experience, config, seed
        self._max_steps, self._temperature = max_steps, temperature
        self._uncertainty, self._lasting_wins = uncertainty, lasting_wins
        self.policy = policy
        self.transitions = 0

    def __call__(self, tasks: Sequence[Task]) -> list[str | None]:
        """Return why each task is refused, or None (feasibility.refusal_reason)."""
        seed = content_seed(self._seed, "trial", *(t.id for t in tasks))
        first, second = jax.random.split(jax.random.key(seed))
        agreement_rates: list[float | None] = [None] * len(tasks)
        if self._config.samples:
            agreement_rates = list(self._agreement(tasks, first))
        trajectories: list[Trajectory] = []
        if self._config.rollouts:
            trajectories = self._roll_out(tasks, second)
        size, out = self._config.rollouts, []
        for i, rate in enumerate(agreement_rates):
            members = trajectories[i * size : (i + 1) * size]
            group = [t for t in members if t.error is None]
            won = sum(bool(t.episode.success) for t in group)
            out.append(
                feasibility.refusal_reason(
                    self._config, agreement_rate=rate, won=won, scored=len(group)
                )
            )
        return out

    def _roll_out(self, tasks: Sequence[Task], key: jax.Array) -> list[Trajectory]:
        groups = [t for t in tasks for _ in range(self._config.rollouts)]
        envs = DreamVectorEnv(
            self._experience,
            len(groups),
            max_steps=self._max_steps,
            uncertainty=self._uncertainty,
            lasting_wins=self._lasting_wins,
        )
        trajectories = rollout(
            self.policy,
            envs,
            groups,
            key=key,
            temperature=self._temperature,
            source="trial",
        )
        self.transitions += envs.transitions
        return trajectories

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
        # The policy may propose an action of a task more than once: one query each.
        distinct = {_query_key(q): q for q in queries}
        samples: dict[Hashable, list[Hashable | None]] = {k: [] for k in distinct}
        for number in range(c.samples):
            answers = experience.sample(list(distinct.values()), number)
            for (k, query), answer in zip(distinct.items(), answers, strict=True):
                samples[k].append(outcome_signature(query, answer))
        self.transitions += c.samples * len(distinct)
        out = []
        for i in range(len(tasks)):
            keys_of_task = map(_query_key, queries[i * c.actions : (i + 1) * c.actions])
            task_samples = [samples[k] for k in dict.fromkeys(keys_of_task)]
            out.append(feasibility.agreement(task_samples))
        return out


def feasibility_filter_for(
    config: CurriculumConfig,
    experience: ExperienceModel,
    policy: Policy,
    *,
    max_steps: int,
    temperature: float | int,
    seed: int,
    uncertainty: UncertaintyGate | None = None,
    lasting_wins: bool = False,
) -> FeasibilityFilter | None:
    """Return the filter of the settings, or None where they disable both tests."""
    c = config.feasibility
    if not c.rollouts and not c.samples:
        return None
    return FeasibilityFilter(
        experience,
        policy,
        c,
        max_steps=max_steps,
        temperature=temperature,
        seed=seed,
        uncertainty=uncertainty,
        lasting_wins=lasting_wins,
    )


def _query_key(query: Query) -> tuple[str, str]:
    return query.task.id, query.action


def outcome_signature(query: Query, answer: Prediction) -> Hashable | None:
    """Return what samples must agree on: whether anything changes, reward, outcome.

    The next state itself is not part of it: behind a door that was never opened each
    sample may rightly show something else. None where the answer is malformed.
    """
    if answer.error is not None:
        return None
    changes = answer.next_state != query.state
    return changes, number_text(answer.reward), answer.outcome
