"""The real dev games that choose between the policies of a run.

run, policies -> trajectories on dev tasks, recorded once, as far as a budget pays
"""

import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.experience import REMEDY, uncertainty_gate
from dreamgym.build.planning import planning_session
from dreamgym.build.real.environments import (
    check_some_scored,
    has_played,
    make_env,
    real_envs,
)
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.config import budget
from dreamgym.envs import base, vector
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import MIN_DEV_GAMES, Task, read_episodes, write_episodes
from worldmodel.experience.base import ExperienceModel

TRAINED_IN_DREAM = ("expert_iteration", "dream")
"""The players whose policies were trained in the dream; each plays dev games."""
ENOUGH_BROKEN = 8
"""Games that must all have broken for an environment that still begins to be down."""


def dev_games(run: Run) -> int:
    """Return the number of real dev tasks of one evaluation; 0 if none are played.

    A budget may pay for fewer than the settings ask for, and the environment may have
    fewer: then none are played where so few decide nothing.
    """
    c = run.config
    if not c.env.id or not c.train.monitor.real_eval_every:
        return 0
    games, numbers = c.train.monitor.real_eval_tasks, run.numbers("collect")
    listed = numbers.get("dev_tasks", games)
    if not c.budget.real_steps:
        return budget.enough_dev_games(min(games, listed), games)
    collected = int(numbers.get("real_transitions", 0))
    return budget.dev_games(c.budget, collected, _dev_game_steps(run), games, listed)


def few_dev_tasks(run: Run) -> str:
    """Return that the environment has too few dev tasks, to end a sentence, or "".

    It is empty, too, where the settings ask for no real dev games.
    """
    monitor = run.config.train.monitor
    if not run.config.env.id or not monitor.real_eval_every:
        return ""
    listed = run.numbers("collect").get("dev_tasks", monitor.real_eval_tasks)
    if budget.enough_dev_games(listed, monitor.real_eval_tasks):
        return ""
    return (
        f": the environment lists {listed} dev task{'s' * (listed != 1)}, and fewer "
        f"than {MIN_DEV_GAMES} decide nothing"
    )


def _dev_game_steps(run: Run) -> float | int:
    """Return the steps that are planned for a dev game, by the collected ones."""
    numbers, limit = run.numbers("collect"), step_limit(run)
    episodes = numbers.get("dev_episodes", 0)
    if not episodes:
        return limit
    return budget.dev_game_steps(numbers["dev_transitions"] / episodes, limit)


def plays_dev_games(run: Run, *names: str) -> bool:
    """Return whether real dev tasks select between the run's policies.

    With `names`, whether the stage has the real steps that are planned for those of
    these players that have not played yet.
    """
    if not dev_games(run):
        return False
    left = run.real_steps.left
    if left is None:
        return True
    new = len(_new_players(run, names))
    # A game begins only where the steps of the longest one are left, also the last of
    # the few games that have to be played.
    planned = _planned_steps(run, dev_games(run))
    games_before = min(dev_games(run), MIN_DEV_GAMES) - 1
    with_longest = _planned_steps(run, games_before) + step_limit(run)
    return new * max(planned, with_longest) <= left


def dev_game_steps(run: Run, *names: str, later: int = 0) -> int:
    """Return the real steps that are planned for the dev tasks of these players.

    Players that have played already take none. `later` is the number of players of
    later stages, which have not.
    """
    players = len(_new_players(run, names)) + later
    return players * _planned_steps(run, dev_games(run))


def _planned_steps(run: Run, games: int) -> int:
    return math.ceil(games * _dev_game_steps(run))


def _new_players(run: Run, names: Sequence[str]) -> list[str]:
    """Return the players that have not played their dev games yet."""
    return [n for n in names if not _record(run, n).is_file()]


def _record(run: Run, name: str) -> Path:
    """Return the file of the dev games that a player has played."""
    return run.path(f"dev_games/{name}.jsonl")


def dev_tasks(run: Run, count: int | None = None) -> list[Task]:
    """Return the real dev tasks by which the run's policies are selected, started.

    With `count`, so many at most.

    Raises:
      RunError: the environment has none.
    """
    name = run.config.env.id
    with contextlib.closing(make_env(run)) as env:
        games = base.tasks_of(env, name, "dev", count or dev_games(run))
        if not games:
            raise RunError(f"train.monitor.real_eval_every: {name!r} has no dev task")
        return base.begin_all(env, games)


def play_dev_tasks(
    run: Run,
    policy: Policy | PlanningPolicy,
    envs: vector.VectorEnv,
    tasks: Sequence[Task],
    max_transitions: int | None = None,
) -> list[Trajectory]:
    """Play dev tasks in the dream or the real environment, with common random numbers.

    All policies use the same sampling noise, which makes them easier to compare. The
    last tasks are missing where `max_transitions` steps might not be enough for them.
    """
    return evaluate.play(
        policy,
        envs,
        tasks,
        seed=run.config.seed + 11,
        temperature=run.config.evaluate.temperature,
        max_transitions=max_transitions,
    )


def play_dev_games(
    run: Run, name: str, policy: Policy | PlanningPolicy, *, reserve: int = 0
) -> list[Trajectory]:
    """Play the run's dev tasks in the real environment; return the trajectories.

    They are recorded in dev_games/NAME.jsonl. A file that holds exactly these tasks is
    not played again. Where a budget ends, the last tasks are missing, in the file, too.
    `reserve` of the real steps that the run may still take are left.
    """
    return _play_once(run, _record(run, name), policy, dev_tasks(run), reserve)


def paired_dev_games(
    run: Run,
    before: tuple[str, Policy | PlanningPolicy],
    after: tuple[str, Policy | PlanningPolicy],
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Play the run's dev tasks with two players, given by name and policy.

    Returns the trajectories of the tasks that both have played: where a budget ends,
    one of them may lack the last tasks.
    """
    # Else long games of the first one might leave the second one none.
    reserve = dev_game_steps(run, after[0])
    a = play_dev_games(run, *before, reserve=reserve)
    b = play_dev_games(run, *after)
    count = min(len(a), len(b))
    return a[:count], b[:count]


def play_first_dev_games(
    run: Run, name: str, policy: Policy, count: int, *, reserve: int
) -> list[Trajectory]:
    """Play the first dev tasks of the run, which are recorded; return the trajectories.

    None are played where `reserve` of the real steps would not be left.
    """
    tasks, left = dev_tasks(run)[:count], run.real_steps.left
    needed = reserve + _planned_steps(run, len(tasks))
    if left is not None and left < needed and not _record(run, name).is_file():
        return []
    return _play_once(run, _record(run, name), policy, tasks, reserve)


def play_train_games(run: Run, policy: Policy, count: int) -> None:
    """Play train tasks that were collected; record them in remedy/episodes.jsonl.

    They are drawn by the run's seed, as many as a budget pays for, less the dev games
    that choose between the policies trained in the refitted dream. What was played
    before an interruption is kept.
    """
    path, left = run.path(f"{REMEDY}/episodes.jsonl"), run.real_steps.left
    if path.is_file():
        return
    if left is not None:
        reserve = dev_game_steps(run, later=len(TRAINED_IN_DREAM))
        count = min(count, max(left - reserve, 0) // step_limit(run))
    if not count:
        return
    collected = read_episodes(run.path("episodes.jsonl"))
    tasks = list({e.task.id: e.task for e in collected}.values())
    order = np.random.default_rng(run.config.seed + 13).permutation(len(tasks))
    chosen = [tasks[i] for i in order[:count]]
    _play_once(run, path, policy, chosen)


def _play_once(
    run: Run,
    path: Path,
    policy: Policy | PlanningPolicy,
    tasks: Sequence[Task],
    reserve: int = 0,
) -> list[Trajectory]:
    """Return the games of a file, which are played where it does not hold them.

    No file is written where a budget pays for none of them. A few that all broke, as
    others did in collection, are recorded and not returned: they decide nothing.
    """
    recorded = path.is_file() and path.stat().st_size > 0
    if recorded and _all_broke(evaluate.trajectories(path), tasks):
        return []
    left = run.real_steps.left
    if left is not None:
        left = max(left - reserve, 0)
    if not has_played(path, tasks, may_lack_last=left is not None):
        with (
            planning_session(policy),
            contextlib.closing(real_envs(run, len(tasks))) as envs,
        ):
            played = play_dev_tasks(run, policy, envs, tasks, left)
        if not played:
            return []
        unlucky = _is_unlucky(run, played, tasks, path.stem)
        if not unlucky:
            check_some_scored(run, played, path.stem)
        write_episodes(path, [t.episode for t in played], check=False)
        if unlucky:
            return []
    return evaluate.trajectories(path)


def _all_broke(played: Sequence[Trajectory], tasks: Sequence[Task]) -> bool:
    """Return whether these are a few games of the first tasks that all broke."""
    ids = [t.episode.task.id for t in played]
    return (
        0 < len(played) < ENOUGH_BROKEN
        and ids == [t.id for t in tasks[: len(ids)]]
        and all(t.error is not None for t in played)
    )


def _is_unlucky(
    run: Run, played: Sequence[Trajectory], tasks: Sequence[Task], name: str
) -> bool:
    """Return whether a few games all broke by bad luck, which is printed.

    They did where collection met broken games, too, and the environment can still begin
    one; else it is down.
    """
    breaks = any(k.startswith("broken/") for k in run.numbers("collect"))
    if not breaks or not _all_broke(played, tasks):
        return False
    try:
        with contextlib.closing(make_env(run)) as env:
            base.begin_all(env, tasks[:1])
    except ConnectionError:
        return False
    print(
        f"{name}: the environment broke all {len(played)} real games, which decide "
        f"nothing: {played[-1].error}",
        file=sys.stderr,
    )
    return True


def dreamed_dev_games(
    run: Run, experience: ExperienceModel, policy: Policy, folder: str = ""
) -> list[Trajectory]:
    """Play the run's dev tasks in the dream, if they have an initial state.

    `folder` is the one of the experience model. Where no real dev games are played they
    are as many as the settings ask for: to begin a task takes no real step. Without an
    environment that has some they are the tasks of the dev episodes.
    """
    count = dev_games(run) or run.config.train.monitor.real_eval_tasks
    tasks: list[Task] = []
    if run.config.env.id and count:
        try:
            tasks = dev_tasks(run, count)
        except (RunError, ConnectionError):
            if dev_games(run):
                raise
    if not tasks:
        dev = read_episodes(run.path("dev.jsonl"))
        tasks = list({e.task.id: e.task for e in dev}.values())[:count]
    tasks = [t for t in tasks if t.initial_state]
    dream = DreamVectorEnv(
        experience,
        max(len(tasks), 1),
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, folder),
        lasting_wins=lasting_wins(run),
    )
    return play_dev_tasks(run, policy, dream, tasks) if tasks else []
