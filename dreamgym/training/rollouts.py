"""Collection of the rollouts of one update.

tasks -> a group of rollouts for each -> further tasks where the rollouts of a group end
alike -> forks of states on the way, and guided retries of what was lost -> rewards from
other sources, where they are set.
"""

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import jax
import numpy as np

from curriculum import sampler
from curriculum.pool import TaskPool, TaskQuota
from dreamgym.agent.guidance import GuidedPolicy, guiding_actions
from dreamgym.agent.policy import Policy, Turn
from dreamgym.agent.rollout import Trajectory, rollout
from dreamgym.envs.base import LOW_CONFIDENCE
from dreamgym.envs.vector import Snapshot, VectorEnv
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
    RewardedEpisode,
    with_rewards,
)
from dreamgym.rewards.rules import weigh_components
from dreamgym.rl.credit import Fork
from dreamgym.training.config import LoopConfig
from worldmodel.data.records import Episode, Task

ScoreEpisodes = Callable[[Sequence[Episode], Pasts], Sequence[RewardedEpisode]]
"""A function that rewards the steps of episodes (RewardFunction.score)."""


class Rollouts(NamedTuple):
    """The rollouts of an update, in consecutive groups of `group_size`.

    `started` begin where their task begins, `forked` in a state on the way, and
    `from_demonstrations` in a state of a demonstration. `guided` are retries of tasks
    that no started rollout won, whose first actions were given.
    `reward_metrics` says where their rewards come from, once they are rescored.
    """

    started: list[Trajectory]
    forked: list[Trajectory]
    reward_metrics: Mapping[str, float] = MappingProxyType({})
    from_demonstrations: Sequence[Trajectory] = ()
    guided: Sequence[Trajectory] = ()

    @property
    def all(self) -> list[Trajectory]:
        """The started, the forked and the other rollouts, in this order."""
        unguided = (*self.started, *self.forked, *self.from_demonstrations)
        return [*unguided, *self.guided]

    def learned(self, size: int) -> list[Trajectory]:
        """Return what an update learns from: all but the guided rollouts.

        In a group whose task was won with guidance, won guided rollouts stand in the
        places of rollouts that were not scored, then of the last lost ones, in at most
        half of the group. One lost rollout stays, with which they are compared.
        """
        out = [*self.started, *self.forked, *self.from_demonstrations]
        wins: dict[str, list[Trajectory]] = {}
        for t in self.guided:
            if t.error is None and t.episode.success:
                wins.setdefault(t.episode.task.id, []).append(t)
        for number, group in enumerate(groups_of(self.started, size)):
            if is_lost(group):
                won = wins.pop(group[0].episode.task.id, [])[: max(size // 2, 1)]
                places = sorted(_places_for_wins(group)[: len(won)])
                for place, win in zip(places, won, strict=False):
                    out[number * size + place] = win
        return out


def collect_rollouts(
    policy: Policy,
    envs: VectorEnv,
    pool: TaskPool,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    key: jax.Array,
    rng: np.random.Generator,
    source: str,
    mixture: Sequence[TaskQuota] = (),
    demonstration_starts: Sequence[Snapshot] = (),
    demonstrations: Sequence[Episode] = (),
    max_groups: Callable[[], int] = lambda: sys.maxsize,
    show: Callable[[int, int], None] | None = None,
) -> Rollouts:
    """Roll out a group for every task, then further groups and forks by the settings.

    Each uninformative group is followed by a group of another task of the same
    `mixture`, in at most `config.max_resample_rounds` rounds (dynamic sampling,
    arXiv:2503.14476), as far as `max_groups` more may be rolled out. A group begins in
    each of the `demonstration_starts`. Tasks that were lost are tried again with
    guidance from `demonstrations`, as far as the settings and `max_groups` allow it.
    `source` names the episodes' origin in their records.
    """
    size, retries = config.group_size, config.curriculum.guided_retries

    def collect(
        starts: Sequence[Task | Snapshot],
        suffix: str,
        key: jax.Array,
        player: Policy = policy,
    ) -> list[Trajectory]:
        return rollout(
            player,
            envs,
            [start for start in starts for _ in range(size)],
            key=key,
            source=source + suffix,
            temperature=config.update.temperature,
            asks_plans=config.reward.potential.asks_plans,
            progress=show,
        )

    started = last_round = collect(tasks, "", key)
    for number in range(1, config.max_resample_rounds + 1):
        uninformative = sum(not is_informative(g) for g in groups_of(last_round, size))
        uninformative = min(uninformative, max_groups())
        if not uninformative:
            break
        # Replaced by other tasks, not by more rollouts of the same: a task that all
        # rollouts win is most likely won again.
        played = {t.episode.task.id for t in started}
        others = sampler.sample(
            pool,
            uninformative,
            config.curriculum,
            rng,
            task_mixture=mixture,
            exclude=played,
        )
        last_round = collect(others, f"-more{number}", jax.random.fold_in(key, number))
        started = [*started, *last_round]
    starts = fork_points(started, config, rng)
    forked = collect(starts, "-fork", jax.random.fold_in(key, 0)) if starts else []
    # Rounds of other tasks have the numbers before these.
    start_key, retry_key = (
        jax.random.fold_in(key, config.max_resample_rounds + i) for i in (1, 2)
    )
    demonstrated = collect(demonstration_starts, "-demonstration", start_key)
    guided: list[Trajectory] = []
    lost = lost_tasks(started, size) if retries.groups else []
    if actions := guiding_actions(lost, demonstrations, retries.share):
        tasks = [t for t in lost if t.id in actions]
        tasks = tasks[: min(retries.groups, max_groups())]
        guided = collect(tasks, "-guided", retry_key, GuidedPolicy(policy, actions))
    return Rollouts(started, forked, from_demonstrations=demonstrated, guided=guided)


def rescore(
    rollouts: Rollouts, score: ScoreEpisodes | None, token_cost: float = 0.0
) -> Rollouts:
    """Return the rollouts with the rewards of `score`, and with its metrics.

    Each token that a turn sampled costs `token_cost` (the component cost/token).

    Without a `score` they keep the rewards of the environment.

    A rollout that cannot be scored gets an error. A rollout that was aborted for low
    confidence is scored up to its end, because a critic bootstraps there; that its
    outcome is unknown is not an error of its own. The steps of a fork are scored as
    part of a whole episode: its past actions count.

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
    scores = score(
        [trajectories[i].episode for i in indices],
        [trajectories[i].past for i in indices],
    )
    for i, episode_score in zip(indices, scores, strict=True):
        t = trajectories[i]
        error, problem = t.error, episode_score.problem
        outcome_unknown = error is not None and problem == NO_OUTCOME
        if problem is not None and not outcome_unknown:
            error = f"reward: {problem}"
        episode = with_rewards(
            t.episode, _with_token_cost(episode_score, t, token_cost)
        )
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
    parts = [{"cost/token": -cost * sum(x.sampled)} for x in trajectory.turns]
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


def groups_of(rows: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    """Yield consecutive groups of `size` rollouts."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def is_informative(group: Sequence[Trajectory]) -> bool:
    """Return whether some scored rollouts of the group succeeded and others failed."""
    return len({bool(t.episode.success) for t in group if t.error is None}) > 1


def is_lost(group: Sequence[Trajectory]) -> bool:
    """Return whether rollouts of a group were scored, and none of them succeeded."""
    return {bool(t.episode.success) for t in group if t.error is None} == {False}


def _places_for_wins(group: Sequence[Trajectory]) -> list[int]:
    """Return where guided wins may stand in a lost group, the best places first."""
    unscored = [i for i, t in enumerate(group) if t.error is not None]
    lost = [i for i, t in enumerate(group) if t.error is None]
    return [*unscored, *lost[: 0 if len(group) > 1 else None : -1]]


def lost_tasks(rows: Sequence[Trajectory], size: int) -> list[Task]:
    """Return the tasks of lost groups that no rollout won, each once.

    A task may have several groups; one that was won in another of them is not lost, and
    has forks.
    """
    won = {t.episode.task.id for t in rows if t.error is None and t.episode.success}
    groups = groups_of(rows, size)
    tasks = [group[0].episode.task for group in groups if is_lost(group)]
    return list({t.id: t for t in tasks if t.id not in won}.values())


def fork_points(
    rows: Sequence[Trajectory], config: LoopConfig, rng: np.random.Generator
) -> list[Snapshot]:
    """Return at most `forks_per_update` states to fork, taken from informative groups.

    Each state counts once; the states in which rollouts begin are left out. They are
    drawn at random, or are those of the largest entropy (ForkConfig.by).
    """
    if not config.forks_per_update:
        return []
    # In an informative group some decision on the way made the difference: there it is
    # worth comparing actions in one and the same state.
    unique: dict[tuple, Snapshot] = {}
    turns: dict[tuple, list[Turn]] = {}
    for group in groups_of(rows, config.group_size):
        if is_informative(group):
            for t in group:
                for state, turn in zip(_states(t), t.turns, strict=True):
                    if state.past != t.past:
                        unique[key := _key(state)] = state
                        turns.setdefault(key, []).append(turn)
    keys = list(unique)
    order = [keys[i] for i in rng.permutation(len(keys))]
    if config.fork.by == "entropy":  # of equals those that were drawn first
        order.sort(key=lambda key: -entropy_estimate(turns[key]))
    return [unique[key] for key in order[: config.forks_per_update]]


def entropy_estimate(turns: Sequence[Turn]) -> float:
    """Return the mean of -log p over the sampled tokens of turns in one state.

    Its expectation is the mean entropy of these tokens, in nats.
    """
    sampled = [
        logp
        for turn in turns
        for logp, is_sampled in zip(turn.logp, turn.sampled, strict=True)
        if is_sampled
    ]
    return -float(np.mean(sampled)) if sampled else 0.0


def forks_of(rollouts: Rollouts, size: int) -> list[Fork]:
    """Return the forks of the rollouts, by numbers of `rollouts.all`."""
    members: dict[tuple, list[int]] = {}
    for number, t in enumerate(rollouts.started):
        for state in _states(t):
            members.setdefault(_key(state), []).append(number)
    first, out = len(rollouts.started), []
    for group in groups_of(rollouts.forked, size):
        start = next(_states(group[0]))
        continuations = tuple(range(first, first + len(group)))
        passing = tuple(members.get(_key(start), ()))
        out.append(Fork(passing, continuations, len(start.past)))
        first += len(group)
    return out


def _key(state: Snapshot) -> tuple:
    return state.task.id, state.past, state.state


def _states(t: Trajectory) -> Iterator[Snapshot]:
    """Yield the moment before each step of a trajectory."""
    past, states = t.past, t.past_states
    for step in t.episode.transitions:
        yield Snapshot(t.episode.task, past, step.state, states)
        past, states = (*past, step.action), (*states, step.state)
