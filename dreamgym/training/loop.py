"""The training loop, in the dream or in the real environment.

tasks -> G rollouts each -> rewards [N, G] -> advantages -> an update on sampled tokens
-> a refit of the reward model, if any -> values of tasks -> the next tasks. The next
rollouts are made after the update, or in a thread while it is computed; on the devices
that learn, or on others. The loop receives built parts; it names no environment and no
file.
"""

import copy
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

import jax
import numpy as np

from dreamgym.agent.early_experience.examples import rollout_iwm_examples
from dreamgym.agent.policy import Policy
from dreamgym.envs.vector import VectorEnv, as_restorable
from dreamgym.rl.update import Updater
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import learn
from dreamgym.training.monitor import real_eval_due
from dreamgym.training.recovery import Recovery, copy_arrays
from dreamgym.training.rollouts.collection import collect_rollouts
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import with_all_rewards
from dreamgym.training.selection import destroyed_families
from dreamgym.training.state import (
    LoopParts,
    Recorder,
    RolloutBatch,
    TrainingState,
    UpdateResult,
)
from dreamgym.training.tasks import choose_tasks, record_outcomes
from dreamgym.training.turn_batch import with_update_rewards
from worldmodel.backbone.mesh import copy_to_mesh, default_to
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
    rollout_lag: int = 0,
    show: Callable[[int, int, int], None] | None = None,
) -> TrainingState:
    """Run the loop from `state` to `config.updates` updates, and return its state.

    Training ends early when `budget` transitions are taken (where none is given,
    `config.max_transitions`), when `parts.steps_left` do not pay for a group however
    long its episodes are, or when the state has a `stop_reason`. `show` is called with
    the number of the update, the rollouts that ended and all of them.

    With `rollout_lag` 1 a thread rolls out the batch of the next update while an update
    is computed, with the policy before it (one step off-policy, arXiv:2410.18252).
    Where `parts.rollout_mesh` is given, rollouts are made there.

    Raises:
      ValueError: a setting that the environment or the other parts do not allow.
      FloatingPointError: a loss that is not finite, where updates are not reverted.
    """
    parts = LoopParts() if parts is None else parts
    budget = config.max_transitions or None if budget is None else budget
    _check_parts(policy, envs, config, parts, rollout_lag)
    recovery, max_steps = Recovery(config), envs.max_steps
    earlier_transitions = state.transitions - _transitions(envs, parts)
    collector = _Collector(policy, envs, config, parts, seed=seed, show=show)
    try:
        while (
            count := _task_count(state, config, budget, parts, max_steps)
        ) or state.pending:
            # 1. The rollouts of this update: those that the thread made, or new ones.
            is_stale = state.pending is not None
            batch = state.pending or collector.collect(state, count)
            transitions = earlier_transitions + _transitions(envs, parts)
            state = state._replace(pending=None, transitions=transitions)
            rollouts, current = batch.rollouts, _with_params(policy, state.policy)
            # 2. Score them, where the rewards are not the environment's.
            rescored = _rescored(rollouts, policy, state, config, parts)
            auxiliary = _auxiliary_examples(
                current, rollouts, config, parts, seed + state.update
            )

            # 3. Record outcomes. The update weighs rewards by the lesson of before.
            played = state._replace(lessons=copy.deepcopy(state.lessons))
            metrics = batch.metrics | record_outcomes(state, rollouts, config, parts)

            # 4. Let the thread roll out the next batch. Until its result is here, pool
            # and lessons, environments and experience model are left to it.
            if rollout_lag:
                following = _following(state, metrics)
                count = _task_count(following, config, budget, parts, max_steps)
                collector.start(following, count)
                metrics |= _staleness(updater, state, rescored, is_stale)

            # 5. Update the policy, which donates the buffers of the state.
            snapshot = recovery.snapshot(state)
            supports = {"critic": parts.critic, "auxiliary": auxiliary}
            update = functools.partial(
                learn, updater, played, rescored, config, seed=seed, **supports
            )
            result = recovery.attempt(update, snapshot, state, rescored)
            pending = collector.result()
            transitions = earlier_transitions + _transitions(envs, parts)
            state = state._replace(pending=pending, transitions=transitions)
            metrics["transitions"] = transitions

            # 6. Refit the reward model that the loop keeps up with the policy.
            state, refit_metrics = _refit_reward_model(state, rollouts, parts)

            # 7. Record: metrics, alarms and what is done about them.
            metrics |= _real_eval_metrics(state, policy, result, config, parts)
            result = result._replace(metrics=result.metrics | metrics | refit_metrics)
            state = recovery.respond(snapshot, state, result, rescored.started)
            if state.stop_reason:
                state = state._replace(pending=None)
            rewarded = with_update_rewards(rescored.all, config, played)
            recorder.record(state, rollouts.started, rewarded)
    finally:
        collector.close()
        envs.max_steps = max_steps
    return state


def _check_parts(
    policy: Policy,
    envs: VectorEnv,
    config: LoopConfig,
    parts: LoopParts,
    rollout_lag: int,
) -> None:
    """Check what the settings need.

    Raises:
      ValueError: forks, or starts in demonstrations, in an environment that cannot be
        set back to a state; such starts, or guided retries, without demonstrations; a
        potential of plans or goals that nobody knows; a `rollout_lag` of more than 1,
        on several devices that roll out and learn, or where `parts.steps_left` limits
        the steps; a device of `parts.rollout_mesh` learns.
    """
    if config.goes_back and as_restorable(envs) is None:
        raise ValueError(
            "forks and starts in demonstrations need an environment that can go back, "
            "which only the dream can"
        )
    if config.curriculum.reads_demonstrations and not parts.demonstrations:
        raise ValueError(
            "starts in demonstrations, and guided retries, need demonstrations, got "
            "none"
        )
    potential = config.reward.potential
    if potential.asks_plans and not envs.knows_plans:
        raise ValueError(
            'reward.potential.kind = "plan" needs an environment with an expert that '
            "plans from any state, and declares `plans_from_any_state = True`"
        )
    if potential.weight and potential.kind == "goal" and parts.goals is None:
        raise ValueError('reward.potential.kind = "goal" needs won episodes, got none')
    _check_lag(rollout_lag, policy, parts)
    if parts.rollout_mesh is not None:
        leaves = jax.tree.leaves(policy.model.params)
        learning = {device for x in leaves for device in x.devices()}
        if shared := learning & set(parts.rollout_mesh.devices.flat):
            raise ValueError(
                "devices that roll out must not learn, got for both: "
                f"{sorted(map(str, shared))}"
            )


def _rescored(
    rollouts: Rollouts,
    policy: Policy,
    state: TrainingState,
    config: LoopConfig,
    parts: LoopParts,
) -> Rollouts:
    """Return the rollouts with the rewards that the policy learns from."""
    _load_reward_model(state, parts)
    return with_all_rewards(
        rollouts,
        config,
        parts.score,
        novelty=state.novelty,
        goals=parts.goals,
        subgoal_steps=policy.config.subgoal_steps,
    )


def _following(state: TrainingState, metrics: Mapping[str, float]) -> TrainingState:
    """Return the state of the next update, as far as choosing its tasks reads it."""
    return state._replace(update=state.update + 1, curve=[*state.curve, dict(metrics)])


class _Collector:
    """Chooses the tasks of an update and rolls them out, here or in a thread.

    One thread at most is at work, and the caller learns in the meantime. What is drawn
    depends on the number of the update and on the state alone, so that both ways have
    equal rollouts from equal states.
    """

    def __init__(
        self,
        policy: Policy,
        envs: VectorEnv,
        config: LoopConfig,
        parts: LoopParts,
        *,
        seed: int,
        show: Callable[[int, int, int], None] | None,
    ):
        self._policy, self._envs, self._config = policy, envs, config
        self._parts, self._seed, self._show = parts, seed, show
        self._max_steps = envs.max_steps
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rollouts")
        self._future: Future[RolloutBatch] | None = None
        self._is_closed = threading.Event()

    def collect(self, state: TrainingState, count: int) -> RolloutBatch:
        """Return the rollouts of `count` groups for update number `state.update`."""
        return self._collect(self._sampler(state.policy), state, count)

    def _sampler(self, state: TrainState, *, copy: bool = False) -> Policy:
        """Return the policy that acts, a copy where it has devices of its own."""
        mesh = self._parts.rollout_mesh
        if mesh is not None:
            current = _with_params(self._policy, state)
            return current.replace(copy_to_mesh(current.model, mesh))
        params = copy_arrays(state.params) if copy else state.params
        return _with_params(self._policy, state._replace(params=params))

    def _collect(
        self, current: Policy, state: TrainingState, count: int
    ) -> RolloutBatch:
        with default_to(self._parts.rollout_mesh):
            return self._roll_out(current, state, count)

    def _roll_out(
        self, current: Policy, state: TrainingState, count: int
    ) -> RolloutBatch:
        config, parts, max_steps = self._config, self._parts, self._max_steps
        # Seeded by the number of the update: a resumed run draws as it would have.
        rng = np.random.default_rng((self._seed, state.update))
        key = jax.random.fold_in(jax.random.key(self._seed), state.update)

        # 1. Choose tasks: some are invented, a batch is drawn by value.
        batch = choose_tasks(state, current, max_steps, config, parts, rng, count)
        self._envs.max_steps = batch.step_limit

        # 2. Roll out a group of episodes for each task.
        rollouts = collect_rollouts(
            current,
            self._envs,
            state.pool,
            batch.tasks,
            config,
            key=key,
            rng=rng,
            source=f"update{state.update}",
            mixture=batch.mixture,
            demonstration_starts=batch.demonstration_starts,
            demonstrations=parts.demonstrations,
            max_groups=lambda: _affordable_groups(config, parts, max_steps),
            show=functools.partial(self._progress, state.update),
        )
        return RolloutBatch(rollouts, batch.metrics)

    def start(self, state: TrainingState, count: int) -> None:
        """Begin to collect in the thread, unless there is no task to roll out."""
        if not count:
            return
        # The caller's update donates the buffers of the policy.
        sampler = self._sampler(state.policy, copy=True)
        self._future = self._executor.submit(self._collect, sampler, state, count)

    def result(self) -> RolloutBatch | None:
        """Wait for the thread and return its rollouts, None where it has not begun.

        Raises:
          Exception: whatever the rollouts raised.
        """
        future, self._future = self._future, None
        return None if future is None else future.result()

    def close(self) -> None:
        """End the thread; rollouts that run in it are given up at their next step."""
        self._is_closed.set()
        self._executor.shutdown()

    def _progress(self, number: int, done: int, total: int) -> None:
        if self._is_closed.is_set():
            raise CancelledError
        if self._show is not None:
            self._show(number, done, total)


STALENESS_TURNS = 64
"""Turns of a batch, evenly spaced, on which the policy is compared with its sampler."""


def _check_lag(lag: int, policy: Policy, parts: LoopParts) -> None:
    """Raise ValueError where rollouts cannot be made while the policy learns."""
    if lag not in (0, 1):
        raise ValueError(f"rollout_lag must be 0 or 1, got {lag}")
    mesh = policy.model.mesh
    devices = 1 if mesh is None else mesh.size
    if lag and devices > 1 and parts.rollout_mesh is None:
        raise ValueError(
            "rollout_lag must be 0 on several devices, unless others roll out: two "
            "threads would begin collective operations in different orders, got "
            f"{lag} on {devices} devices"
        )
    if lag and parts.steps_left is not None:
        raise ValueError(
            "rollout_lag must be 0 where real steps are limited: rollouts that are not "
            f"learned from would be paid for, got {lag}"
        )


def _staleness(
    updater: Updater, state: TrainingState, rollouts: Rollouts, is_stale: bool
) -> dict[str, float]:
    """Return how old the policy is that sampled the rollouts, in updates and in KL."""
    scored = (t for t in rollouts.all if t.error is None)
    turns = [x for t in scored for x in t.turns if not x.given]
    if not turns:
        return {"rollout_lag": float(is_stale)}
    count = min(STALENESS_TURNS, len(turns))
    places = np.linspace(0, len(turns) - 1, count).astype(int)
    examples = [turns[i].example() for i in places]
    return {
        "rollout_lag": float(is_stale),
        "sampler_kl": updater.sampler_kl(state.policy.params, examples),
    }


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
