"""Corridors with faults, for worker processes: this module needs no JAX."""

import asyncio
import contextlib
import copy
import http.client
import mmap
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import numpy as np

from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.workers import messages
from tests import corridor
from worldmodel.data.records import Task

EATER = ["setsid", sys.executable, "-c", "b'x' * (4 << 30)"]
"""A child that uses 4 GiB, in a session of its own."""


class Faulty(corridor.Corridor):
    """A corridor with actions that break it, each in a way of its own."""

    step_seconds = 2.0

    def step(self, action):
        if action == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if action == "exit":
            os._exit(3)
        if action == "sys.exit":
            raise SystemExit(4)
        if action == "cancel":
            raise asyncio.CancelledError("stop")
        if action == "hang":
            time.sleep(600)
        if action == "divide":
            return 1 / 0
        if action == "eat":
            return b"x" * (4 << 30)
        if action == "eat in a child":
            subprocess.run(EATER, check=False)
        if action == "reserve":
            self.reserved = mmap.mmap(-1, 8 << 30)
        if action == "print":
            print("noise on stdout")
        state, reward, terminated, truncated, info = super().step(action)
        if action == "long":
            state = "x" * (1 << 20)
        if action == "nan":
            info["rewards"] = {"coin": float("nan")}
        if action == "disconnect":
            raise http.client.RemoteDisconnected("closed")
        if action == "late page":
            raise EnvironmentTimeout("the page did not load")
        if action == "key":
            raise KeyError("door")
        if action == "child":
            subprocess.Popen(["sleep", "60"])
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "fork":
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "sleeper":
            info["pid"] = subprocess.Popen(["sleep", "600"]).pid
        if action == "fraction":
            info |= {"rewards": {"coin": Fraction(1, 2)}, "costs": {"c": Fraction(1)}}
        if action == "pid":
            info["pid"] = os.getpid()
        if action == "flood":
            state = "x" * (messages.MAX_BYTES + 1)
        if action == "strange":
            info |= {"strange": object(), "rewards": {"reward": np.float32(0.5)}}
        return state, reward, terminated, truncated, info


class Drawing(corridor.Corridor):
    """A corridor with a random generator, and variations that have no end."""

    deterministic = False
    max_copies = 3

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def step(self, action):
        state, *rest, info = super().step(action)
        return f"{state}\ndrawn {self.rng.integers(1 << 30)}", *rest, info

    def variations(self, task, rng):
        while True:
            number = int(rng.integers(1 << 30))
            yield Task(id=f"v-{number}", instruction="", options=dict(task.options))


class Forking(corridor.Corridor):
    """A corridor that can be copied in the middle of an episode."""

    def fork(self):
        return copy.deepcopy(self)


class SlowToClose(corridor.Corridor):
    """A corridor that does not close within its deadline."""

    step_seconds = 1.0

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "pid": os.getpid()}

    def close(self):
        time.sleep(600)


class Placed(corridor.Corridor):
    """A corridor that tells on which node of a Ray cluster it is."""

    def reset(self, *, seed=None, options=None):
        import ray

        state, info = super().reset(seed=seed, options=options)
        return state, {**info, "node": ray.get_runtime_context().get_node_id()}


class Sleeping(corridor.Corridor):
    """A corridor whose steps take time, but no processor."""

    def step(self, action):
        time.sleep(0.3)
        return super().step(action)


class Unmakeable(corridor.Corridor):
    """An environment whose making fails."""

    def __init__(self):
        raise RuntimeError("no licence")


class LargeStart(corridor.Corridor):
    """An environment that uses 1 GiB from the start."""

    def __init__(self):
        super().__init__()
        self.data = b"x" * (1 << 30)
        time.sleep(5.0)


class StuckStart(corridor.Corridor):
    """A corridor whose making does not end."""

    def __init__(self):
        super().__init__()
        time.sleep(600)


class StuckStartForGood(corridor.Corridor):
    """A corridor whose making does not end and catches what interrupts it."""

    def __init__(self):
        while True:
            with contextlib.suppress(Exception):
                time.sleep(600)


class Stuck(corridor.Corridor):
    """A corridor that can be played, and whose other methods do not return."""

    reset_seconds, step_seconds = 0.2, 5.0

    def tasks(self, split):
        time.sleep(600)
        return super().tasks(split)

    def expert(self):
        time.sleep(600)
        return super().expert()

    def valid_actions(self):
        time.sleep(600)
        return super().valid_actions()

    def variations(self, task, rng):
        del rng
        time.sleep(600)
        yield task

    def render_state(self, state):
        time.sleep(600)
        return "\n".join(state)

    def fork(self):
        time.sleep(600)
        return copy.deepcopy(self)


class Unreliable(corridor.Corridor):
    """A corridor of which one step in thirty breaks, in one of four ways.

    Which one is drawn anew in each process, so that a fault does not come again where
    the episode is played again.
    """

    step_seconds = 1.0
    share = 1 / 30

    def __init__(self):
        super().__init__()
        self._faults = np.random.default_rng()

    def step(self, action):
        fault = ""
        if self._faults.random() < self.share:
            fault = str(self._faults.choice(["kill", "hang", "long", "nan"]))
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "hang":
            time.sleep(600)
        state, reward, terminated, truncated, info = super().step(action)
        if fault == "nan":
            info["rewards"] = {"coin": float("nan")}
        if fault == "long":
            state = "x" * (1 << 20)
        return state, reward, terminated, truncated, info
