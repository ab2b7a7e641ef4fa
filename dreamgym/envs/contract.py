"""The contract checker: what every environment must do, the dream included.

environment -> a few of its tasks played with nonsense, the expert's plan and variations
-> the checks made, or an error that says what is wrong. Users run it on their own
environment with `dreamgym check --env module:Class`.
"""

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base
from dreamgym.envs.base import EnvironmentFailure, guarded
from worldmodel.data.records import State, Task

_NONSENSE = "frobnicate the <|dg_end|> moon\u2603"
STEP_AFTER_END_ERRORS = (RuntimeError, ValueError, AssertionError, error.Error)
"""What a step after the end may raise; another error is a mistake in the code."""


class ContractError(AssertionError):
    """The contract is broken; the message says how, and what was expected."""


def _violation(call: str, failure: EnvironmentFailure) -> ContractError:
    """An error that names the call, what it raised, and the line that raised it."""
    return ContractError(f"{call} raised {failure.reason} ({failure.place})")


class _ReportingWrapper(gymnasium.Wrapper):
    """An environment whose exceptions become contract errors that name the call."""

    def __getattr__(self, name: str) -> Any:
        value = self.env.get_wrapper_attr(name)
        if not callable(value):
            return value
        return functools.partial(_call, name, self.env, value)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        task = (options or {})["task"]
        call = f"reset to task {task.id!r}"
        return _call(call, self.env, self.env.reset, seed=seed, options=options)

    def step(self, action: Any):
        return _call(f"step({action!r})", self.env, self.env.step, action)


def _call(
    name: str,
    env: gymnasium.Env,
    method: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> Any:
    result = guarded(env, lambda: method(*args, **options))
    if isinstance(result, EnvironmentFailure):
        raise _violation(name, result) from result.error
    return result


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)


def _play(
    env: gymnasium.Env, task: Task, actions: list[str], limit: int
) -> list[tuple[str, float, bool, bool]]:
    obs, _ = env.reset(seed=0, options={"task": task})
    trace = [(obs, 0.0, False, False)]
    for action in actions[:limit]:
        obs, number, terminated, truncated, info = env.step(action)
        reward = float(number)
        _require(isinstance(obs, str), f"step must return text, got {type(obs)}")
        _require(
            not (terminated and truncated), "terminated and truncated must not merge"
        )
        parts = info.get("rewards")
        _require(
            parts is None or abs(sum(parts.values()) - reward) < 1e-6,
            f"info['rewards'] {parts} must sum to the reward {reward}",
        )
        trace.append((obs, reward, terminated, truncated))
        if terminated or truncated:
            break
    return trace


def check(
    env: gymnasium.Env, *, name: str = "env", limit: int = 200, tasks: int = 3
) -> list[str]:
    """Check an environment on some train tasks; return the names of the checks made.

    Equal tasks and actions give equal texts · an invalid action does not end the
    episode · a step after the end raises · the expert's plan wins · the step limit
    truncates and does not terminate · train, dev and test share no task · variations of
    a train task can be begun, are equal for equal generators, and name their origin.

    Args:
      limit: steps of an episode, at most.
      tasks: train tasks that are played, at most.

    Raises:
      ContractError: what is wrong and what is expected, or which call raised where.
    """
    return _checked(_ReportingWrapper(env), name=name, limit=limit, tasks=tasks)


def check_gymnasium(env: gymnasium.Env) -> None:
    """Run Gymnasium's own check, without its check of rendering.

    Raises:
      AssertionError: Gymnasium's, naming what does not hold.
      ContractError: the environment raised; this check resets it without a task.
    """
    result = guarded(env, lambda: check_env(env, skip_render_check=True))
    if not isinstance(result, EnvironmentFailure):
        return
    if isinstance(result.error, AssertionError):
        raise result.error
    call = "Gymnasium's own check (reset() without seed and options, then steps)"
    raise _violation(call, result) from result.error


def _checked(env: _ReportingWrapper, *, name: str, limit: int, tasks: int) -> list[str]:
    done = ["reset", "step"]
    train = base.tasks_of(env, name, "train", tasks)
    _require(bool(train), "tasks('train') must not be empty")
    for task in train:
        obs, info = env.reset(seed=0, options={"task": task})
        _require(isinstance(obs, str), f"reset must return text, got {type(obs)}")
        _require(bool(obs.strip()), f"task {task.id!r} starts with an empty state")
        _require(isinstance(info, dict), "reset must return (obs, info)")
        _check_writable(env, task)
        _check_actions(env, task)
        _check_nonsense(env, task)
        if (expert := base.as_expert(env)) is not None:
            _check_expert(env, expert, task, limit)
            done.append("expert")
        if (varied := base.as_variations(env)) is not None:
            _check_variations(env, varied, task)
            done.append("variations")
        actions = [_NONSENSE] * limit
        first, second = (_play(env, task, actions, limit) for _ in range(2))
        if base.is_deterministic(env):
            _require(first == second, f"task {task.id!r}: replays differ")
            done.append("deterministic")
        _require(
            not first[-1][2],
            f"task {task.id!r}: {len(first) - 1} nonsense actions ended the episode: a "
            "limit must be truncated, not terminated",
        )
        if first[-1][3]:
            done.append("truncated")
        if first[-1][2] or first[-1][3]:
            _check_step_after_end(env.env)
            done.append("step after end raises")
    if (lister := base.as_tasks(env)) is not None:
        splits = [{t.id for t in lister.tasks(s)} for s in base.SPLITS]
        shared = (
            (splits[0] & splits[1]) | (splits[0] & splits[2]) | (splits[1] & splits[2])
        )
        _require(not shared, f"splits share tasks {sorted(shared)[:3]}")
        done.append("splits apart")
    return sorted(set(done))


def _check_step_after_end(env: gymnasium.Env) -> None:
    """A step after the end of an episode raises one of STEP_AFTER_END_ERRORS."""
    result = guarded(env, lambda: env.step("look"))
    if not isinstance(result, EnvironmentFailure):
        raise ContractError("a step after the end must raise")
    names = ", ".join(kind.__name__ for kind in STEP_AFTER_END_ERRORS)
    _require(
        isinstance(result.error, STEP_AFTER_END_ERRORS),
        f"a step after the end must raise one of {names}, got {result.reason} "
        f"({result.place})",
    )


def _check_actions(env: gymnasium.Env, task: Task) -> None:
    """Valid actions are texts, none empty; there may be no action."""
    if (lister := base.as_valid_actions(env)) is not None:
        actions = list(lister.valid_actions())
        _require(
            all(isinstance(action, str) and action.strip() for action in actions),
            f"task {task.id!r}: valid_actions() must be texts, none empty, got "
            f"{actions}",
        )


def _check_writable(env: gymnasium.Env, task: Task) -> State:
    """The first state of a task that can be begun and written to a file."""
    try:
        return base.begin(env, task)[1]
    except (TypeError, ValueError) as problem:
        raise ContractError(
            f"task {task.id!r}: its options must be JSON, its texts UTF-8: {problem}"
        ) from problem


def _check_nonsense(env: gymnasium.Env, task: Task) -> None:
    env.reset(seed=0, options={"task": task})
    _, _, terminated, _, _ = env.step(_NONSENSE)
    _require(
        not terminated,
        f"task {task.id!r}: an action the environment cannot take must not end the "
        "episode; tell the agent in the next state",
    )


def _check_variations(
    env: gymnasium.Env, varied: base.HasVariations, task: Task
) -> None:
    draws = [list(varied.variations(task, np.random.default_rng(0))) for _ in range(2)]
    where = f"task {task.id!r}: its variations"
    _require(draws[0] == draws[1], f"{where} differ for the same generator")
    for variation in draws[0]:
        _require(variation.id != task.id, f"{where} hold the task itself")
        _require(
            variation.split == "generated", f"{where} must be of split 'generated'"
        )
        _require(task.id in variation.lineage, f"{where} must name it in their lineage")
        state = _check_writable(env, variation)
        _require(bool(state), f"{where}: {variation.id!r} starts with an empty state")


def _check_expert(
    env: gymnasium.Env, expert: base.HasExpert, task: Task, limit: int
) -> None:
    plans = []
    for _ in range(2):
        env.reset(seed=0, options={"task": task})
        plans.append(list(expert.expert()))
    _require(plans[0] == plans[1], f"task {task.id!r}: the expert's plan differs")
    _check_plan(env, task, plans[0], limit)


def _check_plan(env: gymnasium.Env, task: Task, plan: list[str], limit: int) -> None:
    trace = _play(env, task, plan, limit)
    if trace[-1][3]:
        return  # longer than the environment's own step limit
    _require(
        trace[-1][2] and sum(r for _, r, _, _ in trace) > 0,
        f"task {task.id!r}: the expert's plan of {len(plan)} actions must win",
    )
