"""Comparison of runs: their differing settings, test results and curves.

run directories, finished or not -> their differing settings, test successes, paired
differences to the first run, curves -> a table and plots. Missing results stay blank.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.agent.rollout import Trajectory
from dreamgym.commands.results import evidence_of, policy_steps
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.diagnosis.verdict import has_learnt_in_dream
from dreamgym.evaluation.evaluate import trajectories
from dreamgym.run.directory import Run, RunError
from dreamgym.run.tracking import FILE, read_metrics
from dreamgym.stages.table import CONTROLS, DPO, POLICIES
from worldmodel.data.json_reading import read_json_rows

RUN_POLICIES = [name for name in POLICIES if name not in (*CONTROLS, DPO)]
"""The policies of a run in its order, without its controls."""


def compared(roots: Sequence[Path]) -> dict[str, Any]:
    """Return the comparison of runs as plain data.

    runs: of each its name, settings that differ, successes by policy with intervals,
    rows of the dream's curve; paired: success of each run's policies minus the first
    run's, where both played the same games; last: of each run the policy that it ends
    with, its real steps, its success minus that of the first run's, and whether the
    run's policies learnt by playing in the dream or in the environment.

    Raises:
      RunError: fewer than two runs, a directory twice, or one that holds no run.
    """
    if len(roots) < 2 or len({r.resolve() for r in roots}) < len(roots):
        paths = ", ".join(map(str, roots))
        raise RunError(f"expected two different runs or more, got {paths}")
    runs = [Run.open(root) for root in roots]
    flat = [_flat(run.config.json()) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    apart = [k for k in keys if len({repr(f.get(k)) for f in flat}) > 1]
    played = [_played(run) for run in runs]
    return {
        "runs": [
            {
                "name": str(root),
                "settings": {k: f.get(k) for k in apart},
                "policies": {
                    name: evaluate.summary(episodes, real_transitions=0)["success"]
                    for name, episodes in by_policy.items()
                },
                "curve": _curve(run),
            }
            for root, run, f, by_policy in zip(roots, runs, flat, played, strict=True)
        ],
        "paired": [
            {
                name: _paired(by_policy[name], played[0][name])
                for name in by_policy
                if name in played[0]
            }
            for by_policy in played[1:]
        ],
        "last": [
            _last(run, by_policy, played[0])
            for run, by_policy in zip(runs, played, strict=True)
        ],
    }


def _last(
    run: Run,
    played: Mapping[str, list[Trajectory]],
    first_played: Mapping[str, list[Trajectory]],
) -> dict[str, Any] | None:
    """Return the policy that a run ends with beside that of the first run.

    None where one of them has played no test games.
    """
    name, other = _last_policy(played), _last_policy(first_played)
    if name is None or other is None:
        return None
    return {
        "policy": name,
        "real_steps": policy_steps(run, name) + run.estimate_steps(),
        "difference": _paired(played[name], first_played[other]),
        "world": _training_world(run),
    }


def _training_world(run: Run) -> str | None:
    """Return where a run's policies learnt by playing: "dream" or "environment".

    None where they asked for a dream, and none of them learnt in it.
    """
    if run.config.train.environment == "real":
        return "environment"
    return "dream" if has_learnt_in_dream(evidence_of(run, {})) else None


def _last_policy(played: Mapping[str, Any]) -> str | None:
    """Return the last policy of a run that has played, its controls left out."""
    return next((n for n in reversed(RUN_POLICIES) if n in played), None)


def _flat(part: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(part, dict):
        return {at: part}
    out: dict[str, Any] = {}
    for key, value in part.items():
        out |= _flat(value, f"{at}.{key}".lstrip("."))
    return out


def _played(run: Run) -> dict[str, list[Trajectory]]:
    files = {name: run.path(f"test/{name}.jsonl") for name in POLICIES}
    return {n: trajectories(path) for n, path in files.items() if path.is_file()}


def _curve(run: Run) -> list[dict[str, Any]]:
    """Return the learning curve in the dream; for a running run the rows so far."""
    path, metrics = run.path("curves/dream.jsonl"), run.path(FILE)
    if path.is_file():
        return read_json_rows(path)
    rows = read_metrics(metrics) if metrics.is_file() else []
    return [row["metrics"] for row in rows if row["stage"] == "dream"]


def _paired(
    second: list[Trajectory], first: list[Trajectory]
) -> dict[str, float | None]:
    """Return the difference over the tasks that both played, paired by task."""
    first_by_task: dict[str, list[Trajectory]] = {}
    for t in first:
        first_by_task.setdefault(t.episode.task.id, []).append(t)
    pairs = [
        (t, first_by_task[t.episode.task.id].pop(0))
        for t in second
        if first_by_task.get(t.episode.task.id)
    ]
    return evaluate.paired([a for a, _ in pairs], [b for _, b in pairs], seed=0)
