"""One update of the policy, and of the critic, from a batch of rollouts.

weights of the loss terms -> advantages of turns (rl/credit.py) -> replay -> the update
(rl/update.py) -> the KL controller (rl/trust_region.py) -> metrics for the curve.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from dreamgym.agent.rollout import Trajectory
from dreamgym.rl.advantages import unit_rms
from dreamgym.rl.config import LossWeights, UpdateConfig
from dreamgym.rl.credit import TurnGrid
from dreamgym.rl.critic import Critic
from dreamgym.rl.trust_region import adapt_kl_coefficient
from dreamgym.rl.update import Updater
from dreamgym.training.config import LoopConfig
from dreamgym.training.limits import limit_metrics, multipliers
from dreamgym.training.metrics import rollout_metrics
from dreamgym.training.monitor import loss_weights, weight_metrics
from dreamgym.training.rollouts.forks import forks_of
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.state import TrainingState, UpdateResult
from dreamgym.training.turn_batch import TurnBatch
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


class _Advantages(NamedTuple):
    """The turns that enter the update, as examples with a column `advantage`.

    `indices` are their numbers in the batch. Advantages are `scale` times smaller than
    differences of returns. `critic` is the critic after it was fitted, and
    `critic_metrics` describe that fit.
    """

    indices: Sequence[int]
    examples: list[Example]
    scale: float
    critic: TrainState | None
    critic_metrics: dict[str, float]


def learn(
    updater: Updater,
    state: TrainingState,
    rollouts: Rollouts,
    config: LoopConfig,
    *,
    seed: int,
    critic: Critic | None = None,
    auxiliary: Sequence[Example] = (),
) -> UpdateResult:
    """Update the policy once, and the critic where there is one.

    `auxiliary` are the examples that the auxiliary loss draws from. Where no turn
    carries a signal the policy stays as it is.

    Raises:
      FloatingPointError: a loss that is not finite.
    """
    # Not the loop's generator: what it drew before depends on resampling and forks.
    rng = np.random.default_rng((seed, state.update, 1))
    learned = with_policy_logp(
        rollouts.learned(config.group_size), updater, state.policy
    )
    batch = TurnBatch(learned, config, forks_of(rollouts, config.group_size))

    # 1. Weights of the loss terms: those that the last update ended with.
    # Read from the curve, which a checkpoint holds: a resumed run goes on with the same
    # weights.
    last_row = state.curve[-1] if state.curve else {}
    weights = loss_weights(last_row, config.initial_weights)
    limit_weights = multipliers(last_row, config.limits)

    # 2. Advantages, from a critic or from comparing rollouts.
    advantages = _advantages(
        batch, updater, weights, limit_weights, state, critic, seed + state.update
    )

    # 3. Replay: draw examples of earlier rollouts, then add those of this batch.
    count = len(advantages.examples)
    replayed = _draw(state.replay, config.replay.ratio * count, rng)
    replay = _extend_replay(state.replay, batch, advantages.examples, config)

    # 4. The update, in the trust region.
    policy, metrics = state.policy, {}
    if advantages.examples:
        visitation = batch.visitation_weights(len(rollouts.started))
        policy, metrics = updater.update(
            state.policy,
            [*advantages.examples, *replayed],
            seed=seed + state.update,
            weights=weights,
            auxiliary=_draw(auxiliary, config.auxiliary.examples_per_update, rng),
            # Replayed turns are not of this policy's episodes: they train it, but the
            # bound on its improvement counts only states that it visits itself.
            visitation_weights=[
                *visitation[advantages.indices],
                *[0.0] * len(replayed),
            ],
            advantage_scale=advantages.scale,
        )
        # 5. The KL controller.
        weights = _adapt_kl_weight(weights, metrics, config)

    row = (
        metrics | advantages.critic_metrics | _weight_changes(weights, last_row, config)
    )
    row |= rollout_metrics(rollouts, config)
    row |= limit_metrics(rollouts.started, limit_weights, config.limits)
    row["informative_turn_share"] = count / max(len(batch.examples), 1)
    if replayed:
        row["replayed"] = float(len(replayed))
    return UpdateResult(policy, row, advantages.critic, replay)


def with_policy_logp(
    trajectories: Sequence[Trajectory], updater: Updater, policy: TrainState
) -> list[Trajectory]:
    """Return the trajectories with log p of given turns, as if the policy chose them.

    Then their importance ratio is 1 before the update, as that of sampled turns is.
    """
    given = [x for t in trajectories for x in t.turns if x.given]
    if not given:
        return list(trajectories)
    examples = updater.with_sampler_logp(policy.params, [x.example() for x in given])
    logp = iter(
        tuple(float(x) for x in np.asarray(e.columns["sampler_logp"])[len(x.context) :])
        for x, e in zip(given, examples, strict=True)
    )
    return [
        t._replace(
            turns=tuple(x._replace(logp=next(logp)) if x.given else x for x in t.turns)
        )
        for t in trajectories
    ]


def _advantages(
    batch: TurnBatch,
    updater: Updater,
    weights: LossWeights,
    limit_weights: Mapping[str, float],
    state: TrainingState,
    critic: Critic | None,
    seed: int,
) -> _Advantages:
    """Return advantages from the critic, or by comparing rollouts without one."""
    if critic is None or state.critic is None:
        return _advantages_without_critic(batch, updater, weights, state, limit_weights)
    rewards, scale = batch.rewards(
        weights,
        updater,
        state.lessons,
        limit_weights,
        scaled=_has_scale(batch.config.update),
        previous_scale=_previous_scale(state),
    )
    return _advantages_from_critic(
        batch, critic, state.critic, state.policy, rewards, scale, seed=seed
    )


def _advantages_without_critic(
    batch: TurnBatch,
    updater: Updater,
    weights: LossWeights,
    state: TrainingState,
    limit_weights: Mapping[str, float],
) -> _Advantages:
    """Return advantages by a group or batch mean, a success filter or preferences."""
    c, size, grid = batch.config.update, batch.config.group_size, batch.grid()
    return_scale: float | None = None
    if c.advantage_estimator == "success_filter":
        values, mask = grid.success_filter(batch.success)
    elif c.advantage_estimator == "preference_pairs":
        log_ratios = updater.reference_log_ratio(batch.examples)
        values, mask = grid.dpo_weights(
            log_ratios,
            batch.success,
            batch.sampled_tokens,
            c,
            size,
            compared=batch.compared,
            choices=batch.choices(),
        )
    elif c.normalize_advantages == "component":
        values, mask = _component_advantages(batch, grid, weights)
    else:
        rewards, return_scale = batch.rewards(
            weights,
            updater,
            state.lessons,
            limit_weights,
            scaled=_has_scale(c),
            previous_scale=_previous_scale(state),
        )
        values, mask = _over_groups(batch, grid, rewards)
    # `scale` is undone in the bound of theorem 1, which speaks of returns.
    unit = scale = 1.0 if return_scale is None else return_scale
    if c.normalize_advantages in ("batch", "component") and c.reads_rewards:
        values, scale = unit_rms(values, mask)
        scale *= unit
    # After all that compares and normalises, as in the papers.
    if c.shaping.entropy_rate:
        entropy = updater.mean_entropy(state.policy.params, batch.examples)
        values = grid.entropy_modulated(values, entropy, c.shaping, size)
    if c.shaping.early_call:
        calls = batch.first_calls()
        values = grid.early_call_shaped(values, batch.success, calls, c.shaping, size)
    indices = np.flatnonzero(mask).tolist()
    examples = [
        batch.examples[i].with_columns(advantage=float(values[i])) for i in indices
    ]
    metrics = {} if return_scale is None else {RETURN_SCALE: return_scale}
    return _Advantages(indices, examples, scale, state.critic, metrics)


def _over_groups(
    batch: TurnBatch, grid: TurnGrid, rewards: Float[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Return advantages of turns over their groups, and the turns with a signal."""
    fork = batch.config.fork
    return grid.group_advantages(
        rewards,
        batch.state_numbers(),
        batch.config.update,
        batch.config.group_size,
        batch.forks,
        fork_weight=fork.weight,
        prefix_mean=fork.prefix_mean,
    )


def _component_advantages(
    batch: TurnBatch, grid: TurnGrid, weights: LossWeights
) -> tuple[Float[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """Return the weighted sum of the advantages by each reward component.

    Each is divided by its own standard deviation (GDPO, arXiv:2601.05242).
    """
    count = sum(batch.length)
    values, mask = np.zeros(count), np.zeros(count, bool)
    for weight, rewards in batch.components(weights).values():
        advantages, signal = _over_groups(batch, grid, rewards)
        values += weight * advantages
        mask |= signal
    return values, mask


RETURN_SCALE = "return_scale"
"""The metric of what rewards are divided by (TurnGrid.return_scale): that of the first
update with a return other than 0, or of a later one with far larger returns."""


def _has_scale(config: UpdateConfig) -> bool:
    """Whether rewards are divided by a scale before anything is learnt from them.

    Where advantages are normalised and something else is in units of rewards: the
    values of a critic, or a KL penalty in the reward. Otherwise the advantages' own
    normalisation suffices.
    """
    withheld = (
        config.kl_penalty.coefficient > 0 and config.kl_penalty.placement == "reward"
    )
    needed = config.advantage_estimator == "gae" or withheld
    return needed and config.normalize_advantages != "none"


def _previous_scale(state: TrainingState) -> float | None:
    """Return what earlier updates divided rewards by; None where none has measured it.

    An update of which all returns were 0 has not.
    """
    scales = (row[RETURN_SCALE] for row in reversed(state.curve) if RETURN_SCALE in row)
    return next(scales, None)


def _advantages_from_critic(
    batch: TurnBatch,
    critic: Critic,
    critic_state: TrainState,
    policy: TrainState,
    rewards: Float[np.ndarray, " N"],
    return_scale: float | None,
    *,
    seed: int,
) -> _Advantages:
    """Return generalised advantage estimates, and the critic fitted to the returns.

    With a critic over tokens, the reward of a turn and the discount between turns lie
    on the turn's last token.
    """
    c, examples = batch.config.update, batch.examples
    values = critic.values(critic_state, policy.params, examples)
    positions = [critic.positions(e) for e in examples]
    count = np.array([len(p) for p in positions])
    episode = np.repeat(np.arange(len(batch.trajectories)), batch.length)
    length = np.bincount(episode, count, len(batch.trajectories)).astype(int)
    last_turn = batch.length.cumsum() - 1  # of each episode
    cut = batch.aborted
    if c.critic.step_limit == "cut":
        cut = cut | batch.reached_limit
    unknown = np.where(cut, count[last_turn], 0)
    grid = TurnGrid(length, batch.scored, unknown)
    ends = count.cumsum() - 1
    position_rewards, discount = np.zeros(len(values)), np.ones(len(values))
    # Elsewhere the discount is 1: time passes between turns, not between tokens.
    position_rewards[ends], discount[ends] = rewards, c.discount
    # The minimum alone at the edge: a state that was played on from has a return.
    advantages, mask, returns = grid.gae_advantages(
        position_rewards, values.mean(1), discount, c, values.min(1)
    )
    indices: list[int] = []
    out: list[Example] = []
    for i, (example, at) in enumerate(zip(examples, positions, strict=True)):
        span = slice(ends[i] + 1 - count[i], ends[i] + 1)
        if not mask[span].all():  # an unscored turn, or one past the last trusted state
            continue
        indices.append(i)
        if critic.config.value_level == "turn":
            out.append(example.with_columns(advantage=float(advantages[span][0])))
        else:
            per_token = np.zeros(len(example.ids), np.float32)
            per_token[at] = advantages[span]
            out.append(example.with_columns(advantage=per_token))
    metrics = {} if return_scale is None else {RETURN_SCALE: return_scale}
    if indices:
        critic_state, fit_metrics = critic.fit(
            critic_state,
            policy.params,
            [examples[i] for i in indices],
            returns[mask],
            values[mask],
            seed=seed,
        )
        metrics |= fit_metrics
    if critic.config.ensemble_size > 1:
        edges = (length.cumsum() - unknown)[unknown > 0]
        metrics |= _spread(values[mask], "value_spread")
        metrics |= _spread(values[edges], "edge_value_spread")
    scale = 1.0 if return_scale is None else return_scale
    return _Advantages(indices, out, scale, critic_state, metrics)


def _spread(values: Float[np.ndarray, "M H"], name: str) -> dict[str, float]:
    """Return the mean of the heads' standard deviation by its name, if any is known."""
    return {name: float(values.std(1).mean())} if len(values) else {}


def _adapt_kl_weight(
    weights: LossWeights, metrics: dict[str, float], config: LoopConfig
) -> LossWeights:
    """Return the weights after an update, that of the KL adapted if it has a target."""
    target = config.update.kl_penalty.target
    if not target:
        return weights
    return weights._replace(kl=adapt_kl_coefficient(weights.kl, metrics["kl"], target))


def _weight_changes(
    weights: LossWeights, last_row: dict[str, float], config: LoopConfig
) -> dict[str, float]:
    """Return metrics of the weights that differ or differed from the initial ones.

    A weight that is back at its initial value stays in the row, or a resumed run would
    read the value before that.
    """
    initial = weight_metrics(config.initial_weights)
    return {
        name: value
        for name, value in weight_metrics(weights).items()
        if value != initial[name] or name in last_row
    }


def _draw(
    examples: Sequence[Example], count: float | int, rng: np.random.Generator
) -> list[Example]:
    """Draw `count` of the examples, rounded, each at most once."""
    sample = rng.permutation(len(examples))[: round(count)]
    return [examples[i] for i in sample]


def _extend_replay(
    replay: Sequence[Example],
    batch: TurnBatch,
    examples: Sequence[Example],
    config: LoopConfig,
) -> tuple[Example, ...]:
    """Return the replay, extended by turns of successes with a positive advantage.

    Equal turns of a batch are added once.
    """
    if not config.replay.ratio:
        return ()
    success = np.repeat(batch.success & batch.scored, batch.length)
    successful = {
        tuple(e.ids) for e, ok in zip(batch.examples, success, strict=True) if ok
    }
    additions = {
        tuple(e.ids): e
        for e in examples
        if tuple(e.ids) in successful and np.mean(e.columns["advantage"]) > 0
    }
    # The oldest are dropped: they were sampled by the earliest policies.
    return (*replay, *additions.values())[-config.replay.capacity :]
