"""Stage: real episodes of train and dev tasks, as versioned JSONL.

Experts, noisy experts and random behavior policies play distinct tasks; successes and
failures are both recorded. If the settings name an episodes file, the stage checks,
splits and copies it instead.
"""

import contextlib
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from dreamgym.agent.behavior import MAX_PRINTED, collect
from dreamgym.agent.config import CollectConfig
from dreamgym.build.budget import check_budget, check_recorded
from dreamgym.build.costs import TRANSITION_BYTES
from dreamgym.build.episodes import (
    broken_counts,
    games_of,
    joined,
    recorded_determinism,
    sides_of,
    split_by_task,
)
from dreamgym.build.real.collection_log import UNWRITABLE, CollectionLog
from dreamgym.build.real.environments import make_env
from dreamgym.build.real.state_forms import form_warning
from dreamgym.build.real.step_limit import (
    LASTING,
    step_limit,
    step_limit_from_env,
    step_limit_from_episodes,
    wins_by_lasting,
)
from dreamgym.config.budget import dev_tasks, expert_weight
from dreamgym.config.settings import RunConfig
from dreamgym.config.stages import EnvConfig
from dreamgym.envs.base import (
    as_valid_actions,
    declared_determinism,
    is_deterministic,
    tasks_of,
)
from dreamgym.envs.limits import StepLimit
from dreamgym.evaluation.diagnosis.evidence import broken_advice
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from dreamgym.run.terminal import short_path
from worldmodel.data.rates import Rate
from worldmodel.data.records import Episode, Task, read_episodes, write_episodes

CHECKPOINTS = "checkpoints/collect"
"""The episodes that an interrupted collection has played."""
COUNTED_DEV_TASKS = 64
"""Dev tasks up to which they are counted: no evaluation plays more by default."""
ENVIRONMENT_NUMBERS = (
    *("deterministic", "dev_tasks"),
    *("listed_actions", "listed_actions_of"),
)
"""What the stage's numbers say of the environment, which a refit takes over."""
FORM_TASKS = 3
"""Tasks whose first states are compared with those of an episode file."""
MAX_BROKEN_SHARE = 0.1
"""The share of the episodes that broke above which collection says so."""


def body(run: Run) -> dict[str, Any]:
    """Write episodes.jsonl (train) and dev.jsonl into the run.

    Raises:
      RunError: there are no train episodes, or no dev episodes.
    """
    if run.config.data.base_run:
        source = Run.open(run.config.data.base_run)
        limit = StepLimit(step_limit(source), f"that of {source.root}")
        collected = source.numbers("collect")
        inherited = {
            name: collected[name] for name in ENVIRONMENT_NUMBERS if name in collected
        }
        train, dev = joined(source, run.config.data.episodes)
        if not source.config.env.id:  # the new episodes may show more
            inherited.pop("deterministic", None)
            inherited |= _recorded_numbers([*train, *dev])
        return _write(run, train, dev, limit) | inherited
    if run.config.data.episodes:
        return _from_file(run)
    if not run.config.env.id:
        raise RunError("nothing to learn from: give --env, --episodes, or both")
    env = make_env(run)
    try:
        return _from_env(run, env)
    finally:
        env.close()


def _from_file(run: Run) -> dict[str, Any]:
    path = run.config.data.episodes
    train, dev = sides_of(read_episodes(path), path)
    if not train:
        raise RunError(f"{path}: expected an episode of split 'train', got none")
    if not any(e.task.initial_state for e in train):
        print(
            f"{path}: all episodes begin with an empty state, of which nothing can be "
            "dreamed: an experience model can be fitted, and no policy trained in it",
            file=sys.stderr,
        )
    if not dev:
        train, dev = split_by_task(train, share=0.1)
    if not run.config.env.id:
        limit = step_limit_from_episodes(run.config, train)
        return _write(run, train, dev, limit) | _recorded_numbers([*train, *dev])
    with contextlib.closing(make_env(run)) as env:
        limit = step_limit_from_env(run.config, env)
        name = run.config.env.id
        tasks = tasks_of(env, name, "dev", COUNTED_DEV_TASKS)
        if warning := form_warning([*train, *dev], env, tasks[:FORM_TASKS]):
            print(f"{path}, {name}: {warning}", file=sys.stderr)
        numbers = {
            "deterministic": is_deterministic(env),
            **_dev_task_count(tasks),
            "listed_actions": None,  # nothing was recorded to judge the list by
            "listed_actions_of": None if as_valid_actions(env) is None else 0,
        }
    return _write(run, train, dev, limit) | numbers


def _recorded_numbers(episodes: Sequence[Episode]) -> dict[str, bool]:
    """Return whether the environment is deterministic, where the episodes show it."""
    deterministic = recorded_determinism(episodes)
    return {} if deterministic is None else {"deterministic": deterministic}


def _dev_task_count(tasks: Sequence[Task]) -> dict[str, int]:
    """Return how many dev tasks there are, where they are so few that it matters."""
    return {"dev_tasks": len(tasks)} if len(tasks) < COUNTED_DEV_TASKS else {}


def _from_env(run: Run, env: gymnasium.Env) -> dict[str, Any]:
    c, seed, real_steps = run.config.collect, run.config.seed, run.real_steps
    name, lists = run.config.env.id, run.config.policy.admissible_actions > 0
    train = games_of(env, name, "train", c.train_tasks)
    dev = games_of(env, name, "dev", max(c.dev_tasks, COUNTED_DEV_TASKS))
    counts = _dev_task_count(dev)
    dev = dev[: c.dev_tasks]
    limit = step_limit_from_env(run.config, env)
    episodes, dev_steps = c.episodes, 0
    log, dev_log = _logs(run)
    if real_steps.limit is not None:
        lost = max(real_steps.count - log.steps - dev_log.steps, 0)
        dev_steps = _dev_steps(run, real_steps.limit - lost, limit)
        c = _with_demonstrations(run, real_steps.limit - lost - dev_steps, limit)
        episodes = None

    def steps_left(reserve: int) -> Callable[[], int] | None:
        left = real_steps.left
        return None if left is None else lambda: (real_steps.left or 0) - reserve

    with _progress(run, c.episodes + len(dev) * 2) as show:
        failures, listed = Counter[str](), Rate()
        train_episodes = collect(
            env,
            train,
            episodes,
            c,
            seed=seed,
            max_steps=limit.steps,
            steps_left=steps_left(dev_steps),
            show=show,
            failures=failures,
            valid_actions=lists,
            listed=listed,
            earlier=log.played,
            record=log.append,
        )
        if real_steps.left is not None:
            length = float(np.mean([len(e.transitions) for e in train_episodes] or [1]))
            dev = dev[: dev_tasks(dev_steps, length, limit.steps, len(dev))]
        dev_episodes = collect(
            env,
            dev,
            2 * len(dev),
            _equal_weights(c),
            seed=seed + 1,
            max_steps=limit.steps,
            steps_left=steps_left(0),
            show=lambda n: show(c.episodes + n),
            failures=failures,
            valid_actions=lists,
            earlier=dev_log.played,
            record=dev_log.append,
        )
    for split, episodes in (("train", train_episodes), ("dev", dev_episodes)):
        if not episodes:
            run.drop(CHECKPOINTS)  # the next attempt shall not count what broke
            raise RunError(
                f"environment {name!r}: expected a step of at least 1 {split} game, "
                "got none; the errors are printed above"
            )
    played = [*train_episodes, *dev_episodes]
    train_episodes, dev_episodes = _write_files(run, train_episodes, dev_episodes)
    readable = [*train_episodes, *dev_episodes]
    if lost := sum(not e.error for e in played) - sum(not e.error for e in readable):
        failures[UNWRITABLE] += lost
    _warn_of_broken(run.config.env, failures, readable)
    broken = {f"broken/{kind}": n for kind, n in sorted(failures.items())}
    numbers = {
        "deterministic": _determinism(env, name, played),
        **counts,
        "real_transitions": 0,  # they are counted as they are taken
        # Of the expert's actions; without one, of those not taken from the list.
        "listed_actions": listed.json()["mean"],
        "listed_actions_of": None if as_valid_actions(env) is None else listed.count,
    }
    numbers = _numbers(train_episodes, dev_episodes, limit) | numbers | broken
    run.drop(CHECKPOINTS)
    return numbers


def _determinism(env: gymnasium.Env, name: str, episodes: Sequence[Episode]) -> bool:
    """Return whether the environment is deterministic, as far as it is known.

    What it declares holds unless the episodes contradict it. Where it does not know,
    as a Gymnasium environment without a table of transitions, the episodes decide.
    """
    declared, recorded = declared_determinism(env), recorded_determinism(episodes)
    if declared and recorded is False:
        print(
            f"collect: {name} counts as an environment that draws lots: steps with the "
            "same task, state and action, after the same actions, had other results. "
            "If it does, say so in its class: `deterministic = False`",
            file=sys.stderr,
        )
    if declared is None or recorded is False:
        return bool(recorded)
    return declared


def _logs(run: Run) -> tuple[CollectionLog, CollectionLog]:
    """Return the logs of the train and dev episodes; print how many they hold."""
    train = CollectionLog(run.path(f"{CHECKPOINTS}/train.jsonl"))
    dev = CollectionLog(run.path(f"{CHECKPOINTS}/dev.jsonl"))
    if count := len(train.played + dev.played):
        print(
            f"collect: goes on after {count:,} episodes of an attempt that was "
            f"interrupted; remove {short_path(run.path(CHECKPOINTS))} to begin anew, "
            "as where the environment has changed since",
            file=sys.stderr,
        )
    return train, dev


def _equal_weights(c: CollectConfig) -> CollectConfig:
    """Return settings by which each actor plays as often as another.

    With few demonstrations to learn from, there must still be enough dev episodes of
    them to tell where imitation is at its best.
    """
    return dataclasses.replace(
        c,
        expert_weight=float(c.expert_weight > 0),
        noisy_weight=float(c.noisy_weight > 0),
        random_weight=1.0,
    )


def _warn_of_broken(
    env: EnvConfig, failures: Counter[str], episodes: Sequence[Episode]
) -> None:
    """Say so where the environment broke many of the episodes."""
    broken = failures.total()
    played = broken + sum(e.success is not None for e in episodes)
    if broken > MAX_BROKEN_SHARE * played:
        (kind, _), *_ = failures.most_common()
        advice = broken_advice(env.id, kind, env.worker_memory_gb)
        kind = "what a file cannot hold" if kind == UNWRITABLE else kind
        print(
            f"collect: {broken} of {played} episodes broke, mostly by {kind}: no "
            "policy imitates them, and the experience model learns from their steps "
            f"before the error; {advice[0].lower()}{advice[1:]}",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _progress(run: Run, episodes: int) -> Iterator[Callable[[int], None]]:
    """Show the episodes that are played or, under a budget, the steps taken."""
    steps = run.real_steps.limit
    if steps is None:
        with progress_bar(episodes, "collect", "episode") as show:
            yield show
        return
    with progress_bar(steps, "collect", "step") as show:
        yield lambda _: show(run.real_steps.count)


def _dev_steps(run: Run, left: int, limit: StepLimit) -> int:
    """Return the steps of dev episodes, of those that are left to collection.

    Raises:
      RunError: the budget is too small, or attempts that were interrupted spent it.
    """
    budget = run.config.budget
    check_budget(budget, limit.steps, run.config.env.id)
    steps = int(left * budget.dev)
    if steps < 1:
        raise RunError(
            f"{run.root}: the {run.real_steps.count:,} real steps of collection were "
            "taken by attempts that were interrupted; take a larger --budget in "
            "another --run-dir"
        )
    return steps


def _with_demonstrations(run: Run, steps: int, limit: StepLimit) -> CollectConfig:
    """Return the weights of the behavior policies, with enough of the expert."""
    c = run.config.collect
    weight = expert_weight(
        run.config.budget,
        c.expert_weight,
        c.noisy_weight + c.random_weight,
        steps // limit.steps,
    )
    return dataclasses.replace(c, expert_weight=weight)


def _write_readable(path: Path, episodes: list[Episode]) -> list[Episode]:
    """Write the episodes that can be read back; return these.

    Others hold what the environment should not have returned. They are left out, with a
    message, so that they do not cost the rest.

    Raises:
      RunError: none can be read back.
    """
    reason = ""
    try:
        write_episodes(path, episodes)
        return episodes
    except (TypeError, ValueError) as error:
        reason = str(error)
    readable, lost = [], 0
    for episode in episodes:
        try:
            write_episodes(path, [episode])
            readable.append(episode)
        except (TypeError, ValueError) as error:
            reason, lost = str(error), lost + 1
            if lost <= MAX_PRINTED:
                print(f"collect: {episode.id!r} is left out: {reason}", file=sys.stderr)
            if lost == MAX_PRINTED:
                print("collect: further ones are counted only", file=sys.stderr)
    if not readable:
        raise RunError(
            f"none of {len(episodes)} episodes could be written and read back: {reason}"
        )
    write_episodes(path, readable)
    return readable


def _write_files(
    run: Run, train: list[Episode], dev: list[Episode]
) -> tuple[list[Episode], list[Episode]]:
    """Write the run's two files; return their episodes, those that can be read back.

    Raises:
      RunError: none of a file can be read back.
    """
    try:
        return (
            _write_readable(run.path("episodes.jsonl"), train),
            _write_readable(run.path("dev.jsonl"), dev),
        )
    except RunError:
        run.drop(CHECKPOINTS)  # the next attempt shall not go on after these
        raise


def _write(
    run: Run, train: list[Episode], dev: list[Episode], limit: StepLimit
) -> dict[str, Any]:
    """Write episodes that were given; return the stage's numbers of them."""
    recorded = sum(len(e.transitions) for e in [*train, *dev])
    if not run.real_steps.count:
        check_recorded(run.config.budget, recorded)
    written = _write_files(run, train, dev)
    numbers = {"real_transitions": recorded, "recorded": True}
    return _numbers(*written, limit) | numbers


def _numbers(
    train: list[Episode], dev: list[Episode], limit: StepLimit
) -> dict[str, Any]:
    """Return the stage's numbers of the episodes in its files."""
    return {
        "max_episode_steps": limit.steps,
        "max_episode_steps_reason": limit.reason,
        "broken": broken_counts(train),
        "unscored": sum(e.success is None and not e.error for e in train),
        "truncated": sum(e.transitions[-1].truncated for e in train),
        "episodes": len(train),
        "games": len({e.task.id for e in train}),
        "transitions": sum(len(e.transitions) for e in train),
        "successes": sum(bool(e.success) for e in train),
        "dev_episodes": len(dev),
        "dev_transitions": sum(len(e.transitions) for e in dev),
        **({LASTING: True} if wins_by_lasting([*train, *dev], limit.steps) else {}),
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the real steps take; given episodes are only copied."""
    steps = workload.transitions * bool(config.env.id and not config.data.episodes)
    written = TRANSITION_BYTES * workload.transitions
    return Cost(steps * workload.timings.step, disk=written)
