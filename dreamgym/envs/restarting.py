"""A real environment that is restarted if its process or server is lost.

A call goes to an instance of the environment. If that has lost its connection, a new
instance is created and the episode is replayed up to the same observations, without the
caller noticing. If the environment does not come back, EnvironmentDown is raised.
"""

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

from dreamgym.envs import base, registry
from dreamgym.envs.actions import as_list
from dreamgym.envs.failures import (
    EnvironmentDown,
    EnvironmentFailure,
    EnvironmentTimeout,
    deadlines_of,
    guarded,
)
from dreamgym.envs.interrupts import check_interrupt
from worldmodel.data.records import Task

CAPABILITIES = (
    "tasks",
    "expert",
    "valid_actions",
    "variations",
    "fork",
    "render_state",
)
"""Optional methods of an environment (base.py) that are passed on."""

CONNECTION_ERRORS = (ConnectionError, EOFError, TimeoutError)
"""Errors that say that the instance is lost, and not that one game is faulty."""

LISTS = ("tasks", "expert", "valid_actions")
"""Methods that return a list, as a set or a generator may be one."""
PATIENCE = 3
"""Games in a row that end with a lost instance before the environment is down."""


class RestartingEnv(gymnasium.Wrapper):
    """An environment that is created again if its connection is lost.

    An environment declares its deadlines by `reset_seconds` and `step_seconds`; 0 is
    none. Episodes that a deadline ends are not repeated, because they would end there
    again, and whoever steps on in one gets the same error.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        """Make the first instance; `make` keeps the deadline of a start."""
        super().__init__(_first_instance(make))
        self._make = make
        self._start: dict[str, Any] | None = None  # arguments of the last reset
        self._actions: list[str] = []
        self._observations: list[str] = []
        self._lost_in_a_row = self._resets_failed = 0
        self._episode_error: Exception | None = None  # what broke the episode
        self._seconds = deadlines_of(self.env)

    def __getattr__(self, name: str) -> Any:
        if name not in CAPABILITIES or base.provider(self.env, name) is None:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        if name in ("fork", "variations"):
            return getattr(self, f"_{name}")

        def method(*args: Any, **options: Any) -> Any:
            def ask(env: gymnasium.Env) -> Any:
                value = getattr(base.provider(env, name), name)(*args, **options)
                # A generator runs here, within the deadline.
                return as_list(value) if name in LISTS else value

            return self._call(ask, name)

        return method

    def _fork(self) -> gymnasium.Env:
        """Return a fork, whose deadlines its caller has to keep (deadlines_of)."""

        def fork(env: gymnasium.Env) -> gymnasium.Env:
            forkable = base.as_forkable(env)
            assert forkable is not None, "the instance could fork"
            return forkable.fork()

        return self._call(fork, "fork")

    def _variations(self, task: Task, rng: np.random.Generator) -> Iterator[Task]:
        def begin(env: gymnasium.Env) -> Iterator[Task]:
            return iter(base.provider(env, "variations").variations(task, rng))

        tasks = self._call(begin, "variations")
        while True:
            varied = guarded(
                self.env,
                lambda: next(tasks, None),
                seconds=self._seconds.other,
                method="variations",
            )
            if isinstance(varied, EnvironmentFailure):
                raise self._failed(varied)
            if varied is None:
                return
            yield varied

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, in a fresh instance if this one is lost."""
        self._start = self._episode_error = None
        # An episode may write into its options; a replay begins as it did.
        start = {"seed": seed, "options": copy.deepcopy(options)}
        if self._resets_failed >= PATIENCE:  # whatever it raises, it may be broken
            self._restart()
        result = self._until_answered(
            lambda env: env.reset(**copy.deepcopy(start)), self._seconds.reset
        )
        if isinstance(result, EnvironmentFailure):
            self._resets_failed += 1
            raise self._failed(result)
        self._resets_failed, self._start = 0, start
        self._actions, self._observations = [], [result[0]]
        return result

    def start_reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset in a worker process; the next call must be this `reset`."""
        if (start := base.starter(self.env, "start_reset")) is not None:
            start(seed=seed, options=options)

    def start_step(self, action: str) -> None:
        """Begin a step in a worker process; the next call must be this `step`."""
        start = base.starter(self.env, "start_step")
        if start is not None and self._episode_error is None:
            start(action)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step, in a fresh instance at the same place if this one is lost."""
        if self._episode_error is not None:  # a fresh instance is not in this episode
            raise self._episode_error
        result = self._until_answered(lambda env: env.step(action), self._seconds.step)
        if isinstance(result, EnvironmentFailure):
            raise self._failed(result)
        self._actions.append(action)
        self._observations.append(result[0])
        self._lost_in_a_row = 0
        return result

    def _call(self, call: Callable[[gymnasium.Env], Any], method: str) -> Any:
        """Return what an optional method returns."""
        result = self._until_answered(call, self._seconds.other, method)
        if isinstance(result, EnvironmentFailure):
            raise self._failed(result)
        return result

    def _until_answered(
        self, call: Callable[[gymnasium.Env], Any], seconds: float, method: str = ""
    ) -> Any:
        """Return what a call returns, in the third instance at the latest."""
        for _ in range(PATIENCE):
            result = guarded(
                self.env, lambda: call(self.env), seconds=seconds, method=method
            )
            if not (
                isinstance(result, EnvironmentFailure) and _is_connection_error(result)
            ):
                return result
            self._restart()
            if not self._at_same_place():
                return result
        return result

    def _at_same_place(self) -> bool:
        """Play the episode again; return whether every observation is the same."""
        start = self._start
        if start is None:
            return True
        same = guarded(
            self.env,
            lambda: self._replay(start),
            seconds=self._seconds.reset + self._seconds.step * len(self._actions),
        )
        return same is True

    def _replay(self, start: dict[str, Any]) -> bool:
        observation, _ = self.env.reset(**start)
        for action, expected in itertools.zip_longest(
            self._actions, self._observations
        ):
            if observation != expected:
                return False
            if action is not None:
                observation = self.env.step(action)[0]
        return True

    def _restart(self) -> None:
        """Replace the instance by a fresh one.

        Raises:
          EnvironmentDown: none can be made.
        """
        old = self.env
        guarded(old, old.close, seconds=self._seconds.step)
        for _ in range(2):
            result = guarded(old, self._make)
            if not isinstance(result, EnvironmentFailure):
                self.env, self._resets_failed = result, 0
                return
        name = type(old.unwrapped).__name__
        raise EnvironmentDown(f"{name} cannot be started again: {result.reason}")

    def _failed(self, failure: EnvironmentFailure) -> Exception:
        """Return the error to raise; a restart helps whoever plays next."""
        if not isinstance(failure.error, CONNECTION_ERRORS):
            return failure.error
        self._episode_error = failure.error
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= PATIENCE:
            return EnvironmentDown(
                f"{failure.environment} is down: {PATIENCE} games in a row ended with "
                f"{failure.reason} ({failure.place}), in fresh instances too"
            )
        if not _is_connection_error(failure):
            self._restart()  # a call that hangs may still hold it
        return failure.error

    def close(self) -> None:
        """Close the instance; one that cannot be closed is left."""
        guarded(self.env, self.env.close, seconds=self._seconds.step)


def _first_instance(make: Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """Return a new instance; one that is lost while it starts is started again.

    One that takes too long to start is not: it would hang again, as silently.
    """
    for _ in range(PATIENCE - 1):
        try:
            return make()
        except EnvironmentTimeout:
            raise
        except CONNECTION_ERRORS:
            check_interrupt()
    return make()


def _is_connection_error(failure: EnvironmentFailure) -> bool:
    timed_out = isinstance(failure.error, EnvironmentTimeout)
    return isinstance(failure.error, CONNECTION_ERRORS) and not timed_out


def open_env(
    spec: str,
    wrap: Callable[[gymnasium.Env], gymnasium.Env] = lambda env: env,
    make: Callable[[str], gymnasium.Env] = registry.make,
) -> RestartingEnv:
    """Return a real environment by its id, each instance of which is wrapped.

    `make` makes an instance, in this process or in one of its own (process_env), and
    keeps the deadline of its start.
    """
    return RestartingEnv(lambda: wrap(make(spec)))


def environment_down(name: str, games: str, reasons: Sequence[str]) -> EnvironmentDown:
    """Return the error of an environment that broke all of its games."""
    last = reasons[-1] if reasons else "no reason given"
    return EnvironmentDown(
        f"{name} broke all of its {games}: {last}. Nothing was written; mend it "
        f"(`dreamgym check --env {name}`) and repeat the same command"
    )
