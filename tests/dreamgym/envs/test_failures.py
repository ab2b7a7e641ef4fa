"""The edge to foreign code: deadlines, Ctrl-C that is swallowed, what is down."""

import asyncio
import functools
import inspect
import os
import signal
import sys
import time

import gymnasium
import numpy as np
import pytest

from dreamgym.envs import base
from dreamgym.envs.failures import (
    EnvironmentDown,
    EnvironmentFailure,
    EnvironmentTimeout,
    guarded,
)
from dreamgym.envs.interrupts import check_interrupt, ignore_further, interrupt_handler
from dreamgym.envs.tools.tool_env import ToolEnv
from tests import doubles


def test_a_call_that_hangs_is_ended_and_typed():
    start = time.monotonic()
    failure = guarded(doubles.Corridor(), lambda: time.sleep(30), seconds=0.2)
    assert isinstance(failure, EnvironmentFailure)
    assert isinstance(failure.error, EnvironmentTimeout)
    assert "within 0.2 s" in failure.reason
    assert time.monotonic() - start < 10
    time.sleep(1.2)  # no alarm is left behind


def test_a_call_that_catches_the_alarm_is_still_ended():
    def hangs():
        try:
            time.sleep(30)
        except Exception as error:
            raise RuntimeError("mine") from error

    failure = guarded(doubles.Corridor(), hangs, seconds=0.2)
    assert isinstance(failure, EnvironmentFailure)
    assert isinstance(failure.error, EnvironmentTimeout)


@pytest.mark.parametrize("swallows", [True, False])
def test_ctrl_c_that_an_environment_swallows_is_raised_again(swallows):
    def call():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            if not swallows:  # as py4j's own handler did
                raise AttributeError("socket") from None

    with interrupt_handler():
        with pytest.raises(KeyboardInterrupt):
            guarded(doubles.Corridor(), call)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    check_interrupt()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: sys.exit(0)])
def test_a_handler_that_an_environment_installs_does_not_stay(handler):
    with interrupt_handler():
        ours = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, handler)  # as its __init__ did
        assert guarded(doubles.Corridor(), lambda: signal.getsignal(2)) is ours
        guarded(doubles.Corridor(), lambda: signal.signal(signal.SIGINT, handler))
        assert signal.getsignal(signal.SIGINT) is ours

        def fails():
            signal.signal(signal.SIGINT, handler)
            raise ValueError

        guarded(doubles.Corridor(), fails)
        assert signal.getsignal(signal.SIGINT) is ours
        ignore_further()
        guarded(doubles.Corridor(), list)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_without_our_handler_an_environment_may_install_its_own():
    before = signal.getsignal(signal.SIGINT)
    try:
        guarded(doubles.Corridor(), lambda: signal.signal(signal.SIGINT, fake_handler))
        assert signal.getsignal(signal.SIGINT) is fake_handler
    finally:
        signal.signal(signal.SIGINT, before)


def fake_handler(number, frame):
    del number, frame


def test_an_environment_that_ends_the_process_is_a_bad_game():
    failure = guarded(doubles.Corridor(), lambda: sys.exit(3))
    assert failure.reason == "RuntimeError: it called sys.exit(3)"
    assert failure.place.startswith("test_failures.py:")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncio.CancelledError("stop"), "it raised CancelledError: stop"),
        (
            BaseExceptionGroup("two", [SystemExit(1)]),
            "it raised BaseExceptionGroup: two",
        ),
    ],
)
def test_what_is_no_exception_is_a_bad_game(error, reason):
    def call():
        raise error

    failure = guarded(doubles.Corridor(), call)
    assert failure.reason.startswith(f"RuntimeError: {reason}")
    assert failure.place.startswith("test_failures.py:")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_what_is_no_fault_of_an_environment_passes_through(error):
    def call():
        raise error

    with pytest.raises(error):
        guarded(doubles.Corridor(), call)


def test_the_place_of_a_wrong_argument_is_the_line_of_the_user():
    env = ToolEnv()
    finish = inspect.unwrap(ToolEnv.finish)  # without the tests' check of type hints
    failure = guarded(env, lambda: finish(env, "yes"))
    assert failure.reason.startswith("TypeError: finish() expected a bool")
    assert failure.place.startswith("test_failures.py:")
    # Where no method of a user stands between, it is our own line.
    failure = guarded(env, functools.partial(env.step, "stop"))
    assert failure.reason.startswith("RuntimeError: step() needs a running episode")
    assert failure.place.startswith("tool_env.py:")
    wrapped = gymnasium.Wrapper(env)
    failure = guarded(env, functools.partial(wrapped.step, "stop"))
    assert failure.place.startswith("tool_env.py:")


def test_an_environment_that_is_down_is_no_bad_game():
    def down():
        raise EnvironmentDown("it is gone")

    with pytest.raises(EnvironmentDown, match="it is gone"):
        guarded(doubles.Corridor(), down)


def test_a_text_that_is_too_long_is_refused_before_it_is_a_state():
    class Long(doubles.Corridor):
        def step(self, action):
            _, *rest = super().step(action)
            return ("x" * (base.MAX_CHARACTERS + 1), *rest)

    env = Long()
    task = base.tasks_of(env, "long", "train", 1)[0]
    base.begin(env, task)
    with pytest.raises(base.TextTooLong, match="100,001 characters"):
        base.take(env, "go right")


def test_alarms_that_a_call_sets_up_stay_as_it_left_them():
    rings = []
    before = signal.getsignal(signal.SIGALRM)
    try:
        guarded(
            doubles.Corridor(),
            lambda: signal.signal(signal.SIGALRM, lambda *_: rings.append(1)),
            seconds=0.2,
        )
        time.sleep(0.4)
        assert rings == []  # the deadline rings no more
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        time.sleep(0.2)
        assert rings == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_an_environment_asks_of_numpy_stays_its_own():
    def step():
        np.seterr(all="raise")
        return np.exp(np.float32(1.0))

    before = np.geterr()
    assert guarded(doubles.Corridor(), step) > 2
    assert np.geterr() == before
