"""Real environments of a run, and the test tasks that policies play there."""

from collections.abc import Sequence
from pathlib import Path

from dreamgym.agent.rollout import Trajectory
from dreamgym.build.models import load_policy
from dreamgym.envs import base, registry, vector
from dreamgym.evaluation import evaluate
from dreamgym.run.directory import Run, RunError
from dreamgym.run.display import bar
from worldmodel.data.records import Task, read_episodes, write_episodes

NO_ENV = "skipped: no environment (give --env to run the real stages)"


def real_envs(run: Run) -> vector.RealVectorEnv:
    """Copies of the run's environment, one a slot."""
    c = run.config
    return vector.RealVectorEnv(
        [registry.make(c.env) for _ in range(c.evaluate.slots)], max_steps=c.max_steps
    )


def test_tasks(run: Run) -> list[Task]:
    """The test games, the same for every policy; none was collected from.

    Raises:
      RunError: the environment has no test task, or one that was collected.
      ConnectionError: it begins none of them.
    """
    return _tasks(run, 0, run.config.evaluate.games)


def fresh_tasks(run: Run, first: int, count: int) -> list[Task]:
    """At most `count` test games after the `first`, for what was chosen on those.

    Raises:
      RunError: the environment has no more, or one that was collected.
    """
    return _tasks(run, first, first + count)


def _tasks(run: Run, first: int, end: int) -> list[Task]:
    env = registry.make(run.config.env)
    try:
        tasks = base.tasks_of(env, run.config.env, "test", end)
        told = base.begin_all(env, tasks[first:])
    finally:
        env.close()
    if not told and first:
        have = f"{run.config.env} has {len(tasks)} test games"
        raise RunError(f"{have}, and none to play after the first {first}")
    seen = {e.task.id for e in read_episodes(run.path("episodes.jsonl"))}
    if not told or any(t.id in seen for t in told):
        raise RunError("test tasks must exist and must not be among the collected")
    return told


def play_test_games(
    run: Run, policy: str, tasks: Sequence[Task] | None = None, folder: str = "test"
) -> list[Trajectory]:
    """Play test games with a policy, unless its file has just these; returns them.

    By default the run's test games, in test/POLICY.jsonl.
    """
    path = run.path(f"{folder}/{policy}.jsonl")
    tasks = test_tasks(run) if tasks is None else tasks
    if not _has_played(path, tasks):
        envs = real_envs(run)
        try:
            with bar(len(tasks), f"evaluate {policy}", "episode") as show:
                played = evaluate.play(
                    load_policy(run, policy), envs, tasks, seed=run.config.seed + 7,
                    temperature=run.config.evaluate.temperature,
                    progress=lambda done, _: show(done),
                )  # fmt: skip
        finally:
            envs.close()
        write_episodes(path, [t.episode for t in played])
    return evaluate.trajectories(path)


def _has_played(path: Path, tasks: Sequence[Task]) -> bool:
    """Return whether a file has these games, some of them scored."""
    if not path.is_file():
        return False
    episodes = read_episodes(path)
    same = [e.task.id for e in episodes] == [t.id for t in tasks]
    return same and any(e.success is not None for e in episodes)
