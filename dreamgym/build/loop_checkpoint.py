"""The state of a training loop on disk after every update, and back."""

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamgym.agent.rollout import Trajectory
from dreamgym.config.settings import RunConfig
from dreamgym.run.directory import RunError
from dreamgym.training import TrainingState
from worldmodel.data.records import Transition, atomic_write
from worldmodel.experience.base import CachingExperienceModel, Query
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


class MemoryAdditions:
    """What dreams added to the memory: a task and a transition a line of a file.

    A checkpoint holds how many of the lines are its own: were they in it, all that was
    ever kept would be written anew after each update.
    """

    def __init__(self, path: Path):
        self._path, self.count = path, 0

    def add(self, rows: Iterable[tuple[str, Transition]]) -> None:
        """Rows behind those that are there, on disk before the checkpoint is."""
        told = [json.dumps([task, dataclasses.asdict(x)]) + "\n" for task, x in rows]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(told)
            file.flush()
            os.fsync(file.fileno())
        self.count += len(told)

    def first(self, count: int) -> list[tuple[str, Transition]]:
        """The first rows; those behind them, of an update that was cut, are dropped.

        Raises:
          RunError: the file has fewer.
        """
        text = self._path.read_text("utf-8") if self._path.is_file() else ""
        found = text.splitlines(keepends=True)
        lines = found[:count]
        if len(lines) < count:
            raise RunError(
                f"{self._path}: expected the {count} transitions that the checkpoint "
                f"beside it was made with, found {len(lines)}; remove "
                f"{self._path.parent} to train anew"
            )
        if len(found) > count:
            with atomic_write(self._path) as file:
                file.writelines(lines)
        self.count = count
        return [(task, _transition(x)) for task, x in map(json.loads, lines)]


class LoopCheckpoint:
    """Saves after each update, and enriches the memory where there is one.

    `told` hears of the progress first: a kill in between does not leave a row out.
    """

    def __init__(
        self,
        directory: Path,
        experience: CachingExperienceModel | None,
        config: RunConfig,
        told: Callable[[TrainingState], None] = lambda _: None,
    ):
        self._directory, self._experience, self._told = directory, experience, told
        self._enrich, self._least = config.enrich, config.trust.enrich
        self._seed = config.seed
        self._kept = MemoryAdditions(directory / "remembered.jsonl")

    def record(
        self, progress: TrainingState, trajectories: Sequence[Trajectory]
    ) -> None:
        """See training.Recorder."""
        self._told(progress)
        if self._experience is not None:
            self._remember(progress.update, trajectories)
        _said(progress)
        host = {
            "pool": progress.pool.state(),
            "transitions": progress.transitions,
            "curve": progress.curve,
            "remembered": self._kept.count,
            "stages": None if progress.lessons is None else progress.lessons.to_json(),
            "replay": [_plain(e) for e in progress.replay],
            "halted": progress.stop_reason,
        }
        checkpoint.save(self._directory, progress.update, _arrays(progress), host)

    def _remember(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        assert self._experience is not None
        rows = [row for t in trajectories if t.error is None for row in _asked(t)]
        if self._least and rows:  # known answers: nothing is computed again
            answers = self._experience.predict([query for query, _ in rows])
            pairs = zip(rows, answers, strict=True)
            rows = [row for row, a in pairs if a.confidence >= self._least]
        rng = np.random.default_rng((self._seed, update))
        chosen = [rows[i] for i in rng.permutation(len(rows))[: self._enrich]]
        picked = [(query.task.id, x) for query, x in chosen]
        self._kept.add(picked)
        self._experience.add_to_memory([t for t, _ in picked], [x for _, x in picked])

    def restore(self, start: TrainingState) -> TrainingState:
        """The newest checkpoint, or `start` where there is none."""
        found = checkpoint.restore(self._directory, _arrays(start))
        if found is None:
            self._kept.first(0)
            return start
        number, arrays, host = found
        states = {name: TrainState(*found) for name, found in arrays.items()}
        start.pool.load(host["pool"])
        if start.lessons is not None:
            start.lessons.load(host["stages"])
        kept = self._kept.first(host.get("remembered", 0))
        if "fresh" in host:  # a checkpoint of an older version had them in it
            kept = [(task, _transition(x)) for task, x in host["fresh"]]
            self._kept.add(kept)
        if self._experience is not None:
            self._experience.add_to_memory([t for t, _ in kept], [x for _, x in kept])
        return TrainingState(
            number, states["policy"], start.pool, host["transitions"], host["curve"],
            states.get("critic"), tuple(Example(**e) for e in host["replay"]),
            start.lessons, host["halted"], states.get("best"),
        )  # fmt: skip


def _said(progress: TrainingState) -> None:
    """Alarms of the last update (training/monitor.py) and skills' red flags, aloud."""
    row = progress.curve[-1]
    for key in row:
        kind, _, name = key.partition("/")
        if kind == "alarm":
            undone = ", undone" * bool(row.get("undone"))
            told = f"alarm, update {progress.update}: {name}{undone} (see watch in "
            print(f"{told}the settings)", file=sys.stderr)
        elif kind == "flags":
            print(f"red flag, update {progress.update}: {name}", file=sys.stderr)


def _plain(example: Example) -> dict[str, Any]:
    """An example as JSON."""
    return {k: _listed(v) for k, v in example._asdict().items()}


def _listed(value: Any) -> Any:
    """Arrays as lists, in columns too."""
    if isinstance(value, Mapping):
        return {k: _listed(v) for k, v in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrays(progress: TrainingState) -> dict[str, TrainState]:
    """What of the progress is arrays."""
    named = {
        "policy": progress.policy, "critic": progress.critic, "best": progress.best
    }  # fmt: skip
    return {name: state for name, state in named.items() if state is not None}


def _asked(trajectory: Trajectory) -> list[tuple[Query, Transition]]:
    """Each dreamed transition with the question that it answers."""
    episode = trajectory.episode
    acted = tuple(x.action for x in episode.transitions)
    return [
        (Query(episode.task, acted[:i], x.state, x.action), x)
        for i, x in enumerate(episode.transitions)
    ]


def _transition(row: dict[str, Any]) -> Transition:
    states: dict[str, Any] = {k: tuple(row[k]) for k in ("state", "next_state")}
    return Transition(**(row | states))
