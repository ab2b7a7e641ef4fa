"""Deadlines of starts, and of calls that are neither reset nor step."""

import sys
import time

import numpy as np
import pytest

from dreamgym.agent import behavior
from dreamgym.build.real.instances import instance_maker
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, registry, restarting, vector
from dreamgym.envs.failures import EnvironmentDown, EnvironmentTimeout
from dreamgym.envs.workers import connection
from dreamgym.envs.workers.env import process_env
from dreamgym.envs.workers.shared import LocalWorker
from tests import corridor

FAULTS = "tests.dreamgym.envs.workers.faults"
STUCK, STUCK_START = f"{FAULTS}:Stuck", f"{FAULTS}:StuckStart"
TASK = corridor.tasks("train")[0]
CALLS = {
    "tasks": lambda env: env.tasks("train"),
    "expert": lambda env: env.expert(),
    "valid_actions": lambda env: env.valid_actions(),
    "variations": lambda env: next(env.variations(TASK, np.random.default_rng(0))),
    "render_state": lambda env: env.render_state(("at 0",)),
    "fork": lambda env: env.fork(),
}

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no alarms")


def open_env(spec, workers, start_seconds=60.0):
    config = EnvConfig(workers=workers, start_seconds=start_seconds)
    return restarting.open_env(spec, make=instance_maker(config))


@pytest.mark.parametrize(
    "start",
    [
        lambda seconds: open_env(STUCK_START, 0, seconds),
        lambda seconds: open_env(STUCK_START, 1, seconds),
        lambda seconds: LocalWorker(STUCK_START, seconds),  # of several processes
    ],
    ids=["here", "process", "shared"],
)
def test_a_start_that_hangs_says_where_and_which_setting_and_is_not_repeated(start):
    begin = time.monotonic()
    with pytest.raises(EnvironmentTimeout) as error:
        start(0.5)
    assert time.monotonic() - begin < 0.5 + connection.SPARE_SECONDS
    text = str(error.value)
    assert text.startswith(
        f"{STUCK_START} did not start within 0.5 s, it was at faults"
    )
    assert "env.start_seconds" in text


def test_a_start_that_catches_the_alarm_is_ended_by_the_run(monkeypatch):
    monkeypatch.setattr(connection, "SPARE_SECONDS", 0.5)
    with pytest.raises(EnvironmentTimeout, match=r"did not start within 0\.5 s: its"):
        process_env(f"{FAULTS}:StuckStartForGood", start_seconds=0.5)


def test_a_start_without_a_deadline_is_waited_for():
    env = registry.start(f"{FAULTS}:Faulty", seconds=0.0)
    assert base.begin(env, TASK)[1]


@pytest.mark.parametrize("method", CALLS)
def test_every_call_has_a_deadline_that_its_error_explains(method):
    env = open_env(STUCK, workers=0)
    with pytest.raises(EnvironmentTimeout) as error:
        CALLS[method](env)
    assert str(error.value) == (
        f"no answer within 0.6 s from {method}(), which may take 3 times the "
        "`reset_seconds` of its class"
    )


@pytest.mark.parametrize("method", ["expert", "variations"])
def test_a_worker_keeps_the_deadline_itself(method):
    env = process_env(STUCK, start_seconds=60.0)
    base.begin(env, TASK)
    with pytest.raises(EnvironmentTimeout, match=f"within 0.6 s from .*{method[:-1]}"):
        CALLS[method](env)
    with pytest.raises(ConnectionError, match="has ended"):
        base.take(env, "go right")


def game(env, actor):
    play = behavior.play
    return play(env, TASK, actor, max_steps=3, name="e", valid_actions=False)


def test_a_call_that_hangs_ends_its_game_alone_and_is_counted_by_its_type(capsys):
    env = open_env(STUCK, workers=1)
    broken = game(env, lambda *_: env.expert()[0])
    assert broken.success is None
    assert broken.error == (
        "EnvironmentTimeout: no answer within 0.6 s from expert(), which may take 3 "
        "times the `reset_seconds` of its class"
    )
    assert "EnvironmentTimeout" in capsys.readouterr().err
    assert game(env, lambda *_: "go right").error is None
    env.close()


@pytest.mark.medium
def test_games_in_a_row_that_end_with_such_a_call_end_the_stage():
    env = open_env(STUCK, workers=0)
    for _ in range(restarting.PATIENCE - 1):
        assert game(env, lambda *_: env.expert()[0]).error
    with pytest.raises(EnvironmentDown, match=r"3 games in a row .* from expert\(\)"):
        game(env, lambda *_: env.expert()[0])


def test_a_list_that_hangs_breaks_its_episode_and_no_fresh_instance_is_stepped():
    batch = vector.RealVectorEnv([open_env(STUCK, workers=0)], max_steps=3)
    batch.reset(options={"tasks": [TASK]})
    assert batch.valid_actions(0) is None
    (step,) = batch.step(["go right"])
    assert step.error.startswith("EnvironmentTimeout: no answer within 0.6 s")
    batch.reset(options={"tasks": [TASK]})
    (step,) = batch.step(["go right"])
    assert step.error is None
    batch.close()


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_the_setting_is_checked(seconds):
    with pytest.raises(ValueError, match="start_seconds finite and >= 0"):
        EnvConfig(start_seconds=seconds)
