"""Environments in worker processes: equal episodes; a fault ends its own alone."""

import os
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from dreamgym.build.real.instances import instance_maker
from dreamgym.config.stages import EnvConfig
from dreamgym.envs import base, restarting, vector
from dreamgym.envs.counting import BudgetSpent, CountedEnv, RealSteps
from dreamgym.envs.failures import EnvironmentTimeout
from dreamgym.envs.workers import memory, messages
from dreamgym.envs.workers.env import process_env
from tests import corridor
from tests.dreamgym.envs.workers import faults
from worldmodel.data.records import Task

FAULTS = "tests.dreamgym.envs.workers.faults"
CORRIDOR = "tests.corridor:Corridor"
PLAN = ("go right", "go right", "go left", "take coin")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pass_fds")


FAULTY = f"{FAULTS}:Faulty"


@pytest.fixture
def opened():
    """Open environments that are closed after the test."""
    envs = []

    def open_one(spec=FAULTY, start_seconds=60.0, **options):
        envs.append(process_env(spec, start_seconds=start_seconds, **options))
        return envs[-1]

    yield open_one
    for env in envs:
        env.close()


def task_of(env):
    return base.tasks_of(env, "corridor", "train", 1)[0]


def episode(env, task):
    task, state = base.begin(env, task)
    steps = [state]
    for action in PLAN:
        steps.append(base.take(env, action))
        steps.append(env.valid_actions() if base.as_valid_actions(env) else None)
    return task, steps


def test_an_episode_is_that_of_the_environment_in_this_process(opened):
    here, there = corridor.Corridor(), opened(CORRIDOR)
    assert base.tasks_of(there, "c", "dev", 9) == base.tasks_of(here, "c", "dev", 9)
    task = task_of(here)
    assert episode(there, task) == episode(here, task)
    base.begin(here, task), base.begin(there, task)
    assert list(there.expert()) == list(here.expert())
    assert type(there).__name__ == "Corridor"
    assert base.is_deterministic(there)
    assert not base.plans_from_any_state(there)


def test_an_expert_in_a_worker_plans_from_any_state(opened):
    env = opened("tests.corridor:PlansAnywhere")
    assert base.plans_from_any_state(env)
    task = corridor.task(1, 3, 5)
    base.begin(env, task)
    base.take(env, "go right")
    assert list(env.expert()) == ["go right", "take coin"]


def test_a_worker_offers_no_method_that_the_environment_lacks(opened):
    env = opened(CORRIDOR)
    for name in restarting.CAPABILITIES:
        here = base.provider(corridor.Corridor(), name)
        assert (base.provider(env, name) is None) == (here is None), name


def test_a_fork_goes_on_alone(opened):
    env = opened(f"{FAULTS}:Forking")
    forkable = base.as_forkable(env)
    assert forkable is not None
    base.begin(env, task_of(env))
    fork = forkable.fork()
    states = [base.take(env, a).state for a in PLAN[:2]]
    assert [base.take(fork, a).state for a in PLAN[:2]] == states
    env.close()  # the process goes on with the fork
    base.take(fork, PLAN[2])
    fork.close()
    with pytest.raises(ConnectionError):
        base.take(fork, PLAN[2])


def test_random_generators_are_seeded_in_the_worker(opened):
    def drawn(env):
        base.begin(env, task_of(env))
        base.seed_anew(env, 7)
        return base.take(env, "go right").state

    env = opened(f"{FAULTS}:Drawing")
    assert not base.is_deterministic(env)
    assert env.unwrapped.max_copies == 3
    assert drawn(env) == drawn(env) == drawn(faults.Drawing())


def test_variations_draw_from_the_generator_of_the_caller(opened):
    env, rng = opened(f"{FAULTS}:Drawing"), np.random.default_rng(1)
    here, own = faults.Drawing(), np.random.default_rng(1)
    for _ in range(3):  # one of each, as the curriculum takes them
        varied = next(iter(env.variations(task_of(env), rng)))
        assert varied == next(iter(here.variations(task_of(env), own)))
    assert rng.integers(1 << 30) == own.integers(1 << 30)


@pytest.mark.parametrize(
    ("action", "error", "text"),
    [
        ("divide", ZeroDivisionError, "division by zero"),
        ("sys.exit", RuntimeError, "sys.exit"),
        ("cancel", RuntimeError, "^it raised CancelledError: stop$"),
        ("long", base.TextTooLong, "1,048,576"),
        ("flood", base.TextTooLong, "MiB"),
        ("nan", FloatingPointError, "nan"),
        ("key", KeyError, "^'door'$"),
        ("disconnect", ConnectionResetError, "^RemoteDisconnected: closed$"),
        ("child", ConnectionError, "signal 9"),
        ("fork", ConnectionError, "signal 9"),
        ("crash", ConnectionError, "SIGSEGV|Segmentation"),
        ("exit", ConnectionError, "exit status 3"),
    ],
)
def test_a_fault_is_an_error_with_its_type_and_reason(opened, action, error, text):
    env = opened()
    base.begin(env, task_of(env))
    with pytest.raises(error, match=text):
        base.take(env, action)


def test_an_error_names_the_line_of_the_environment(opened):
    env = opened()
    base.begin(env, task_of(env))
    failure = base.guarded(env, lambda: base.take(env, "divide"))
    assert isinstance(failure, base.EnvironmentFailure)
    assert failure.place.startswith("faults.py:")
    assert failure.environment == "Faulty"


def test_what_json_cannot_hold_is_left_out_of_the_info(opened):
    env = opened()
    base.begin(env, task_of(env))
    *_, info = env.step("strange")
    assert "strange" not in info
    assert base.take(env, "strange").rewards == {"reward": 0.5}


def test_output_of_the_environment_is_no_message(opened):
    env = opened()
    base.begin(env, task_of(env))
    assert base.take(env, "print").state == base.take(env, "look").state


@pytest.mark.parametrize("action", ["eat", "eat in a child"])
def test_memory_is_limited(opened, action):
    env = opened(memory_gb=0.5)
    base.begin(env, task_of(env))
    with pytest.raises(MemoryError, match=r"env\.worker_memory_gb = 0\.5"):
        base.take(env, action)
    with pytest.raises(ConnectionError, match="worker_memory_gb"):  # it has ended
        base.begin(env, task_of(env))


def test_a_start_that_takes_too_much_memory_says_so():
    with pytest.raises(MemoryError, match=r"env\.worker_memory_gb = 0\.5"):
        process_env(f"{FAULTS}:LargeStart", memory_gb=0.5, start_seconds=60.0)


def test_memory_that_is_only_reserved_does_not_count(opened):
    env = opened(memory_gb=0.5)
    base.begin(env, task_of(env))
    base.take(env, "reserve")
    time.sleep(1.0)
    base.take(env, "look")


def test_no_memory_limit_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "PROC", tmp_path)
    with pytest.raises(ValueError, match="worker_memory_gb = 2 needs Linux"):
        process_env(FAULTY, memory_gb=2.0, start_seconds=60.0)


def test_an_environment_that_cannot_be_made_says_why():
    with pytest.raises(ValueError, match=r"Unmakeable.*no licence"):
        process_env(f"{FAULTS}:Unmakeable", start_seconds=60.0)


def test_the_worker_ends_when_it_is_closed(opened):
    env = opened()
    base.begin(env, task_of(env))
    pid = env.step("pid")[-1]["pid"]
    env.close()
    assert has_ended(pid)


def restarting_env(spec=FAULTY, steps=None):
    return restarting.open_env(
        spec,
        lambda env: CountedEnv(env, RealSteps() if steps is None else steps),
        instance_maker(EnvConfig(workers=1)),
    )


def test_a_killed_worker_is_replaced_in_the_same_place():
    env, here = restarting_env(), corridor.Corridor()
    task = task_of(here)
    expected = episode(here, task)
    task, state = base.begin(env, task)
    steps = [state]
    for action in PLAN:
        process = env.unwrapped._worker._process
        process.kill()
        process.wait()
        steps.append(base.take(env, action))
        steps.append(env.valid_actions())
    env.close()
    assert (task, steps) == expected


@pytest.mark.medium
def test_a_hanging_worker_is_replaced_after_its_deadline():
    env = restarting_env()
    base.begin(env, task_of(env))
    start = time.monotonic()
    with pytest.raises(EnvironmentTimeout, match="2 s"):
        base.take(env, "hang")
    assert time.monotonic() - start < 30
    base.begin(env, task_of(env))
    assert base.take(env, "go right").error is None
    env.close()


def batch(spec, copies, steps=None):
    return vector.RealVectorEnv(
        [restarting_env(spec, steps) for _ in range(copies)], max_steps=16
    )


def test_copies_in_workers_work_at_the_same_time():
    envs = batch(f"{FAULTS}:Sleeping", 4)
    task = task_of(corridor.Corridor())
    envs.reset(options={"tasks": [task] * 4})
    start = time.monotonic()
    result = envs.step(["go right"] * 4)
    seconds = time.monotonic() - start
    envs.close()
    assert len({s.state for s in result}) == 1
    assert seconds < 1.0  # one after the other they take 1.2


def test_a_fault_ends_its_own_episode_alone_and_steps_are_counted():
    steps = RealSteps()
    envs = batch(FAULTY, 4, steps)
    tasks = [task_of(corridor.Corridor())] * 4
    envs.reset(options={"tasks": tasks})
    result = envs.step(["go right", "divide", "nan", "long"])
    assert [s.error is None for s in result] == [True, False, False, False]
    assert [s.error and s.error.split(":")[0] for s in result[1:]] == [
        "ZeroDivisionError",
        "FloatingPointError",
        "TextTooLong",
    ]
    assert steps.count == 4
    states = envs.reset(options={"tasks": tasks})
    assert len(set(states)) == 1
    assert envs.step(["go right"] * 4)[1].error is None
    envs.close()


@pytest.mark.medium
def test_deadlines_count_from_when_a_step_was_begun():
    envs = batch(FAULTY, 3)
    envs.reset(options={"tasks": [task_of(corridor.Corridor())] * 3})
    start = time.monotonic()
    result = envs.step(["hang"] * 3)
    seconds = time.monotonic() - start
    envs.close()
    assert all("no answer within 2 s" in s.error for s in result)
    assert seconds < 5.5  # one after the other they take 6, and restarts


def test_an_error_of_the_environment_keeps_its_message(opened):
    env = opened()
    base.begin(env, task_of(env))
    with pytest.raises(EnvironmentTimeout, match=r"^the page did not load$"):
        base.take(env, "late page")


def test_no_step_is_begun_after_the_last_one_of_a_budget():
    steps = RealSteps()
    envs = batch(CORRIDOR, 3, steps)
    envs.reset(options={"tasks": [task_of(corridor.Corridor())] * 3})
    steps.limit = 2
    result = envs.step(["go right"] * 3)
    envs.close()
    assert steps.count == 2
    assert [s.error is None for s in result] == [True, True, False]
    assert BudgetSpent.__name__ in result[2].error


def test_settings_of_workers_are_checked():
    with pytest.raises(ValueError, match="workers"):
        EnvConfig(workers=-1)
    with pytest.raises(ValueError, match="worker_memory_gb"):
        EnvConfig(worker_memory_gb=float("inf"))


@pytest.mark.parametrize("value", [{"a": object()}, {"o": {1, 2}}])
def test_only_json_can_be_sent(value):
    with pytest.raises(TypeError):
        messages.encode(value)
    assert messages.plain_info({"x": 1, **value}) == {"x": 1}


def test_a_task_keeps_its_fields():
    task = Task(
        id="t\ud800", instruction="x", options={"n": [1, None]}, initial_state=("a",)
    )
    assert messages.decode(messages.encode({"task": task})) == {"task": task}


def test_a_closed_fork_does_not_disturb_a_call_that_was_begun(opened):
    env = opened(f"{FAULTS}:Forking")
    base.begin(env, task_of(env))
    env.fork().close()
    env.start_step("go right")
    assert env.step("go right")[0] == env.step("look")[0].replace(
        "unknown action", "ok"
    )


def test_another_call_than_the_begun_one_ends_the_worker(opened):
    env = opened()
    base.begin(env, task_of(env))
    env.start_step("go right")
    with pytest.raises(ConnectionError, match="another call was begun"):
        env.step("go left")


def test_a_wrapper_that_changes_actions_is_asked_itself():
    class Backwards(gymnasium.ActionWrapper):
        def action(self, action):
            return {"go right": "go left"}.get(action, action)

    task = task_of(corridor.Corridor())
    there, here = Backwards(restarting_env()), Backwards(corridor.Corridor())
    results = []
    for env in (there, here):
        envs = vector.RealVectorEnv([env], max_steps=16)
        envs.reset(options={"tasks": [task]})
        results.append(envs.step(["go right"]))
    there.close()
    assert results[0] == results[1]


def test_rewards_and_costs_are_numbers_whatever_their_type(opened):
    env, here = opened(), faults.Faulty()
    for player in (env, here):
        base.begin(player, task_of(here))
    assert base.take(env, "fraction") == base.take(here, "fraction")


def test_an_environment_that_does_not_close_is_ended():
    env = restarting_env(f"{FAULTS}:SlowToClose")
    base.begin(env, task_of(env))
    pid = env.step("look")[-1]["pid"]
    env.close()
    assert has_ended(pid)


def test_what_an_environment_started_ends_with_the_run():
    assert_ends("env.step('sleeper')[-1]['pid']", "")


def test_modules_are_those_of_the_run(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('not this one')")
    program = (
        "import sys; sys.path[:] = sys.argv[1:]\n"
        "from dreamgym.envs.workers.env import process_env\n"
        f"process_env({CORRIDOR!r}, start_seconds=60.0).close()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *sys.path],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.medium
def test_a_worker_ends_with_its_run():
    assert_ends("env.step('pid')[-1]['pid']", "env.start_step('hang')")


def assert_ends(pid, last):
    """Assert that a process which a worker names ends where its run is killed."""
    program = (
        "import os, signal\n"
        "from dreamgym.envs.workers.env import process_env\n"
        f"env = process_env({FAULTY!r}, start_seconds=60.0)\n"
        "env.reset(seed=0)\n"
        f"print({pid}, flush=True)\n"
        f"{last}\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    number = int(run.stdout)
    deadline = time.monotonic() + 30
    while not has_ended(number) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert has_ended(number)


def has_ended(pid):
    """Whether a process has ended, whoever has waited for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    command = Path(f"/proc/{pid}/cmdline")  # empty for one that nobody waited for
    return Path("/proc/self").exists() and command.read_bytes() == b""
