"""Responses to a breakdown: revert the update, change loss weights, stop training.

The policy before an update -> the update, or none where its loss is not finite ->
alarms (monitor.py) -> the state that training continues from.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dreamgym.agent.rollout import Trajectory
from dreamgym.training import monitor
from dreamgym.training.config import LoopConfig
from dreamgym.training.learn import RETURN_SCALE
from dreamgym.training.metrics import rollout_metrics
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.state import TrainingState, UpdateResult
from worldmodel.fitting.learner import TrainState

MAX_UNSCORED_UPDATES = 3
"""Updates in a row without a scored rollout, after which training stops."""


FLAG_WINDOW = 4
"""Updates within which the same collapse is answered once: its flag stays for as many
checks (curriculum/skill_collapse.py)."""


class Snapshot(NamedTuple):
    """Policy and critic before an update, in separate buffers."""

    policy: TrainState
    critic: TrainState | None


class Recovery:
    """Responds to the alarms of an update as the settings of the monitor say."""

    def __init__(self, config: LoopConfig):
        self._config, self._monitor = config, config.monitor

    def snapshot(self, state: TrainingState) -> Snapshot | None:
        """Return a copy to revert to, None where updates are never reverted."""
        if self._monitor.response == "log":
            return None
        return Snapshot(*copy_arrays((state.policy, state.critic)))

    def attempt(
        self,
        update: Callable[[], UpdateResult],
        snapshot: Snapshot | None,
        state: TrainingState,
        rollouts: Rollouts,
    ) -> UpdateResult:
        """Run the update; where its loss is not finite, return the snapshot instead.

        Raises:
          FloatingPointError: a loss that is not finite, and no snapshot to revert to.
        """
        try:
            return update()
        except FloatingPointError:
            if snapshot is None:
                raise
            last_row = state.curve[-1] if state.curve else {}
            row = {
                k: v
                for k, v in last_row.items()
                if k.endswith("_weight")
                or k.startswith("limit_weight/")
                or k == RETURN_SCALE
            }
            row |= rollout_metrics(rollouts, self._config)
            row[f"alarm/{monitor.NOT_FINITE}"] = 1.0
            return UpdateResult(snapshot.policy, row, snapshot.critic, state.replay)

    def respond(
        self,
        snapshot: Snapshot | None,
        state: TrainingState,
        result: UpdateResult,
        trajectories: Sequence[Trajectory],
    ) -> TrainingState:
        """Return the state after an update, reverted or stopped where alarms say so.

        `trajectories` are those that the update learned from.
        """
        state = self._respond_to_alarms(snapshot, state, result)
        return _keep_best(_stop_if_unscored(state, trajectories))

    def _respond_to_alarms(
        self, snapshot: Snapshot | None, state: TrainingState, result: UpdateResult
    ) -> TrainingState:
        c, number = self._monitor, state.update + 1
        row = dict(result.metrics)
        for name in monitor.alarms(state.curve, row, c):
            row[f"alarm/{name}"] = 1.0
        names = [k.removeprefix("alarm/") for k in row if k.startswith("alarm/")]
        policy, critic, stop_reason = result.policy, result.critic, ""
        if self._remedies_suffice(names):
            # They are of rollouts by the policy from before this update: to go back to
            # it would lose nothing but the update. Other weights teach the skill again.
            answered = {k for earlier in state.curve[-FLAG_WINDOW:] for k in earlier}
            if any(f"alarm/{name}" not in answered for name in names):
                row |= self._remedied_weights(row)
        elif names and snapshot is not None:
            policy, critic = snapshot
            # Where real success fell, the last updates are suspect, not only this one.
            if "max_real_drop" in names and state.best is not None:
                policy = copy_arrays(state.best)
            row["reverted"] = 1.0
            row |= self._remedied_weights(row)
            stop_reason = self._stop_reason([*state.curve, row], names, number)
        return state._replace(
            update=number,
            policy=policy,
            critic=critic,
            replay=result.replay,
            curve=[*state.curve, row],
            stop_reason=stop_reason,
        )

    def _remedies_suffice(self, alarms: Sequence[str]) -> bool:
        """Return whether remedies alone answer these alarms: all say a skill was lost.

        Training that is to stop at an alarm stops at these, too.
        """
        c = self._monitor
        if c.response != "revert" or not (c.remedies and alarms):
            return False
        return all(name.startswith("skill_collapse") for name in alarms)

    def _remedied_weights(self, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the weights of the loss for the next updates, as metrics."""
        weights = monitor.loss_weights(row, self._config.initial_weights)
        return monitor.weight_metrics(
            monitor.apply_remedies(weights, self._monitor.remedies)
        )

    def _stop_reason(
        self, curve: Sequence[dict[str, Any]], alarms: Sequence[str], number: int
    ) -> str:
        """Return why training stops after a reverted update; "" where it goes on."""
        patience = self._monitor.patience
        message = f"update {number}: {', '.join(alarms)}"
        if self._monitor.response == "stop":
            return f"stopped before {message}"
        if sum(row.get("reverted", 0.0) for row in curve[-patience:]) >= patience:
            return f"stopped: {patience} updates in a row were reverted; {message}"
        return ""


def copy_arrays(tree: Any) -> Any:
    """Return equal arrays in new buffers: an update donates those it is given."""
    return jax.tree.map(jnp.copy, tree)


def _keep_best(state: TrainingState) -> TrainingState:
    """Return the state with its policy as the best one, if it just became that."""
    if state.best is None or monitor.best_row(state.curve) != len(state.curve) - 1:
        return state
    return state._replace(best=copy_arrays(state.policy))


def _stop_if_unscored(
    state: TrainingState, trajectories: Sequence[Trajectory]
) -> TrainingState:
    """Return the state, stopped after MAX_UNSCORED_UPDATES updates without a score.

    Further updates would only cost transitions: what the policy earns is unknown, and
    whatever broke all of these rollouts will break the next ones, too.
    """
    rows = state.curve[-MAX_UNSCORED_UPDATES:]
    scored = any(row["unscored_rollouts"] < row["rollouts"] for row in rows)
    if state.stop_reason or scored or len(rows) < MAX_UNSCORED_UPDATES:
        return state
    reasons = Counter[str]()
    for row in rows:
        reasons.update(
            {k.partition("/")[2]: int(n) for k, n in row.items() if "unscored/" in k}
        )
    counts = ", ".join(f"{n} ended with {name!r}" for name, n in reasons.most_common())
    return state._replace(
        stop_reason=f"stopped: no rollout of {MAX_UNSCORED_UPDATES} updates in a row "
        f"was scored; {counts}; the last: {trajectories[-1].error}"
    )
