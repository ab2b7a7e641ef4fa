"""The training loop, in the dream or in the real environment.

tasks -> G rollouts each -> rewards [N, G] -> advantages -> an update on sampled tokens
-> a refit of the reward model, if any -> values of tasks -> the next tasks. The loop
receives built parts; it names no environment and no file.
"""

import functools
import sys
from collections.abc import Callable, Sequence

import jax
import numpy as np

from dreamgym.agent.early_experience.examples import rollout_iwm_examples
from dreamgym.agent.policy import Policy
from dreamgym.envs.vector import VectorEnv, as_restorable
from dreamgym.rl.update import Updater
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import learn
from dreamgym.training.monitor import real_eval_due
from dreamgym.training.recovery import Recovery
from dreamgym.training.rollouts import (
    Rollouts,
    collect_rollouts,
    rescore,
    with_novelty,
)
from dreamgym.training.selection import destroyed_families
from dreamgym.training.state import LoopParts, Recorder, TrainingState, UpdateResult
from dreamgym.training.tasks import choose_tasks, record_outcomes
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


def train(
    policy: Policy,
    envs: VectorEnv,
    updater: Updater,
    state: TrainingState,
    config: LoopConfig,
    *,
    seed: int,
    recorder: Recorder,
    parts: LoopParts | None = None,
    budget: int | None = None,
    show: Callable[[int, int, int], None] | None = None,
) -> TrainingState:
    """Run the loop from `state` to `config.updates` updates, and return its state.

    Training ends early when `budget` transitions are taken (where none is given,
    `config.max_transitions`), when `parts.steps_left` do not pay for a group however
    long its episodes are, or when the state has a `stop_reason`. `show` is called with
    the number of the update, the rollouts that ended and all of them.

    Raises:
      ValueError: forks, or starts in demonstrations, in an environment that cannot be
        set back to a state, or such starts without demonstrations.
      FloatingPointError: a loss that is not finite, where updates are not reverted.
    """
    parts = LoopParts() if parts is None else parts
    if budget is None and config.max_transitions:
        budget = config.max_transitions
    if config.goes_back and as_restorable(envs) is None:
        raise ValueError(
            "forks and starts in demonstrations need an environment that can go back, "
            "which only the dream can"
        )
    if config.curriculum.demonstration_starts.share and not parts.demonstrations:
        raise ValueError("starts in demonstrations need demonstrations, got none")
    recovery, max_steps = Recovery(config), envs.max_steps
    try:
        while count := _task_count(state, config, budget, parts, max_steps):
            # Seeded by the number of the update: a resumed run draws as it would have.
            rng = np.random.default_rng((seed, state.update))
            key = jax.random.fold_in(jax.random.key(seed), state.update)
            current = _with_params(policy, state.policy)
            transitions_before = _transitions(envs, parts)

            # 1. Choose tasks: some are invented, a batch is drawn by value.
            batch = choose_tasks(state, current, max_steps, config, parts, rng, count)
            envs.max_steps = batch.step_limit

            # 2. Roll out a group of episodes for each task.
            rollouts = collect_rollouts(
                current,
                envs,
                state.pool,
                batch.tasks,
                config,
                key=key,
                rng=rng,
                source=f"update{state.update}",
                mixture=batch.mixture,
                demonstration_starts=batch.demonstration_starts,
                max_groups=lambda: _affordable_groups(config, parts, max_steps),
                show=_with_update_number(show, state.update),
            )
            transitions = _transitions(envs, parts) - transitions_before

            # 3. Score them, where the rewards are not the environment's.
            _load_reward_model(state, parts)
            rescored = rescore(rollouts, parts.score, config.reward.cost.token)
            if state.novelty is not None:
                rescored = with_novelty(
                    rescored, state.novelty, config.reward.component_weights
                )

            # 4. Update the policy. The snapshot comes first, because the update
            # donates the buffers of the state.
            snapshot = recovery.snapshot(state)
            update = functools.partial(
                learn,
                updater,
                state,
                rescored,
                config,
                seed=seed,
                critic=parts.critic,
                auxiliary=_auxiliary_examples(
                    current, rollouts, config, parts, seed + state.update
                ),
            )
            result = recovery.attempt(update, snapshot, state, rescored)

            # 5. Refit the reward model, where the loop has one that is kept up with the
            # policy.
            state, refit_metrics = _refit_reward_model(state, rollouts, parts)

            # 6. Record: values of tasks, metrics, alarms and what is done about them.
            state = state._replace(transitions=state.transitions + transitions)
            metrics = batch.metrics | record_outcomes(state, rollouts, config, parts)
            metrics |= refit_metrics
            metrics |= _real_eval_metrics(state, policy, result, config, parts)
            result = result._replace(metrics=result.metrics | metrics)
            state = recovery.respond(snapshot, state, result, rescored.started)
            recorder.record(state, rollouts.started, rescored.all)
    finally:
        envs.max_steps = max_steps
    return state


def _is_finished(state: TrainingState, config: LoopConfig, budget: int | None) -> bool:
    """Return whether all updates are made, training stopped, or the budget is spent."""
    if state.update >= config.updates or state.stop_reason:
        return True
    return budget is not None and state.transitions >= budget


def _task_count(
    state: TrainingState,
    config: LoopConfig,
    budget: int | None,
    parts: LoopParts,
    max_steps: int,
) -> int:
    """Return the number of tasks of the next update, 0 if there is none."""
    if _is_finished(state, config, budget):
        return 0
    return min(config.tasks_per_update, _affordable_groups(config, parts, max_steps))


def _affordable_groups(config: LoopConfig, parts: LoopParts, max_steps: int) -> int:
    """Return how many groups the steps that are left pay for, however long they are."""
    if parts.steps_left is None:
        return sys.maxsize
    return max(parts.steps_left(), 0) // (config.group_size * max_steps)


def _with_params(policy: Policy, state: TrainState) -> Policy:
    return policy.replace(policy.model._replace(params=state.params))


def _transitions(envs: VectorEnv, parts: LoopParts) -> int:
    """Return the transitions taken so far, with those of the feasibility filter."""
    trial_transitions = (
        0 if parts.feasibility is None else parts.feasibility.transitions
    )
    return envs.transitions + trial_transitions


def _auxiliary_examples(
    current: Policy,
    rollouts: Rollouts,
    config: LoopConfig,
    parts: LoopParts,
    seed: int,
) -> Sequence[Example]:
    """Return the examples that the auxiliary loss of this update draws from."""
    if config.auxiliary.objective != "rollout_iwm" or not config.supervised:
        return parts.auxiliary
    return rollout_iwm_examples(
        current,
        rollouts.started,
        max_examples=config.auxiliary.examples_per_update,
        seed=seed,
    )


def _load_reward_model(state: TrainingState, parts: LoopParts) -> None:
    """Let the reward model score with the weights of the state, if it holds any."""
    if parts.reward_refit is not None and state.reward_model is not None:
        parts.reward_refit.load(state.reward_model)


def _refit_reward_model(
    state: TrainingState, rollouts: Rollouts, parts: LoopParts
) -> tuple[TrainingState, dict[str, float]]:
    """Return the state with the weights of the reward model after this update.

    It is fitted to outcomes and not to rewards, so that its mistakes do not teach it;
    a fork's outcome is in part that of the rollout it began in.
    """
    if parts.reward_refit is None:
        return state, {}
    episodes = [t.episode for t in rollouts.started if t.error is None]
    metrics = parts.reward_refit.refit(episodes, state.update + 1)
    return state._replace(reward_model=parts.reward_refit.weights), metrics


def _real_eval_metrics(
    state: TrainingState,
    policy: Policy,
    result: UpdateResult,
    config: LoopConfig,
    parts: LoopParts,
) -> dict[str, float]:
    """Play real dev tasks with the updated policy, if they are due; return metrics."""
    number = state.update + 1
    if parts.real_eval is None or not real_eval_due(
        config.monitor, number, config.updates
    ):
        return {}
    metrics = parts.real_eval(_with_params(policy, result.policy))
    destroyed = destroyed_families(metrics, parts.real_eval_baseline)
    return metrics | {f"destroyed/{name}": 1.0 for name in destroyed}


def _with_update_number(
    show: Callable[[int, int, int], None] | None, number: int
) -> Callable[[int, int], None] | None:
    """Return `show` with the number of the update as its first argument."""
    if show is None:
        return None
    return lambda done, total: show(number, done, total)
