"""The dream of a run, with all that is needed to play it.

run directory -> experience model, tasks, step limit, uncertainty gate -> Dream -> one
environment for each episode that is played at the same time
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dreamgym.build.episodes import read
from dreamgym.build.experience import (
    fidelity_file,
    load_experience,
    remedy_folder,
    uncertainty_gate,
)
from dreamgym.build.real.environments import dreamable_tasks
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.envs.dream import DreamEnv, UncertaintyGate
from dreamgym.evaluation.comparisons.episode_comparison import Recall, recall_from
from dreamgym.run.directory import Run
from worldmodel.data.records import Task
from worldmodel.experience.base import CachingExperienceModel, ExperienceModel

_PIECE = 2**20


class Dream(NamedTuple):
    """An experience model with the tasks it can dream of."""

    name: str
    model: ExperienceModel
    tasks: Sequence[Task]
    max_steps: int
    uncertainty: UncertaintyGate
    version: str
    """A hash of what its answers depend on: weights, memory and calibration."""
    recall: Recall
    lasting_wins: bool = False
    """Whether an episode that lasts until the step limit is won."""

    def env(self, model: ExperienceModel | None = None) -> DreamEnv:
        """Return an environment for one episode at a time.

        Args:
          model: asked in place of the dream's own, such as one that collects the
            queries of many environments.
        """
        return DreamEnv(
            self.model if model is None else model,
            self.tasks,
            max_steps=self.max_steps,
            uncertainty=self.uncertainty,
            lasting_wins=self.lasting_wins,
        )


def load_dream(run: Run | str | Path) -> Dream:
    """Return the dream of a run that is fitted, or that asks a chat server.

    Its `model` answers as in the run itself: with the run's settings, memory, seed and
    calibration.

    Args:
      run: a run, or its directory.

    Raises:
      RunError: there is no run, it has no experience model yet, or no task to dream of.
    """
    run = Run.of(run)
    folder = remedy_folder(run)
    experience = load_experience(run, scaled=True, folder=folder)
    train, dev = read(run)
    tasks = list({e.task.id: e.task for e in (*train, *dev)}.values())
    return Dream(
        name=run.root.resolve().name,
        model=experience,
        tasks=dreamable_tasks(tasks),
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, folder),
        lasting_wins=lasting_wins(run),
        version=model_version(run, folder),
        recall=recall_of(experience),
    )


def recall_of(experience: CachingExperienceModel) -> Recall:
    """Return how the demonstrations of a query are recalled, the most similar first."""
    config = getattr(experience, "config", None)
    return recall_from(experience.memory, getattr(config, "demonstrations", 0))


def model_version(run: Run, folder: str = "") -> str:
    """Return a hash of the files and settings that the answers of a dream depend on.

    These are the weights, the episodes in the replay memory, the calibration, and the
    settings of the experience model; `folder` is that of a refit.
    """
    digest = hashlib.sha256()
    for path in _answer_files(run, folder):
        digest.update(str(path.relative_to(run.root)).encode() + b"\0")
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                digest.update(piece)
    c = run.config
    settings = (c.seed, c.experience, c.memory, c.uncertainty, c.server)
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:12]


def _answer_files(run: Run, folder: str) -> list[Path]:
    """Return the files that a dream is loaded from, in a fixed order."""
    model = run.path(f"{folder}/experience" if folder else "experience")
    folders = [model, *sorted(run.path("ensemble").glob("*"))]
    files = [p for f in folders for p in sorted(f.rglob("*")) if p.is_file()]
    others = ["episodes.jsonl", fidelity_file(folder)]
    others += [f"{folder}/episodes.jsonl"] if folder else []
    return files + [run.path(n) for n in others if run.path(n).is_file()]
