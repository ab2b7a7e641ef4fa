"""The dream of a run in Gymnasium's registry, as one environment and as a batch.

gymnasium.make("dreamgym/Dream-v0", run="runs/a") -> DreamEnv
gymnasium.make_vec("dreamgym/Dream-v0", num_envs=16, run="runs/a") -> DreamVector
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from dreamgym.envs.dream import (
    DreamEnv,
    DreamVectorEnv,
    first_info,
    step_info,
    task_by_id,
)
from dreamgym.envs.spaces import AnyText
from dreamgym.run.directory import Run
from dreamgym.serving.dream import Dream, load_dream
from worldmodel.data.checksums import file_sum
from worldmodel.data.records import Task


@functools.lru_cache(maxsize=4)
def _loaded(run: Path, marker: str) -> Dream:
    """Return the dream of a run; `marker` is that of its fitted experience model."""
    del marker  # part of the key
    return load_dream(Run.open(run))


def _dream_of(run: str | Path) -> Dream:
    """Return the dream of a run, loaded once in a process.

    Raises:
      RunError: there is no run, or it has no experience model yet.
    """
    path = Path(run).resolve()
    marker = path / "stages" / "fidelity.json"
    return _loaded(path, file_sum(marker) if marker.is_file() else "")


def make_dream(*, run: str | Path, split: str = "train") -> DreamEnv:
    """Return the dream of a run as a Gymnasium environment.

    Args:
      run: a run directory that is fitted (`dreamgym pretrain`).
      split: only tasks of this split are drawn; "" draws from all.

    Raises:
      RunError: there is no run, or it has no experience model yet.
      ValueError: the dream has no task of the split.
    """
    dream = _dream_of(run)
    return dream._replace(tasks=tasks_of_split(dream, split)).env()


def tasks_of_split(dream: Dream, split: str) -> list[Task]:
    """Return the tasks of a split, or all where it is "".

    Raises:
      ValueError: there is none.
    """
    tasks = [t for t in dream.tasks if split in ("", t.split)]
    if not tasks:
        have = sorted({t.split for t in dream.tasks})
        raise ValueError(f"the dream has no task of split {split!r}; it has {have}")
    return tasks


class DreamVector(VectorEnv):
    """A batch of dreamed episodes whose queries are answered together.

    Observations and actions are tuples of text. What stands in `info` is an array with
    an entry for each slot, and a mask of those that have it under `_` and the name.

    A slot whose episode has ended begins another one by itself, at the next step, in
    which its action is ignored (AutoresetMode.NEXT_STEP, Gymnasium's default). With
    autoreset_mode="Disabled" it waits for reset(options={"reset_mask": ...}), with
    which the caller chooses the tasks: options={"tasks": [...]}, one for each slot.
    """

    def __init__(
        self,
        num_envs: int = 1,
        *,
        run: str | Path,
        split: str = "train",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ):
        """Load the dream of a run; see make_dream.

        Raises:
          ValueError: the mode is that of another kind of batch, or the dream has no
            task of the split.
        """
        mode = AutoresetMode(autoreset_mode)
        if mode == AutoresetMode.SAME_STEP:
            raise ValueError(
                f"autoreset_mode must be {AutoresetMode.NEXT_STEP.value!r} or "
                f"{AutoresetMode.DISABLED.value!r}, got {mode.value!r}"
            )
        dream = _dream_of(run)
        self._tasks = tasks_of_split(dream, split)
        self._batch = DreamVectorEnv(
            dream.model,
            num_envs,
            max_steps=dream.max_steps,
            uncertainty=dream.uncertainty,
            lasting_wins=dream.lasting_wins,
        )
        self.num_envs, self._mode = num_envs, mode
        self.metadata = {"autoreset_mode": mode, "render_modes": []}
        self.render_mode = None
        self.single_observation_space = AnyText()
        self.single_action_space = AnyText(200)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators = [np.random.default_rng(i) for i in range(num_envs)]
        self._texts = [""] * num_envs
        self._ended = [True] * num_envs

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in every slot, or in those of `options["reset_mask"]`.

        Slot i draws its task by seed + i, or by seed[i]; `options["tasks"]` holds a
        Task, the id of one, or None for each slot instead.
        """
        options = options or {}
        mask = options.get("reset_mask", [True] * self.num_envs)
        chosen = options.get("tasks", [None] * self.num_envs)
        if len(mask) != self.num_envs or len(chosen) != self.num_envs:
            raise ValueError(
                f"reset_mask and tasks need an entry for each of {self.num_envs} "
                f"slots, got {len(mask)} and {len(chosen)}"
            )
        for i, value in enumerate(_slot_seeds(seed, self.num_envs)):
            if value is not None and mask[i]:
                self._generators[i] = np.random.default_rng(value)
        tasks = [
            self._task(i, chosen[i]) if mask[i] else None for i in range(self.num_envs)
        ]
        infos = self._begin(tasks)
        return tuple(self._texts), infos

    def _task(self, slot: int, task: object) -> Task:
        if isinstance(task, Task):
            return task
        if isinstance(task, str):
            return task_by_id(self._tasks, task)
        if task is not None:
            raise TypeError(
                "options['tasks']: expected a Task, the id of one, or None for a drawn "
                f"one, got {task!r:.60}"
            )
        return self._tasks[int(self._generators[slot].integers(len(self._tasks)))]

    def _begin(self, tasks: Sequence[Task | None]) -> dict[str, Any]:
        """Start these tasks in their slots; return the infos."""
        mask = [task is not None for task in tasks]
        states = self._batch.reset(options={"tasks": tasks, "reset_mask": mask})
        infos: dict[str, Any] = {}
        for i, (task, state) in enumerate(zip(tasks, states, strict=True)):
            if task is not None and state is not None:
                self._texts[i], self._ended[i] = "\n".join(state), False
                infos = self._add_info(infos, first_info(task), i)
        return infos

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take a step in every slot, the queries of all in one batch.

        Raises:
          ValueError: there is not one action for each slot.
          RuntimeError: with autoreset disabled, a slot has no running episode.
        """
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        ended = [i for i, over in enumerate(self._ended) if over]
        if ended and self._mode == AutoresetMode.DISABLED:
            raise RuntimeError(f"slots {ended} have no running episode: reset them")
        steps = self._batch.step(
            [None if self._ended[i] else str(a) for i, a in enumerate(actions)]
        )
        infos: dict[str, Any] = {}
        if ended:
            infos = self._begin(
                [self._task(i, None) if i in ended else None for i in range(len(steps))]
            )
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, bool)
        truncated = np.zeros(self.num_envs, bool)
        for i, step in enumerate(steps):
            if step is None:
                continue
            self._texts[i] = "\n".join(step.state)
            rewards[i] = sum(step.rewards.values())
            terminated[i], truncated[i] = step.terminated, step.truncated
            self._ended[i] = step.terminated or step.truncated
            infos = self._add_info(infos, step_info(step, self._batch.exchanges[i]), i)
        return tuple(self._texts), rewards, terminated, truncated, infos


def _slot_seeds(
    seed: int | Sequence[int | None] | None, slots: int
) -> Sequence[int | None]:
    """Return the seed of each slot, as Gymnasium's own batches count them."""
    if seed is None:
        return [None] * slots
    if isinstance(seed, int | np.integer):
        return [int(seed) + i for i in range(slots)]
    if len(seed) != slots:
        raise ValueError(f"expected {slots} seeds, got {len(seed)}")
    return seed
