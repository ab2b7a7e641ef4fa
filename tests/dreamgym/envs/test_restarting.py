"""Environments that are lost: restarted in the same place, or down."""

import pytest

from dreamgym.envs import base, restarting, vector
from dreamgym.envs.failures import EnvironmentDown
from tests import doubles


class Losing(doubles.Corridor):
    """A corridor that loses its connection at some calls, counted over instances."""

    def __init__(self, lost, error=ConnectionError):
        super().__init__()
        self._lost, self._error, self._dead = lost, error, False

    def _check(self):
        if self._lost and (self._lost[0] == 0 or self._dead):
            if not self._dead:
                self._lost.pop(0)
            self._dead = True
        elif self._lost:
            self._lost[0] -= 1
        if self._dead:
            raise self._error("lost")

    def reset(self, **options):
        self._check()
        return super().reset(**options)

    def step(self, action):
        self._check()
        return super().step(action)


def episode(env, task):
    _, state = base.begin(env, task)
    states = [state]
    for action in ("go right", "go right", "go left", "take coin"):
        states.append(base.take(env, action).state)
    return states


def test_a_lost_instance_is_replaced_and_the_episode_is_the_same():
    task = base.tasks_of(doubles.Corridor(), "corridor", "train", 1)[0]
    expected = episode(doubles.Corridor(), task)
    for call in range(5):  # the reset and each step
        made = []

        def make(made=made, call=call):
            made.append(Losing([call] if not made else []))
            return made[-1]

        env = restarting.RestartingEnv(make)
        assert episode(env, task) == expected
        assert len(made) == 2


class Emptying(Losing):
    """A corridor that clears the options of its task once it has begun."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        options["task"].options.clear()
        return result


def test_a_replay_begins_with_the_options_that_the_episode_began_with():
    task = base.tasks_of(doubles.Corridor(), "corridor", "train", 1)[0]
    expected = episode(doubles.Corridor(), task)
    instances = []

    def make():
        instances.append(Emptying([2] if not instances else []))
        return instances[-1]

    assert episode(restarting.RestartingEnv(make), task) == expected
    assert len(instances) == 2


def test_capabilities_are_those_of_the_environment_and_follow_a_restart():
    env = restarting.RestartingEnv(doubles.Corridor)
    assert base.as_tasks(env) is env
    assert base.is_deterministic(env) == base.is_deterministic(doubles.Corridor())
    bare = restarting.RestartingEnv(doubles.Bare)
    for find in (base.as_tasks, base.as_expert, base.as_valid_actions):
        assert find(bare) is find(doubles.Bare())


def test_an_environment_that_does_not_come_back_is_down():
    task = base.tasks_of(doubles.Corridor(), "corridor", "train", 1)[0]
    env = restarting.RestartingEnv(lambda: Losing([0]))
    for _ in range(2):
        with pytest.raises(ConnectionError, match=r"^lost$"):
            base.begin(env, task)
    with pytest.raises(EnvironmentDown, match="Losing is down: 3 games in a row"):
        base.begin(env, task)


def test_another_error_is_one_bad_game_and_no_restart():
    made = []

    def make():
        made.append(Losing([1], ValueError))
        return made[-1]

    env = restarting.RestartingEnv(make)
    base.begin(env, base.tasks_of(env, "corridor", "train", 1)[0])
    with pytest.raises(ValueError, match="lost"):
        base.take(env, "go right")
    assert len(made) == 1


def test_a_batch_that_breaks_every_episode_is_down():
    env = Losing([0], ValueError)
    envs = vector.RealVectorEnv([env], max_steps=5)
    task = base.tasks_of(doubles.Corridor(), "corridor", "train", 1)[0]
    for _ in range(23):
        env._lost, env._dead = [0], False
        envs.reset(options={"tasks": [task]})
        envs.step(["go right"])
    env._lost, env._dead = [0], False
    envs.reset(options={"tasks": [task]})
    with pytest.raises(EnvironmentDown, match="broke 24 episodes in a row"):
        envs.step(["go right"])


def test_copies_are_made_when_a_slot_needs_one():
    made = []

    def make():
        made.append(doubles.Corridor())
        return made[-1]

    envs = vector.RealVectorEnv.growing(make, limit=64, max_steps=5)
    assert (envs.size, len(made)) == (64, 2)
    task = base.tasks_of(made[0], "corridor", "train", 1)[0]
    envs.reset(options={"tasks": [task] * 3 + [None] * 61})
    assert len(made) == 3


def test_copies_that_start_slowly_are_few_and_the_environment_may_say_how_many():
    assert vector.copies_that_pay(0.001, 64) == 64
    assert vector.copies_that_pay(2.0, 64) == 10
    assert vector.copies_that_pay(60.0, 64) == vector.MIN_COPIES
    assert vector.copies_that_pay(60.0, 2) == 2

    class One(doubles.Corridor):
        max_copies = 1

    assert vector.RealVectorEnv.growing(One, limit=64, max_steps=5).size == 1


@pytest.mark.parametrize(("lost", "made"), [(1, 2), (2, 3), (3, 3)])
def test_an_instance_that_is_lost_while_it_starts_is_started_again(lost, made):
    calls = []

    def make():
        calls.append(1)
        if len(calls) <= lost:
            raise ConnectionResetError("lost at the start")
        return doubles.Corridor()

    if lost == 3:
        with pytest.raises(ConnectionError, match="lost at the start"):
            restarting.RestartingEnv(make)
    else:
        restarting.RestartingEnv(make)
    assert len(calls) == made
