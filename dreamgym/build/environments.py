"""Real environments of a run, and the test tasks they are played on."""

from dreamgym.envs import base, registry, vector
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import Task, read_episodes

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
