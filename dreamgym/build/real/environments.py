"""Real environments of a run, and the test tasks that policies play there."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gymnasium

from dreamgym.agent import floors
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.build.episodes import recorded_episodes
from dreamgym.build.planning import load_player, planning_session
from dreamgym.build.real.instances import instance_maker
from dreamgym.build.real.step_limit import step_limit
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, restarting, vector
from dreamgym.envs.counting import CountedEnv, RealSteps
from dreamgym.envs.restarting import RestartingEnv
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import progress_bar
from worldmodel.data.records import Task, read_episodes, write_episodes

NO_ENV = "skipped: no environment (give --env to run the real stages)"

FIRST_TASKS = 256
"""Train tasks whose families `first_tasks` looks at."""
TEST_SEED = 7
"""Added to the run's seed where test tasks are played: the same for all policies."""


def make_env(run: Run) -> gymnasium.Env:
    """Return the run's environment, its steps counted for the stage that runs."""
    return open_counted(run.config.env, run.real_steps)


def open_counted(config: EnvConfig, steps: RealSteps) -> RestartingEnv:
    """Return the environment of these settings, its steps counted."""
    return restarting.open_env(
        config.id, lambda env: CountedEnv(env, steps), instance_maker(config)
    )


@contextlib.contextmanager
def open_env(run: Run) -> Iterator[gymnasium.Env | None]:
    """Open the run's environment for a `with` block; yield None if it has none."""
    if not run.config.env.id:
        yield None
        return
    with contextlib.closing(make_env(run)) as env:
        yield env


def first_tasks(config: EnvConfig, families: int) -> list[Task]:
    """Return the first train task of each family as the environment completes it.

    At most so many `families`. Tasks that cannot be begun are left out: those who play
    them say so. No real step is taken.
    """
    opened, first = restarting.open_env(config.id, make=instance_maker(config)), {}
    with contextlib.closing(opened) as env:
        for task in base.tasks_of(env, config.id, "train", FIRST_TASKS):
            first.setdefault(task.family, task)
        results = [
            base.guarded(env, lambda task=task: base.begin(env, task)[0])
            for task in list(first.values())[:families]
        ]
    return [x for x in results if isinstance(x, Task)]


def real_envs(
    run: Run,
    slots: int | None = None,
    make: Callable[[], gymnasium.Env] | None = None,
    games: int = 1,
) -> vector.RealVectorEnv:
    """Return up to `slots` copies of the run's environment as one batch.

    `make` makes a copy; by default it is `make_env`. An episode of several `games` has
    as many times the run's step limit.
    """
    c = run.config.env
    copies = min(c.num_envs, c.workers) if c.workers else c.num_envs
    copies = copies if slots is None else min(slots, copies)
    make, limit = make or (lambda: make_env(run)), games * step_limit(run)
    if c.workers:  # as many as were asked for, however slowly they start
        return vector.RealVectorEnv([make()], max_steps=limit, make=make, size=copies)
    return vector.RealVectorEnv.growing(make, limit=copies, max_steps=limit)


def test_tasks(run: Run) -> list[Task]:
    """Return the test tasks: the same for all policies, and none of them collected.

    Raises:
      RunError: the environment has no test task, or one that was collected.
      ConnectionError: the environment could not start any of them.
    """
    return _tasks(run, 0, run.config.evaluate.tasks)


def confirmation_tasks(run: Run, first: int, count: int) -> list[Task]:
    """Return at most `count` test tasks after the `first`, to confirm a selection.

    A policy or setting that was selected on the first test tasks looks better on them
    than it is; these tasks took no part in the selection.

    Raises:
      RunError: the environment has no more, or one that was collected.
    """
    return _tasks(run, first, first + count)


def _tasks(run: Run, first: int, end: int) -> list[Task]:
    env = make_env(run)
    try:
        tasks = base.tasks_of(env, run.config.env.id, "test", end)
        startable = base.begin_all(env, tasks[first:])
    finally:
        env.close()
    if not startable and first:
        have = f"{run.config.env.id} has {len(tasks)} test games"
        raise RunError(f"{have}, and none to play after the first {first}")
    if not startable:
        raise RunError(f"environment {run.config.env.id!r} has no test task")
    _refuse_played(run, startable)
    return startable


def _refuse_played(run: Run, tasks: Sequence[Task]) -> None:
    """Refuse test tasks that the run has collected, for training or for choosing.

    They are checked against the episodes themselves: an environment may list a task in
    two splits, or other splits in each copy, and a score would measure memory.
    Recordings may hold out, as dev episodes, tasks that the environment lists for
    testing: there a dev task is only warned of.

    Raises:
      RunError: a task was collected.
    """
    recorded = run.numbers("collect").get("recorded", False)
    for file, wrong, strict in (
        ("episodes.jsonl", "test tasks must not be learnt from", True),
        ("dev.jsonl", "test tasks must not be dev tasks as well", not recorded),
    ):
        if not (ids := _tasks_in(run, file, tasks)):
            continue
        if strict:
            raise RunError(
                f"{wrong}: {ids[0]!r} and {len(ids) - 1} more of {len(tasks)} are in "
                f"{run.path(file)}. Every copy of an environment must list the same "
                "tasks, and each task in one split: `dreamgym check --env "
                f"{run.config.env.id}` says what does not hold; mend it, and begin a "
                "new run"
            )
        print(
            f"warning: {len(ids)} of {len(tasks)} test tasks, such as {ids[0]!r}, "
            "are dev tasks as well: what was chosen by them looks better than it is",
            file=sys.stderr,
        )


def _tasks_in(run: Run, file: str, tasks: Sequence[Task]) -> list[str]:
    """Return the ids of tasks of which a file of the run has episodes."""
    ids = {e.task.id for e in recorded_episodes(run.path(file))}
    return [t.id for t in tasks if t.id in ids]


def play_test_games(
    run: Run,
    policy: str,
    tasks: Sequence[Task] | None = None,
    folder: str = "test",
    make: Callable[[], gymnasium.Env] | None = None,
    load: Callable[[], Policy | PlanningPolicy] | None = None,
    again: bool = False,
    games: int = 1,
) -> list[Trajectory]:
    """Play test tasks with a policy; return the trajectories.

    By default these are the run's test tasks, recorded in test/POLICY.jsonl. A file
    that holds exactly these tasks is not played `again`, unless that is asked for.
    `make` makes the environment, with so many `games` in an episode, and `load` loads
    what plays in place of the run's policy of this name.

    Raises:
      EnvironmentDown: the environment failed in every episode; no file is written.
    """
    path = run.path(f"{folder}/{policy}.jsonl")
    tasks = test_tasks(run) if tasks is None else tasks
    if again or not has_played(path, tasks):
        player = load_player(run, policy) if load is None else load()
        envs = real_envs(run, make=make, games=games)
        try:
            with (
                planning_session(player),
                progress_bar(len(tasks), f"evaluate {policy}", "episode") as show,
            ):
                played = evaluate.play(
                    player,
                    envs,
                    tasks,
                    seed=run.config.seed + TEST_SEED,
                    temperature=run.config.evaluate.temperature,
                    progress=lambda done, _: show(done),
                )
        finally:
            envs.close()
        check_some_scored(run, played, f"the policy {policy!r}")
        write_episodes(path, [t.episode for t in played], check=False)
    return evaluate.trajectories(path)


def check_some_scored(run: Run, played: Sequence[Trajectory], player: str) -> None:
    """Refuse games of which none could be scored.

    An environment that is down must not end as a finished stage without a scored game,
    which no later call would repeat.

    Raises:
      EnvironmentDown: there are games, and all broke.
    """
    if played and all(t.error is not None for t in played):
        raise restarting.environment_down(
            run.config.env.id,
            f"{len(played)} games of {player}",
            [t.error for t in played if t.error is not None],
        )


def training_tasks(run: Run, collected: Sequence[Task], fresh: int) -> list[Task]:
    """Return the tasks that rollouts begin at: the collected and `fresh` other ones.

    No dev task is among the others, though the environment may list it for training,
    as where recorded episodes of train tasks were held out.
    """
    name = run.config.env.id
    tasks = list({t.id: t for t in collected}.values())
    if not fresh or not name:
        return tasks
    held_out = {e.task.id for e in recorded_episodes(run.path("dev.jsonl"))}
    dev_count = run.config.train.monitor.real_eval_tasks
    with contextlib.closing(make_env(run)) as env:
        held_out |= {t.id for t in base.tasks_of(env, name, "dev", dev_count)}
        excluded = {t.id for t in tasks} | held_out
        listed = base.tasks_of(env, name, "train", len(excluded) + fresh)
        others = [t for t in listed if t.id not in excluded][:fresh]
        return [*tasks, *base.begin_all(env, others)]


def dreamable_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that a dream can begin; says how many it cannot.

    Raises:
      RunError: none of them has a first state.
    """
    startable = [t for t in tasks if t.initial_state]
    if not startable:
        raise RunError("no task to dream of: all recorded episodes begin empty")
    if num_excluded := len(tasks) - len(startable):
        print(
            f"{num_excluded} tasks begin with an empty state and are not dreamed of",
            file=sys.stderr,
        )
    return startable


def play_floor(run: Run, name: str) -> list[Trajectory]:
    """Play the run's test tasks with a baseline of FLOORS; return the trajectories.

    They are recorded in test/NAME.jsonl; a file that holds exactly these tasks is not
    played again. Empty if the baseline is an expert that the environment lacks.
    """
    path, tasks = run.path(f"test/{name}.jsonl"), test_tasks(run)
    if not has_played(path, tasks):
        collected = read_episodes(run.path("episodes.jsonl"))
        steps = [t for e in collected for t in e.transitions]
        # Sorted, because a set has another order in each process, and the actor draws
        # by number.
        known_actions = sorted(
            {t.action for t in steps if not base.counts_as_invalid(t)}
        )
        env = make_env(run)

        def actor_for(env: gymnasium.Env, task: Task) -> floors.Actor:
            if name == "expert":
                return floors.expert_actor(env)
            return floors.random_actor(env, task, known_actions, seed=run.config.seed)

        try:
            if name == "expert" and base.as_expert(env) is None:
                return []
            with progress_bar(len(tasks), f"evaluate {name}", "episode") as show:
                played = floors.play_scripted(
                    env,
                    tasks,
                    actor_for,
                    source=name,
                    max_steps=step_limit(run),
                    seed=run.config.seed + TEST_SEED,
                    progress=lambda done, _: show(done),
                )
        finally:
            env.close()
        check_some_scored(run, played, name)
        write_episodes(path, [t.episode for t in played], check=False)
    return evaluate.trajectories(path)


def has_played(
    path: Path, tasks: Sequence[Task], *, may_lack_last: bool = False
) -> bool:
    """Return whether a file has these games, at least one of them scored.

    With `may_lack_last` the last games may be missing.
    """
    episodes = recorded_episodes(path)
    wanted = [t.id for t in tasks[: len(episodes) if may_lack_last else None]]
    same = [e.task.id for e in episodes] == wanted
    return same and any(e.success is not None for e in episodes)
