"""Stage: every policy on the same real test games."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs import base, registry, vector
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.report import counts_text
from dreamgym.pipeline.policies import load_policy
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel.data.records import Task, read_episodes, write_episodes

ZERO_SHOT = ("untrained", "bc", "warmstart", "dream")
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


def stage(run: Run) -> dict[str, Any]:
    """Play the zero-shot policies; writes test/NAME.jsonl."""
    run.require("train")
    if not run.config.env:
        return {"status": NO_ENV}
    return play_all(run, ZERO_SHOT)


def play_all(
    run: Run,
    names: Sequence[str],
    tasks: Sequence[Task] | None = None,
    folder: str = "test",
) -> dict[str, Any]:
    """Play each policy unless its file has just these games; success rates.

    By default the test games, in test/NAME.jsonl.
    """
    tasks = test_tasks(run) if tasks is None else tasks
    envs = real_envs(run)
    out = {}
    try:
        with bar(len(names) * len(tasks), "evaluate", "episode") as show:
            for i, name in enumerate(names):
                path = run.path(f"{folder}/{name}.jsonl")
                if not _played(path, tasks):
                    found = evaluate.play(
                        load_policy(run, name), envs, tasks,
                        seed=run.config.seed + 7,
                        temperature=run.config.evaluate.temperature,
                        progress=lambda n, _, i=i: show(i * len(tasks) + n),
                    )  # fmt: skip
                    write_episodes(path, [t.episode for t in found])
                row = evaluate.summary(trajectories(path), real_transitions=0)
                out[name] = row["success"]["mean"]
                if row["errors"]:
                    out[f"{name}_unscored"] = row["success"]["unscored"]
                    print(
                        f"evaluate: {name}: {row['success']['unscored']} of "
                        f"{len(tasks)} games were not scored: "
                        f"{counts_text(row['errors'])}",
                        file=sys.stderr,
                    )
    finally:
        envs.close()
    return out


def _played(path: Path, tasks: Sequence[Task]) -> bool:
    """Whether a file has these games, and not of an environment that was down."""
    if not path.is_file():
        return False
    found = read_episodes(path)
    same = [e.task.id for e in found] == [t.id for t in tasks]
    return same and any(e.success is not None for e in found)


def trajectories(path: Path) -> list[Trajectory]:
    """Test episodes as scored (or not) trajectories."""
    return [
        Trajectory(e, (), None if e.success is not None else e.error or "unscored")
        for e in read_episodes(path)
    ]
