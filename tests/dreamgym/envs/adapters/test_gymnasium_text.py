"""Gymnasium ids without an adapter: texts, success, plans, splits, refusals."""

import enum

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamgym.envs import base, limits, registry
from dreamgym.envs.adapters.gymnasium_spaces import (
    action_texts,
    observation_lines,
    unsupported_observation,
)
from dreamgym.envs.contract import checker
from worldmodel.data.records import Task

SLIPPERY = "gymnasium:FrozenLake-v1"
FROZEN = "gymnasium:FrozenLake-v1?is_slippery=false"


def task(seed=0):
    return Task(id=str(seed), instruction="", options={"seed": seed})


def begun(spec, seed=0):
    env = registry.make(spec)
    return env, *base.begin(env, task(seed))


def newest(name):
    return max(s for s in gymnasium.registry if s.startswith(f"{name}-v"))


def test_observations_are_numbers_and_actions_have_names():
    env, begun_task, state = begun(FROZEN)
    assert begun_task.instruction == "win FrozenLake"
    assert state == ("observation 0", "reward 0")
    assert env.valid_actions() == ["move left", "move down", "move right", "move up"]
    assert base.take(env, "move right").state == ("observation 1", "reward 0")
    step = base.take(env, "go left")
    assert (step.state[-1], step.invalid, step.terminated) == (
        "unknown action",
        True,
        False,
    )


def test_a_tuple_is_its_numbers_and_decode_its_parts():
    _, _, state = begun("gymnasium:Blackjack-v1", seed=1)
    assert state[0].startswith("observation ")
    assert len(state[0].split()) == 4
    env, _, state = begun(f"gymnasium:{newest('Taxi')}")
    number = int(state[0].split()[1])
    parts = list(env._env.unwrapped.decode(number))
    assert state[1] == f"parts {' '.join(map(str, parts))}"


@pytest.mark.parametrize(
    ("spec", "last_reward"),
    [
        (FROZEN, 1.0),
        (f"gymnasium:{newest('Taxi')}", 20.0),
        (f"gymnasium:{newest('CliffWalking')}", -1.0),
    ],
)
def test_the_shortest_plan_wins_whatever_an_end_pays(spec, last_reward):
    env, *_ = begun(spec, seed=3)
    plan = env.expert()
    steps = [base.take(env, action) for action in plan]
    assert (steps[-1].terminated, steps[-1].success) == (True, True)
    assert sum(steps[-1].rewards.values()) == last_reward
    assert base.plans_from_any_state(env)
    assert not any(s.success for s in steps[:-1])
    with pytest.raises(RuntimeError):
        env.step(plan[0])


def test_a_hole_is_an_end_without_success():
    env, *_ = begun(FROZEN)
    for action in ("move down", "move right"):  # into the hole at 5
        step = base.take(env, action)
    assert (step.state[0], step.terminated, step.success) == (
        "observation 5",
        True,
        False,
    )


def test_who_draws_lots_says_so_and_has_no_expert():
    for spec in (SLIPPERY, "gymnasium:Blackjack-v1"):
        env = registry.make(spec)
        assert not base.is_deterministic(env)
        assert base.as_expert(env) is None
    assert base.as_expert(registry.make(FROZEN)) is not None


def test_success_without_a_table_is_a_positive_last_reward():
    wins = 0
    for seed in range(30):
        env, *_ = begun("gymnasium:Blackjack-v1", seed)
        step = base.take(env, "stick")
        assert step.terminated
        assert step.success == (sum(step.rewards.values()) > 0)
        wins += step.success
    assert 0 < wins < 30


class Jugs(gymnasium.Env):
    """A sum that is poured to and fro, which draws no lots."""

    observation_space = gymnasium.spaces.Discrete(40)
    action_space = gymnasium.spaces.Discrete(2)
    deterministic = True

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.at = int(self.np_random.integers(40))
        return self.at, {}

    def step(self, action):
        self.at = (self.at + (1, 7)[action]) % 40
        return self.at, float(self.at == 0), self.at == 0, False, {}


class Lots(Jugs):
    deterministic = False


class Silent(Jugs):
    deterministic = None


@pytest.mark.parametrize(
    ("kind", "known"), [(Jugs, True), (Lots, False), (Silent, False)]
)
def test_an_environment_without_a_table_may_say_that_it_draws_no_lots(kind, known):
    name = f"{kind.__name__}-v0"
    gymnasium.register(name, kind, max_episode_steps=20)
    try:
        env = registry.make(f"gymnasium:{name}")
        assert base.is_deterministic(env) == known
        unknown = kind is Silent  # what is collected decides
        assert (base.declared_determinism(env) is None) == unknown
        assert base.as_expert(env) is None
        starts = [
            {base.begin(env, t)[1] for t in env.tasks(s)[:60]} for s in base.SPLITS
        ]
        assert (not starts[0] & starts[2]) == known
    finally:
        del gymnasium.registry[name]


def test_starts_of_a_deterministic_environment_are_split():
    env = registry.make(f"gymnasium:{newest('Taxi')}")
    starts = {}
    for split in base.SPLITS:
        tasks = env.tasks(split)
        starts[split] = {base.begin(env, t)[1] for t in tasks}
        assert len(starts[split]) == len(tasks)
    assert len(starts["train"]) > 5 * len(starts["dev"]) > 50
    assert not starts["train"] & starts["test"]
    assert not starts["train"] & starts["dev"]


def test_the_limit_is_that_of_the_plans_or_the_declared_one():
    taxi = registry.make(f"gymnasium:{newest('Taxi')}")
    assert 24 <= limits.step_limit(taxi, taxi.tasks("train")).steps <= 40
    slippery = registry.make(SLIPPERY)
    assert limits.step_limit(slippery, slippery.tasks("train")).steps == 100


def test_nonsense_is_truncated_at_the_declared_limit():
    env, *_ = begun(FROZEN)
    ends = [base.take(env, "dance") for _ in range(100)]
    assert [e.truncated for e in ends] == [False] * 99 + [True]
    with pytest.raises(RuntimeError):
        env.step("dance")


@pytest.mark.parametrize(
    "spec",
    [
        FROZEN,
        SLIPPERY,
        "gymnasium:Blackjack-v1",
        f"gymnasium:{newest('Taxi')}",
        "gym:CartPole-v1",
        "gym:Echo-v0",
    ],
)
def test_they_keep_the_contract(spec):
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == (), report.text(spec)
    alike = [w for w in report.warnings if "same instruction and first state" in w.what]
    has_starts = ("Taxi", "CartPole")  # the others begin at one state, or at few
    assert bool(alike) != any(name in spec for name in has_starts)


class Turn(enum.IntEnum):
    left = 0
    go_on = 1


class Mission(spaces.Space):
    """A space of texts, as MiniGrid has one."""

    def sample(self, mask=None, probability=None):  # noqa: ARG002
        return "reach the door"

    def contains(self, x):
        return isinstance(x, str)


class House(gymnasium.Env):
    """An environment whose observation is a Dict, and which says what succeeded."""

    observation_space = spaces.Dict(
        agent=spaces.Box(0, 4, (2,), np.int64),
        grid=spaces.Box(0.0, 1.0, (2, 3), np.float32),
        inside=spaces.Dict(door=spaces.Discrete(2), letter=spaces.Text(20)),
        pair=spaces.Tuple((spaces.Discrete(3), spaces.Text(9))),
        mission=Mission(),
    )
    action_space = spaces.Discrete(2)
    actions = Turn
    success_key = "success"

    def _observation(self):
        grid = np.array([[0, 0.5, 1], [0.125, 0, 0]], np.float32)
        inside = {"door": 1, "letter": "dear you\nbye"}
        return {
            "agent": np.array([0, 3]),
            "grid": grid,
            "inside": inside,
            "pair": (2, "x y"),
            "mission": "reach the door",
        }

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        return self._observation(), {}

    def step(self, action):
        done = action == Turn.go_on
        return self._observation(), -1.0, done, False, {self.success_key: done}


class Robot(House):
    """The same, with several actions at once, and another word for success."""

    action_space = spaces.Dict(
        arm=spaces.Discrete(2), wheels=spaces.Tuple((spaces.Discrete(3),) * 2)
    )
    success_key = "is_success"

    def step(self, action):
        assert self.action_space.contains(action)
        return super().step(int(action["arm"] == 1 and action["wheels"] == (2, 0)))


class Echo(gymnasium.Env):
    """An environment that takes and gives text; success is a return of three."""

    observation_space = spaces.Text(100, charset="abcdefgh \n")
    action_space = spaces.Text(4, charset="abc")

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        return "a bad\nface", {}

    def step(self, action):
        return action, float(action == "abc"), action == "cab", False, {}


class Picture(House):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)


@pytest.fixture(autouse=True)
def registered():
    names = {"House": House, "Robot": Robot, "Echo": Echo, "Picture": Picture}
    for name, kind in names.items():
        threshold = 3.0 if kind is Echo else None
        gymnasium.register(
            f"{name}-v0", kind, reward_threshold=threshold, max_episode_steps=5
        )
    yield
    for name in names:
        del gymnasium.registry[f"{name}-v0"]


def test_a_dictionary_has_a_line_for_each_part():
    env, begun_task, state = begun("gym:House-v0")
    assert begun_task.instruction == "reach the door"
    assert state == (
        "agent 0 3",
        "grid 0 0.5 1",
        "grid 0.125 0 0",
        "inside door 1",
        "inside letter dear you",
        "inside letter bye",
        "pair 0 2",
        "pair 1 x y",
        "mission reach the door",
        "reward 0",
    )
    assert env.valid_actions() == ["left", "go on"]
    assert not base.take(env, "left").success
    last = base.take(env, "go on")
    assert (last.terminated, last.success) == (True, True)  # though it costs


def test_several_actions_at_once_are_listed_by_name():
    env, *_ = begun("gym:Robot-v0")
    assert len(env.valid_actions()) == 18
    assert not base.take(env, "arm 0 wheels 2 0").success
    assert base.take(env, "arm 1 wheels 2").invalid
    assert base.take(env, "arm 1 wheels 2 0").success


def test_texts_are_taken_as_they_are_and_a_threshold_is_of_the_return():
    env, _, state = begun("gym:Echo-v0")
    assert state == ("a bad", "face", "reward 0")
    assert base.as_valid_actions(env) is None
    assert base.take(env, "hello").invalid  # not in the space
    for _ in range(2):
        assert base.take(env, "abc").state == ("abc", "reward 1")
    step = base.take(env, "cab")
    assert (step.terminated, step.success) == (True, False)
    env, *_ = begun("gym:Echo-v0")
    steps = [base.take(env, "abc") for _ in range(5)]
    assert [s.success for s in steps] == [False] * 4 + [True]
    assert steps[-1].truncated


def test_a_fall_of_the_pole_is_no_success():
    """CartPole pays for each step, also for the one with which it ends."""
    env, *_ = begun("gym:CartPole-v1")
    steps = [base.take(env, "push cart to the left")]
    while not steps[-1].terminated:
        steps.append(base.take(env, "push cart to the left"))
    assert sum(steps[-1].rewards.values()) == 1
    assert not any(s.success for s in steps)


def test_refused_actions_do_not_save_a_return():
    """MountainCar costs 1 a step, and succeeds with a return of -110."""
    env, *_ = begun("gym:MountainCar-v0")
    steps = [base.take(env, "nonsense") for _ in range(100)]
    steps += [base.take(env, "don't accelerate") for _ in range(100)]
    assert steps[-1].truncated
    assert not any(s.success for s in steps)


def test_spaces_of_many_numbers_are_refused_and_nested_ones_flattened():
    nested = spaces.Tuple((spaces.Discrete(3), spaces.MultiDiscrete([2, 2])))
    assert unsupported_observation(nested) is None
    lines = observation_lines(nested, (2, np.array([0, 1])))
    assert lines == ["observation 2 0 1"]
    assert unsupported_observation(spaces.MultiBinary(10_000)) is not None
    for space in (spaces.MultiBinary(64), spaces.MultiBinary(63)):
        env = House()
        env.action_space = space
        with pytest.raises(ValueError, match="at most 200 actions"):
            action_texts(env)


def test_names_that_do_not_fit_the_space_are_left_out(monkeypatch):
    monkeypatch.setattr(House, "action_space", spaces.Discrete(3))
    env, *_ = begun("gym:House-v0")
    assert env.valid_actions() == ["action 0", "action 1", "action 2"]
    env = registry.make("gym:Acrobot-v1")  # a table in its documentation, no list
    assert env.valid_actions() == ["action 0", "action 1", "action 2"]


def test_a_rendering_marks_where_the_agent_is():
    env, _, state = begun(f"{FROZEN}&render_mode=ansi")
    assert state == ("observation 0", "[S]FFF", "FHFH", "FFFH", "HFFG", "reward 0")
    assert base.take(env, "move down").state[2:4] == ("SFFF", "[F]HFH")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gymnasium:Pendulum-v1", "at most 200 actions.*got Box.*write an adapter"),
        ("gym:Picture-v0", "a small Box, .*got Box.*write an adapter"),
        ("gymnasium:Nothing-v1", "doesn't exist"),
        ("gymnasium:FrozenLake-v1?colour=red", "colour"),
    ],
)
def test_what_cannot_be_text_is_refused_with_the_reason(spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec)
