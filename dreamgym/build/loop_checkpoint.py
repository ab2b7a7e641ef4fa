"""The state of a training loop on disk after every update, and back."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.agent.policy import Turn
from dreamgym.agent.rollout import Trajectory
from dreamgym.config.settings import RunConfig
from dreamgym.rewards.reward_model import RewardModelWeights
from dreamgym.run.directory import RunError
from dreamgym.training import TrainingState
from dreamgym.training.monitor import NOT_FINITE
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.state import RolloutBatch
from worldmodel.data import processes
from worldmodel.data.records import (
    Episode,
    Task,
    Transition,
    atomic_write,
    write_episodes,
)
from worldmodel.experience.base import CachingExperienceModel, Query, query_after
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState

REWARD_MODEL = "reward_model"
"""The refitted reward model in a checkpoint: its parameters, and its mean score."""

PENDING = "pending"
"""The rollouts of the next update in a checkpoint, where they are made while the policy
learns. They are kept, and not made again: memory and policy have changed since."""
ROLLOUT_KINDS = ("started", "forked", "from_demonstrations", "guided")
"""The fields of Rollouts that a checkpoint holds."""


def rollouts_file(update: int) -> str:
    """Return the name of the file with the kept rollouts of an update."""
    return f"{update:05d}.jsonl"


class MemoryAdditions:
    """Dreamed transitions that were added to the memory, in a file of JSON lines.

    A checkpoint holds only the number of lines that belong to it. If it held the
    transitions themselves, all of them would be written again after each update.
    """

    def __init__(self, path: Path):
        self._path, self.count = path, 0

    def add(self, rows: Iterable[tuple[str, Transition]]) -> None:
        """Append rows; they are on disk before the checkpoint that counts them."""
        lines = [json.dumps([task, dataclasses.asdict(x)]) + "\n" for task, x in rows]
        with processes.first_process_writes(self._path.name) as writes:
            if writes:
                self._append(lines)
        self.count += len(lines)

    def _append(self, lines: list[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def first(self, count: int) -> list[tuple[str, Transition]]:
        """Return the first rows and remove later ones, left by an interrupted update.

        Raises:
          RunError: the file has fewer.
        """
        text = self._path.read_text("utf-8") if self._path.is_file() else ""
        all_lines = text.splitlines(keepends=True)
        lines = all_lines[:count]
        if len(lines) < count:
            raise RunError(
                f"{self._path}: expected the {count} transitions that the checkpoint "
                f"beside it was made with, found {len(lines)}; remove "
                f"{self._path.parent} to train anew"
            )
        if len(all_lines) > count:
            with atomic_write(self._path) as file:
                file.writelines(lines)
        self.count = count
        return [(task, _transition(x)) for task, x in map(json.loads, lines)]


class LoopCheckpoint:
    """Saves the loop's state after each update and adds to the memory, if any.

    A state is on disk when the next one is saved, or when the block ends that has it as
    its context manager: it is written while the next update is computed.

    `report` is called with the state before it is saved, so that a process killed in
    between does not lose a row of the curve. Of each update `keep` rollouts are written
    to the directory `rollouts`.
    """

    def __init__(
        self,
        directory: Path,
        experience: CachingExperienceModel | None,
        config: RunConfig,
        report: Callable[[TrainingState], None] = lambda _: None,
        rollouts: Path | None = None,
        keep: int = 0,
    ):
        self._rollouts, self._keep = rollouts, keep
        self._directory, self._experience, self._report = directory, experience, report
        self._enrich, self._min_confidence = (
            config.memory.additions_per_update,
            config.memory.min_confidence,
        )
        self._seed = config.policy_seed
        self._writer = checkpoint.CheckpointWriter(directory)
        self._additions = MemoryAdditions(directory / "memory_additions.jsonl")

    def record(
        self,
        progress: TrainingState,
        trajectories: Sequence[Trajectory],
        rewarded: Sequence[Trajectory],
    ) -> None:
        """See training.Recorder."""
        self._keep_rollouts(progress.update, rewarded)
        # Reported before it is saved: a process that is killed in between repeats the
        # update, and the row with it; the other way round the row would be lost.
        self._report(progress)
        if self._experience is not None:
            self._remember(progress.update, trajectories)
        _print_alarms(progress)
        host = {
            "pool": progress.pool.state(),
            "transitions": progress.transitions,
            "curve": progress.curve,
            "memory_additions": self._additions.count,
            "lessons": None if progress.lessons is None else progress.lessons.to_json(),
            "replay": [_plain(e) for e in progress.replay],
            "stop_reason": progress.stop_reason,
            "novelty": None if progress.novelty is None else progress.novelty.state(),
        }
        if progress.pending is not None:
            host[PENDING] = batch_to_json(progress.pending)
        if progress.reward_model is not None:
            host[REWARD_MODEL] = progress.reward_model.mean_score
        self._writer.save(progress.update, _arrays(progress), host)

    def __enter__(self) -> "LoopCheckpoint":
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)

    def _keep_rollouts(self, update: int, rewarded: Sequence[Trajectory]) -> None:
        """Write some of an update's rollouts, evenly spaced, if any are kept."""
        if self._rollouts is None or not self._keep or not rewarded:
            return
        count = min(self._keep, len(rewarded))
        places = np.linspace(0, len(rewarded) - 1, count).astype(int)
        episodes = [rewarded[i].episode for i in places]
        # Forks carry the id of the rollout that they began in: ids are made unique.
        unique = [
            dataclasses.replace(e, id=f"{i}-{e.id}") for i, e in enumerate(episodes)
        ]
        write_episodes(self._rollouts / rollouts_file(update), unique, check=False)

    def _remember(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        assert self._experience is not None
        # Aborted and broken rollouts are what the model was unsure of: as
        # demonstrations they would feed its mistakes back to it.
        scored = [t for t in trajectories if t.error is None]
        rows = [row for t in scored for row in _dreamed_queries(t)]
        if self._min_confidence and rows:  # known answers: nothing is computed again
            answers = self._experience.predict([query for query, _ in rows])
            pairs = zip(rows, answers, strict=True)
            rows = [row for row, a in pairs if a.confidence >= self._min_confidence]
        rng = np.random.default_rng((self._seed, update))
        sample = [rows[i] for i in rng.permutation(len(rows))[: self._enrich]]
        picked = [(query.task.id, x) for query, x in sample]
        self._additions.add(picked)
        self._experience.add_to_memory([t for t, _ in picked], [x for _, x in picked])

    def restore(self, start: TrainingState) -> TrainingState:
        """Return the state of the newest checkpoint, or `start` if there is none."""
        saved = checkpoint.restore(self._directory, _arrays(start))
        if saved is None:
            self._additions.first(0)
            return start
        number, arrays, host = saved
        if "stop_reason" not in host:
            raise RunError(
                f"{self._directory}: a checkpoint of an older version, which this one "
                "cannot continue; remove it to train anew"
            )
        params = arrays.pop(REWARD_MODEL, None)
        states = {name: TrainState(*state) for name, state in arrays.items()}
        start.pool.load(host["pool"])
        if start.lessons is not None:
            start.lessons.load(host["lessons"])
        if start.novelty is not None:
            start.novelty.load(host["novelty"])
        additions = self._additions.first(host["memory_additions"])
        if self._experience is not None:
            self._experience.add_to_memory(
                [t for t, _ in additions], [x for _, x in additions]
            )
        return TrainingState(
            number,
            states["policy"],
            start.pool,
            host["transitions"],
            host["curve"],
            states.get("critic"),
            tuple(Example(**e) for e in host["replay"]),
            start.lessons,
            host["stop_reason"],
            states.get("best"),
            None if params is None else RewardModelWeights(params, host[REWARD_MODEL]),
            start.novelty,
            batch_from_json(host[PENDING]) if PENDING in host else None,
        )


def _print_alarms(progress: TrainingState) -> None:
    """Print the alarms of the last update (training/monitor.py) and other red flags."""
    row = progress.curve[-1]
    for key in row:
        kind, _, name = key.partition("/")
        if kind == "alarm":
            reverted = ", reverted" * bool(row.get("reverted"))
            message = f"alarm, update {progress.update}: {name}{reverted}"
            setting = name.partition(":")[0]
            if setting != NOT_FINITE:
                message += f" (`dreamgym settings {setting}` explains it)"
            print(message, file=sys.stderr)
        elif kind == "flags" and f"alarm/skill_collapse: {name}" not in row:
            print(f"red flag, update {progress.update}: {name}", file=sys.stderr)


def _plain(example: Example) -> dict[str, Any]:
    """Return an example as JSON."""
    return {k: _listed(v) for k, v in example._asdict().items()}


def _listed(value: Any) -> Any:
    """Return arrays as lists, including those in columns."""
    if isinstance(value, Mapping):
        return {k: _listed(v) for k, v in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def batch_to_json(batch: RolloutBatch) -> dict[str, Any]:
    """Return rollouts that are not scored yet as JSON, with the metrics of their tasks.

    Tuples become lists, which `_trajectory` undoes.
    """
    rows = {
        kind: [
            t._asdict()
            | {
                "episode": dataclasses.asdict(t.episode),
                "turns": [turn._asdict() for turn in t.turns],
            }
            for t in getattr(batch.rollouts, kind)
        ]
        for kind in ROLLOUT_KINDS
    }
    return rows | {"metrics": batch.metrics}


def batch_from_json(row: dict[str, Any]) -> RolloutBatch:
    """Return the rollouts of `batch_to_json`."""
    started, forked, from_demonstrations, guided = (
        [_trajectory(t) for t in row.get(kind, ())] for kind in ROLLOUT_KINDS
    )
    rollouts = Rollouts(
        started, forked, from_demonstrations=from_demonstrations, guided=guided
    )
    return RolloutBatch(rollouts, row["metrics"])


def _trajectory(row: dict[str, Any]) -> Trajectory:
    episode = row["episode"]
    task = Task(**_with_tuples(episode["task"], ("initial_state", "lineage")))
    steps = tuple(_transition(x) for x in episode["transitions"])
    return Trajectory(
        Episode(**(episode | {"task": task, "transitions": steps})),
        tuple(
            Turn(**_with_tuples(x, ("context", "ids", "logp", "sampled", "part")))
            for x in row["turns"]
        ),
        row["error"],
        tuple(row["past"]),
        tuple(map(tuple, row["past_states"])),
        tuple(row.get("plan_lengths", ())),
    )


def _arrays(progress: TrainingState) -> dict[str, Any]:
    """Return the parts of the state that are arrays."""
    model = progress.reward_model
    named = {
        "policy": progress.policy,
        "critic": progress.critic,
        "best": progress.best,
        REWARD_MODEL: None if model is None else model.params,
    }
    return {name: state for name, state in named.items() if state is not None}


def _dreamed_queries(trajectory: Trajectory) -> list[tuple[Query, Transition]]:
    """Return each dreamed transition with the query that it answers."""
    task, steps = trajectory.episode.task, trajectory.episode.transitions
    return [
        (query_after(task, steps[:i], x.state, x.action), x)
        for i, x in enumerate(steps)
    ]


def _transition(row: dict[str, Any]) -> Transition:
    return Transition(**_with_tuples(row, ("state", "next_state", "valid_actions")))


def _with_tuples(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the row with the named lists as tuples, empty ones where it has none."""
    return row | {k: tuple(row.get(k, ())) for k in names}
