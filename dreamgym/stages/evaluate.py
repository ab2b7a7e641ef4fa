"""Stage: every policy on the same real test games."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.build.environments import NO_ENV, real_envs, test_tasks
from dreamgym.build.models import load_policy
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.evaluation.report import counts_text
from dreamgym.run.directory import Run
from dreamgym.run.display import bar
from worldmodel.data.records import Task, read_episodes, write_episodes

ZERO_SHOT = ("untrained", "bc", "warmstart", "dream")


def body(run: Run) -> dict[str, Any]:
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
