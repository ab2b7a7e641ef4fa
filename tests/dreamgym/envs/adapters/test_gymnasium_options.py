"""Gymnasium ids as people write them: arguments, limits, masks, other tables."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamgym.envs import base, registry
from dreamgym.envs.adapters.gymnasium_spaces import observation_lines
from dreamgym.envs.adapters.gymnasium_tables import best_end, shortest_plan
from worldmodel.data.records import Task


class Walk(gymnasium.Env):
    """A walk to the right, with whatever attributes and `info` a test gives it."""

    observation_space = spaces.Discrete(10)
    action_space = spaces.Discrete(3)

    def __init__(self, info=None, **attributes):
        self._info = info or {}
        for name, value in attributes.items():
            setattr(self, name, value)

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        super().reset(seed=seed)
        self.place = 0
        return self.place, dict(self._info)

    def step(self, action):
        self.place = min(self.place + int(action == 2), 9)
        return self.place, 1.0, self.place == 3, False, dict(self._info)


class Broken(Walk):
    def __init__(self, level):
        super().__init__()
        raise KeyError(level)


class Scaled(gymnasium.Wrapper):
    """Gymnasium's FrozenLake behind wrappers that change what it shows or pays."""

    def __init__(self, kind="reward"):
        env = gymnasium.make("FrozenLake-v1", is_slippery=False)
        wrapped = {
            "reward": lambda: gymnasium.wrappers.TransformReward(env, lambda r: 10 * r),
            "observation": lambda: gymnasium.wrappers.TransformObservation(
                env, lambda n: 15 - n, env.observation_space
            ),
            "normalized": lambda: gymnasium.wrappers.NormalizeReward(env),
            "none": lambda: env,
        }
        super().__init__(wrapped[kind]())


@pytest.fixture(autouse=True)
def registered():
    names = {"Walk": Walk, "Broken": Broken, "Scaled": Scaled}
    for name, kind in names.items():
        gymnasium.register(f"{name}-v0", kind)
    yield
    for name in names:
        del gymnasium.registry[f"{name}-v0"]


def begun(monkeypatch, **attributes):
    """Return a started Walk that has these attributes."""
    monkeypatch.setattr(
        gymnasium.registry["Walk-v0"], "kwargs", attributes, raising=True
    )
    env = registry.make("gym:Walk-v0")
    base.begin(env, Task(id="0", instruction="", options={"seed": 0}))
    return env


@pytest.mark.parametrize(
    ("query", "slippery"),
    [("is_slippery=False", False), ("is_slippery=false", False), ("", True)],
)
def test_pythons_words_are_values(query, slippery):
    env = registry.make(f"gym:FrozenLake-v1?{query}" if query else "gym:FrozenLake-v1")
    assert hasattr(env, "expert") != slippery


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:FrozenLake-v1?is_slippery", "expected is_slippery=value"),
        ("gym:FrozenLake-v1?is_slippery=", "expected is_slippery=value"),
        ("gym:FrozenLake-v1?map_name=9x9", "cannot be made: KeyError: '9x9'"),
        ("gym:Broken-v0?level=7", "cannot be made: KeyError: 7"),
    ],
)
def test_what_cannot_be_made_is_an_error_of_the_spec(spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec)


@pytest.mark.parametrize(
    ("attributes", "limit"),
    [
        ({"max_steps": 7}, 7),
        ({"max_steps": np.int64(7)}, 7),
        ({"_max_episode_steps": 8}, 8),
        ({"max_steps": "x"}, None),
        ({"max_steps": True}, None),
    ],
)
def test_a_limit_is_that_of_the_environment_itself(monkeypatch, attributes, limit):
    assert begun(monkeypatch, **attributes).max_episode_steps == limit


@pytest.mark.parametrize(
    "table",
    [
        0.3,
        np.ones((2, 2)),
        [[1]],
        {"a": 1},
        {},
        {0: {0: [(1.0, 1, "much", True)]}},
        {0: {0: []}},
        {0: {0: [(0.0, 0, 1.0, True)]}},  # an action without a result
        {0: {0: [(1.0, 7, 1.0, False)]}},  # leads out of the table
        {0: {5: [(1.0, 0, 1.0, True)]}},  # no action of the space
    ],
)
def test_an_attribute_of_that_name_is_not_always_a_table(monkeypatch, table):
    env = begun(monkeypatch, P=table)
    assert not hasattr(env, "expert")
    steps = [base.take(env, "action 2") for _ in range(3)]
    assert steps[-1].success  # by its last reward


def test_a_table_without_a_place_in_it_has_no_expert(monkeypatch):
    table = {  # a list for each outcome, and ends as numbers, are as good
        s: {a: [[1.0, s + (a == 2), 1.0, int(s + (a == 2) == 3)]] for a in range(3)}
        for s in range(3)
    }
    assert not hasattr(begun(monkeypatch, P=table), "expert")
    assert not hasattr(begun(monkeypatch, P=table, s=5), "expert")  # not in the table
    monkeypatch.setattr(Walk, "s", property(lambda self: self.place), raising=False)
    env = begun(monkeypatch, P=table)
    assert env.expert() == ["action 2"] * 3
    assert env.deterministic


def test_a_table_that_play_contradicts_is_not_believed(monkeypatch):
    """An option may draw lots that the table does not hold."""
    table = {
        s: {a: [(1.0, s + (a == 2), 2.0, s + (a == 2) == 3)] for a in range(3)}
        for s in range(3)
    }  # it pays 1, not 2
    monkeypatch.setattr(Walk, "s", property(lambda self: self.place), raising=False)
    env = begun(monkeypatch, P=table)
    assert not hasattr(env, "expert")
    assert not env.deterministic
    for spec, known in (
        ("gym:Taxi-v4", True),
        ("gym:Taxi-v4?fickle_passenger=True", False),
    ):
        env = registry.make(spec)
        assert hasattr(env, "expert") == env.deterministic == known


def test_a_plan_follows_no_outcome_of_probability_0():
    env = registry.make("gym:FrozenLake-v1?success_rate=1.0")
    base.begin(env, Task(id="0", instruction="", options={"seed": 0}))
    plan = env.expert()
    assert [base.take(env, action).success for action in plan] == [False] * 5 + [True]
    table = {0: {0: ((0.0, 0, 9.0, True), (1.0, 0, 1.0, True))}}
    assert best_end(table) == 1.0
    assert shortest_plan(table, 0, best_end(table)) == [0]


class Refuses(Walk):
    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        raise KeyError("no board")


def test_an_id_whose_reset_raises_is_an_error_of_the_id():
    gymnasium.register("Refuses-v0", Refuses)
    try:
        with pytest.raises(ValueError, match=r"cannot be played: KeyError: 'no board'"):
            registry.make("gym:Refuses-v0")
    finally:
        del gymnasium.registry["Refuses-v0"]


@pytest.mark.parametrize("kind", ["reward", "observation", "normalized", "none"])
def test_a_table_is_not_that_of_an_environment_which_a_wrapper_changes(kind):
    env = registry.make(f"gym:Scaled-v0?kind={kind}")
    base.begin(env, Task(id="0", instruction="", options={"seed": 0}))
    assert hasattr(env, "expert") == (kind == "none")
    way = ["move down", "move down", "move right", "move right", "move down"]
    for action in way:
        base.take(env, action)
    assert base.take(env, "move right").success


@pytest.mark.parametrize("decode", [lambda: 1, lambda _: 1 / 0, lambda _: 5, "word"])
def test_another_kind_of_decode_is_left_alone(monkeypatch, decode):
    env = begun(monkeypatch, decode=decode)
    assert base.take(env, "action 2").state == ("observation 1", "reward 1")


def test_masked_actions_are_not_valid(monkeypatch):
    mask = np.array([0, 1, 1], np.int8)
    env = begun(monkeypatch, info={"action_mask": mask})
    assert env.valid_actions() == ["action 1", "action 2"]
    assert base.take(env, "action 0").invalid
    assert not base.take(env, "action 1").invalid
    for other in (np.ones(2), np.zeros(3)):  # of other actions, or of none
        env = begun(monkeypatch, info={"action_mask": other})
        assert len(env.valid_actions()) == 3


def test_a_mask_of_several_actions_at_once_is_not_read(monkeypatch):
    space = spaces.MultiDiscrete([2, 3])
    mask = (np.array([1, 0], np.int8), np.ones(3, np.int8))
    monkeypatch.setattr(Walk, "action_space", space)
    env = begun(monkeypatch, info={"action_mask": mask})
    assert len(env.valid_actions()) == 6


def test_what_info_says_of_a_step_counts(monkeypatch):
    env = begun(monkeypatch, info={"invalid": True, "reveals": np.True_})
    step = base.take(env, "action 2")
    assert (step.invalid, step.reveals) == (True, True)
    env = begun(monkeypatch, info={"success": None, "is_success": True})
    assert base.take(env, "action 2").success
    env = begun(monkeypatch, info={"success": "false"})
    with pytest.raises(TypeError, match="must be a bool, got 'false'"):
        env.step("action 2")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (12343.0, "12343"),
        (12343.71, "12343.7"),
        (999.6, "999.6"),
        (-0.51239, "-0.5124"),
        (-0.0, "0"),
        (0.000123456, "0.0001235"),
        (float("nan"), "nan"),
        (1e300, "1e+300"),
    ],
)
def test_numbers_have_the_digits_before_the_point(number, text):
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    assert observation_lines(space, np.array([number])) == [f"observation {text}"]
