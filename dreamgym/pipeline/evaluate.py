"""Stage: every policy on the same real test games."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.envs import base
from dreamgym.evaluation import evaluate
from dreamgym.pipeline.policies import load_policy
from dreamgym.pipeline.run import Run, RunError, bar
from worldmodel.text.records import Task, read_episodes, write_episodes

ZERO_SHOT = ("untrained", "bc", "warmstart", "dream")
NO_ENV = "skipped: no environment (give --env to run the real stages)"


def real_envs(run: Run) -> base.RealVectorEnv:
    """Copies of the run's environment, one a slot."""
    c = run.config
    return base.RealVectorEnv(
        [base.make(c.env) for _ in range(c.evaluate.slots)], max_steps=c.max_steps
    )


def test_tasks(run: Run) -> list[Task]:
    """The test games, the same for every policy; none was collected from.

    Raises:
      RunError: the environment has no test task, or one that was collected.
    """
    env = base.make(run.config.env)
    try:
        tasks = base.tasks_of(env, run.config.env, "test", run.config.evaluate.games)
        told = base.begun(env, tasks)
    finally:
        env.close()
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


def play_all(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Play each policy on the test games unless its file stands; success rates."""
    tasks = test_tasks(run)
    envs = real_envs(run)
    out = {}
    try:
        with bar(len(names) * len(tasks), "evaluate", "episode") as show:
            for i, name in enumerate(names):
                path = run.path(f"test/{name}.jsonl")
                if not path.is_file():
                    found = evaluate.play(
                        load_policy(run, name), envs, tasks,
                        seed=run.config.seed + 7,
                        temperature=run.config.evaluate.temperature,
                        progress=lambda n, _, i=i: show(i * len(tasks) + n),
                    )  # fmt: skip
                    write_episodes(path, [t.episode for t in found])
                row = evaluate.summary(trajectories(path), real_transitions=0)
                out[name] = row["success"]["mean"]
    finally:
        envs.close()
    return out


def trajectories(path: Path) -> list[Trajectory]:
    """Test episodes as scored (or not) trajectories."""
    return [
        Trajectory(e, (), None if e.success is not None else "unscored")
        for e in read_episodes(path)
    ]
