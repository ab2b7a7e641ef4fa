"""The contract checker: what every environment here must do, dream included.

Production code, so that users can run their own environment through it:
`dreamgym check --env module:Class`.
"""

import functools
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from dreamgym.envs import base
from worldmodel.data.records import State, Task

_NONSENSE = "frobnicate the <|dg_end|> moon\u2603"


class ContractError(AssertionError):
    """What an environment does against the contract, and what was expected."""


def _raised(what: str, error: Exception) -> ContractError:
    """What an environment's own code raised, and in which line: not one of Python's."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if not _is_python(f.filename)), frames[-1])
    place = f"{Path(last.filename).name}:{last.lineno}"
    return ContractError(f"{what} raised {type(error).__name__}: {error} ({place})")


def _is_python(file: str) -> bool:
    """Whether a file is of the standard library (or of no file at all)."""
    library = Path(sysconfig.get_path("stdlib"))
    inside = Path(file).is_relative_to(library) and "site-packages" not in file
    return inside or file.startswith("<")


class _Asked(gymnasium.Wrapper):
    """An environment whose methods' exceptions are told as what was asked of it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.env, name)
        return functools.partial(_ask, name, found) if callable(found) else found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        task = (options or {})["task"]
        what = f"reset to task {task.id!r}"
        return _ask(what, self.env.reset, seed=seed, options=options)

    def step(self, action: Any):
        return _ask(f"step({action!r})", self.env.step, action)


def _ask(what: str, method: Callable[..., Any], *args: Any, **more: Any) -> Any:
    try:
        return method(*args, **more)
    except Exception as error:
        raise _raised(what, error) from error


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ContractError(message)


def _play(
    env: gymnasium.Env, task: Task, actions: list[str], limit: int
) -> list[tuple[str, float, bool, bool]]:
    obs, _ = env.reset(seed=0, options={"task": task})
    trace = [(obs, 0.0, False, False)]
    for action in actions[:limit]:
        obs, earned, terminated, truncated, info = env.step(action)
        reward = float(earned)
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
    """Run the contract over an environment; returns the checks made.

    Same task and actions, same texts · an action it cannot take does not end the
    episode · a step after the end raises · the expert's plan wins · the limit gives
    truncated, not terminated · train, dev and test share no task · variations of a
    train task can be begun, are told the same for the same generator, and are marked
    as generated from it.

    Raises:
      ContractError: naming what is broken and what was expected, or what raised where.
    """
    return _checked(_Asked(env), name=name, limit=limit, tasks=tasks)


def check_gymnasium(env: gymnasium.Env) -> None:
    """Gymnasium's own check, of all but rendering.

    Raises:
      AssertionError: Gymnasium's, of what does not hold.
      ContractError: the environment raised; `reset()` is asked without a task here.
    """
    try:
        check_env(env, skip_render_check=True)
    except AssertionError:
        raise
    except Exception as error:
        what = "Gymnasium's own check (reset() without seed and options, then steps)"
        raise _raised(what, error) from error


def _checked(env: gymnasium.Env, *, name: str, limit: int, tasks: int) -> list[str]:
    done = ["reset", "step"]
    some = base.tasks_of(env, name, "train", tasks)
    _require(bool(some), "tasks('train') must not be empty")
    for task in some:
        obs, info = env.reset(seed=0, options={"task": task})
        _require(isinstance(obs, str), f"reset must return text, got {type(obs)}")
        _require(bool(obs.strip()), f"task {task.id!r} starts with an empty state")
        _require(isinstance(info, dict), "reset must return (obs, info)")
        _check_writable(env, task)
        _check_actions(env, task)
        _nonsense(env, task)
        expert = getattr(env, "expert", None)
        if expert is not None:
            plans = []
            for _ in range(2):
                env.reset(seed=0, options={"task": task})
                plans.append(list(expert()))
            plan = plans[0]
            _require(
                plans[0] == plans[1], f"task {task.id!r}: the expert's plan differs"
            )
            _check_plan(env, task, plan, limit)
            done.append("expert")
        if hasattr(env, "variations"):
            _check_variations(env, task)
            done.append("variations")
        actions = [_NONSENSE] * limit
        first, second = (_play(env, task, actions, limit) for _ in range(2))
        if getattr(env, "deterministic", True):
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
            try:
                env.step("look")
            except Exception:
                done.append("step after end raises")
            else:
                raise ContractError("a step after the end must raise")
    if hasattr(env, "tasks"):
        splits = [{t.id for t in env.tasks(s)} for s in base.SPLITS]  # type: ignore[attr-defined]
        shared = (
            (splits[0] & splits[1]) | (splits[0] & splits[2]) | (splits[1] & splits[2])
        )
        _require(not shared, f"splits share tasks {sorted(shared)[:3]}")
        done.append("splits apart")
    return sorted(set(done))


def _check_actions(env: gymnasium.Env, task: Task) -> None:
    """Valid actions, where they are told, are texts; there may be none."""
    if hasattr(env, "valid_actions"):
        told = list(env.valid_actions())  # type: ignore[attr-defined]
        _require(
            all(isinstance(action, str) and action.strip() for action in told),
            f"task {task.id!r}: valid_actions() must be texts, none empty, got {told}",
        )


def _check_writable(env: gymnasium.Env, task: Task) -> State:
    """A task can be begun and written to a file; its first state."""
    try:
        return base.begin(env, task)[1]
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"task {task.id!r}: its options must be JSON, its texts UTF-8: {error}"
        ) from error


def _nonsense(env: gymnasium.Env, task: Task) -> None:
    env.reset(seed=0, options={"task": task})
    _, _, terminated, _, _ = env.step(_NONSENSE)
    _require(
        not terminated,
        f"task {task.id!r}: an action the environment cannot take must not end the "
        "episode; tell the agent in the next state",
    )


def _check_variations(env: gymnasium.Env, task: Task) -> None:
    told = [
        list(env.variations(task, np.random.default_rng(0)))  # type: ignore[attr-defined]
        for _ in range(2)
    ]
    where = f"task {task.id!r}: its variations"
    _require(told[0] == told[1], f"{where} differ for the same generator")
    for made in told[0]:
        _require(made.id != task.id, f"{where} hold the task itself")
        _require(made.split == "generated", f"{where} must be of split 'generated'")
        _require(task.id in made.lineage, f"{where} must name it in their lineage")
        state = _check_writable(env, made)
        _require(bool(state), f"{where}: {made.id!r} starts with an empty state")


def _check_plan(env: gymnasium.Env, task: Task, plan: list[str], limit: int) -> None:
    trace = _play(env, task, plan, limit)
    if trace[-1][3]:
        return  # longer than the environment's own step limit
    _require(
        trace[-1][2] and sum(r for _, r, _, _ in trace) > 0,
        f"task {task.id!r}: the expert's plan of {len(plan)} actions must win",
    )
