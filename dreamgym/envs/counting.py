"""Counts real steps where the environment is stepped.

CountedEnv -> RealSteps -> the marker of a stage. Every real environment of a run is
wrapped, forks included, so that all steps are counted whoever takes them, including
steps that raise an error and those of interrupted attempts. Where a limit is set, the
step after the last one is refused before the environment is asked.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium

from dreamgym.envs.base import starter
from dreamgym.envs.failures import EnvironmentDown
from worldmodel.data import processes


class BudgetSpent(RuntimeError):
    """A step was asked for after the last one that may be taken."""


class RealSteps:
    """The number of real steps taken; copies of an environment share one."""

    def __init__(self) -> None:
        self.count, self._file = 0, -1
        self.limit: int | None = None
        self._path: Path | None = None

    @property
    def left(self) -> int | None:
        """The number of steps that may still be taken; None without a limit."""
        return None if self.limit is None else max(self.limit - self.count, 0)

    def add(self) -> None:
        """Count one step; where it is recorded, it is on disk before this returns.

        Raises:
          BudgetSpent: the limit is reached; nothing is counted.
          EnvironmentDown: the count cannot be written; nothing is counted. Another
            error would be taken for one of the environment, which ends one game.
        """
        if self.left == 0:
            raise BudgetSpent(f"all {self.limit} real steps of this stage are taken")
        try:
            self._write(self.count + 1)
        except OSError as error:
            raise EnvironmentDown(
                f"{self._path}: no step can be taken uncounted ({error})"
            ) from error
        self.count += 1

    def _write(self, count: int) -> None:
        if self._path is None or not processes.is_first_process():
            return
        if self._file < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(self._file, b"%d" % count, 0)

    @contextlib.contextmanager
    def recorded(self, path: Path, limit: int | None = None) -> Iterator["RealSteps"]:
        """Count from what a file says, and keep the count there: a kill loses none.

        At most `limit` steps are taken, with those that the file had.
        """
        text = path.read_text() if path.is_file() else ""
        self.count, self._path = int(text) if text.isdigit() else 0, path
        self.limit = limit
        processes.wait_for_all("real steps")  # nobody counts before all have read
        try:
            yield self
        finally:
            self._path = self.limit = None
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def __deepcopy__(self, memo: Any) -> "RealSteps":
        del memo  # a fork of an environment counts here, too
        return self


class CountedEnv(gymnasium.Wrapper):
    """An environment whose steps are counted."""

    def __init__(self, env: gymnasium.Env, steps: RealSteps):
        super().__init__(env)
        self._real_steps, self._step_is_counted = steps, False

    def start_reset(self, **arguments: Any) -> None:
        """Let a worker begin a reset, which counts nothing."""
        if (start := starter(self.env, "start_reset")) is not None:
            start(**arguments)

    def start_step(self, action: Any) -> None:
        """Count a step and let a worker begin it (workers/env.py).

        Raises:
          BudgetSpent: no step is left; nothing is begun.
        """
        start = starter(self.env, "start_step")
        if start is None or self._step_is_counted:
            return
        self._real_steps.add()
        self._step_is_counted = True
        start(action)

    def step(self, action: Any) -> Any:
        """Count a step and take it; one that raises was asked for, too."""
        if not self._step_is_counted:
            self._real_steps.add()
        self._step_is_counted = False
        return self.env.step(action)
