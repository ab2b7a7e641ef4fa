"""Rewards of rollouts from other sources than the environment, where they are set.

rollouts -> scores of a reward function -> pay for novel states, for differences of a
potential and for subgoals that were reached -> rollouts with these components.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dreamgym.agent import subgoals
from dreamgym.agent.rollout import Trajectory
from dreamgym.agent.subgoals import follow_subgoals
from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.rewards import novelty as novelty_reward
from dreamgym.rewards import potential as potential_reward
from dreamgym.rewards.config import ComponentWeightConfig, PotentialConfig
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.rewards.potential import (
    GoalPotential,
    plan_potential,
    progress_rewards,
    shaping_rewards,
)
from dreamgym.rewards.reward_function import (
    NO_OUTCOME,
    Pasts,
    PastStates,
    RewardedEpisode,
    with_rewards,
)
from dreamgym.rewards.rules import weigh_components
from dreamgym.training.config import LoopConfig
from dreamgym.training.rollouts.groups import Rollouts
from worldmodel.data.records import Episode

TOKEN_COST = "cost/token"
"""The component that the tokens of a turn cost."""
ScoreEpisodes = Callable[
    [Sequence[Episode], Pasts, PastStates], Sequence[RewardedEpisode]
]
"""A function that rewards the steps of episodes (RewardFunction.score)."""


def with_all_rewards(
    rollouts: Rollouts,
    config: LoopConfig,
    score: ScoreEpisodes | None,
    *,
    novelty: NoveltyReward | None,
    goals: GoalPotential | None,
    subgoal_steps: int,
) -> Rollouts:
    """Return the rollouts with the rewards that a policy learns from.

    These are the scores of `score` (rescore), and what the settings pay for `novelty`,
    for subgoals of `subgoal_steps` steps at most, and for a potential, that of `goals`
    or of the expert's plans.
    """
    reward, weights = config.reward, config.reward.component_weights
    out = rescore(rollouts, score, reward.cost.token, weights)
    if novelty is not None:
        out = with_novelty(out, novelty, weights)
    if reward.subgoal_weight:
        out = with_subgoals(out, reward.subgoal_weight, subgoal_steps, weights)
    if not reward.potential.weight:
        return out
    return with_potential(
        out,
        reward.potential,
        config.update.discount,
        weights,
        goals,
        bootstraps=config.update.advantage_estimator == "gae",
    )


def rescore(
    rollouts: Rollouts,
    score: ScoreEpisodes | None,
    token_cost: float = 0.0,
    weights: Sequence[ComponentWeightConfig] = (),
) -> Rollouts:
    """Return the rollouts with the rewards of `score`, and with its metrics.

    Each token that a turn sampled costs `token_cost` (the component cost/token), times
    the one of the `weights` that fits its name.

    Without a `score` they keep the rewards of the environment.

    A rollout that cannot be scored gets an error. A rollout that was aborted for low
    confidence is scored up to its end, because a critic bootstraps there; that its
    outcome is unknown is not an error of its own. The steps of a fork are scored as
    part of a whole episode: its past actions and states count.

    The metrics are the share of steps that each source scored (`reward_source/NAME`)
    and the mean sum of each reward component over an episode (`reward/NAME`).
    """
    if score is None:
        return rollouts
    trajectories = rollouts.all
    indices = [
        i
        for i, t in enumerate(trajectories)
        if t.error is None or t.error.startswith(LOW_CONFIDENCE)
    ]
    (weight,) = weigh_components({TOKEN_COST: 1.0}, weights).values()
    scores = score(
        [trajectories[i].episode for i in indices],
        [trajectories[i].past for i in indices],
        [trajectories[i].past_states for i in indices],
    )
    scores = [
        _with_token_cost(x, trajectories[i], weight * token_cost)
        for i, x in zip(indices, scores, strict=True)
    ]
    for i, episode_score in zip(indices, scores, strict=True):
        t = trajectories[i]
        error, problem = t.error, episode_score.problem
        outcome_unknown = error is not None and problem == NO_OUTCOME
        if problem is not None and not outcome_unknown:
            error = f"reward: {problem}"
        episode = with_rewards(t.episode, episode_score)
        trajectories[i] = t._replace(episode=episode, error=error)
    return _replaced(rollouts, trajectories, _reward_metrics(scores))


def with_novelty(
    rollouts: Rollouts,
    novelty: NoveltyReward,
    weights: Sequence[ComponentWeightConfig] = (),
) -> Rollouts:
    """Return the rollouts with what novel states pay, and count their states.

    The pay has the weight that fits its name, as every component has. Rollouts that are
    not scored count, too: what they saw was seen. The metric is the mean sum over an
    episode (`reward/novelty`).
    """
    pay = novelty.reward([t.episode for t in rollouts.all])
    return _with_component(rollouts, novelty_reward.COMPONENT, pay, weights)


def with_potential(
    rollouts: Rollouts,
    config: PotentialConfig,
    discount: float,
    weights: Sequence[ComponentWeightConfig] = (),
    goals: GoalPotential | None = None,
    *,
    bootstraps: bool,
) -> Rollouts:
    """Return the rollouts with what the differences of a potential pay.

    Where a critic bootstraps they shape the rewards, else a turn is credited with its
    own difference alone (potential.py). `goals` is the potential "goal". The metric is
    the mean sum over an episode (`reward/potential`).
    """
    pay = []
    for t in rollouts.all:
        if config.kind == "plan":
            values = [plan_potential(n, config.decay) for n in t.plan_lengths]
        else:
            assert goals is not None, 'the potential "goal" needs won episodes'
            task, steps = t.episode.task, t.episode.transitions
            values = [goals(task, step.state) for step in steps]
        if bootstraps:
            rewards = shaping_rewards(values, discount)
        else:
            # That of a goal, or of a plan without rest, also at the step limit.
            success, last = bool(t.episode.success), t.episode.transitions[-1]
            is_cut = last.truncated and not (last.terminated or success)
            end = None if t.error is not None or is_cut else float(success)
            rewards = progress_rewards(values, discount, end=end)
        pay.append([config.weight * x for x in rewards])
    return _with_component(rollouts, potential_reward.COMPONENT, pay, weights)


def with_subgoals(
    rollouts: Rollouts,
    weight: float,
    limit: int,
    weights: Sequence[ComponentWeightConfig] = (),
) -> Rollouts:
    """Return the rollouts with `weight` for each subgoal that a step reached.

    `limit` is the policy's `subgoal_steps`. The metric is the mean sum over an episode
    (`reward/subgoal`).
    """
    pay = []
    for t in rollouts.all:
        rows, _ = follow_subgoals(t.episode.transitions, limit)
        pay.append([weight * row.reached for row in rows])
    return _with_component(rollouts, subgoals.COMPONENT, pay, weights)


def _with_component(
    rollouts: Rollouts,
    name: str,
    pay: Sequence[Sequence[float]],
    weights: Sequence[ComponentWeightConfig],
) -> Rollouts:
    """Return the rollouts with one more component, which has the weight of its name.

    `pay` is its amount at each step of each rollout.
    """
    trajectories = rollouts.all
    (weight,) = weigh_components({name: 1.0}, weights).values()
    for i, (t, amounts) in enumerate(zip(trajectories, pay, strict=True)):
        steps = tuple(
            dataclasses.replace(step, rewards={**step.rewards, name: weight * amount})
            for step, amount in zip(t.episode.transitions, amounts, strict=True)
        )
        episode = dataclasses.replace(t.episode, transitions=steps)
        trajectories[i] = t._replace(episode=episode)
    mean = weight * sum(map(sum, pay)) / max(len(pay), 1)
    metrics = {**rollouts.reward_metrics, f"reward/{name}": mean}
    return _replaced(rollouts, trajectories, metrics)


def _replaced(
    rollouts: Rollouts,
    trajectories: Sequence[Trajectory],
    reward_metrics: Mapping[str, float],
) -> Rollouts:
    """Return the rollouts with others in their place, in the order of `all`."""
    first = len(rollouts.started)
    second = first + len(rollouts.forked)
    third = second + len(rollouts.from_demonstrations)
    return Rollouts(
        list(trajectories[:first]),
        list(trajectories[first:second]),
        reward_metrics,
        trajectories[second:third],
        trajectories[third:],
    )


def _with_token_cost(
    score: RewardedEpisode, trajectory: Trajectory, cost: float
) -> RewardedEpisode:
    """Return the rewards with what the tokens of each turn cost."""
    if not cost:
        return score
    parts = [{TOKEN_COST: -cost * sum(x.sampled)} for x in trajectory.turns]
    pairs = zip(score.rewards, parts, strict=True)
    return score._replace(rewards=tuple({**a, **b} for a, b in pairs))


def _reward_metrics(scores: Sequence[RewardedEpisode]) -> dict[str, float]:
    sources = Counter(source for row in scores for source in row.sources)
    sums: Counter[str] = Counter()
    for row in scores:
        for step in row.rewards:
            sums.update(step)
    steps, episodes = sources.total(), len(scores)
    return {
        **{f"reward_source/{name}": n / steps for name, n in sorted(sources.items())},
        **{f"reward/{name}": float(x) / episodes for name, x in sorted(sums.items())},
    }
