"""Tasks by split, what an environment tells of them, one step as a record."""

import dataclasses
import json
import math

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from dreamgym.envs import base
from tests import doubles
from worldmodel.data.records import Transition


def test_text_of_any_kind_is_in_the_space():
    space = base.AnyText(5)
    assert "a b\n☃"[:5] in space
    assert "" in space
    assert "abcdef" not in space
    assert 3 not in space
    assert space == base.AnyText(5) != base.AnyText(6)
    assert "a b" not in spaces.Text(5)  # why there is a space of our own
    space.seed(0)
    words = [space.sample() for _ in range(5)]
    assert len(set(words)) > 1
    space.seed(0)
    assert words == [space.sample() for _ in range(5)]


def test_a_text_environment_has_its_spaces_whether_or_not_init_was_called():
    class Own(base.TextEnv):
        def __init__(self):
            self.opened = True

    env, other = Own(), Own()
    assert env.action_space == base.AnyText(200)
    assert env.observation_space == base.AnyText()
    assert env.action_space is env.action_space is not other.action_space


def test_tasks_of_an_environment_are_its_own_up_to_a_count():
    env = doubles.Corridor()
    got = base.tasks_of(env, "c", "dev", 4)
    assert got == list(doubles.tasks("dev")[:4])
    with pytest.raises(ValueError, match=r"split must be one of .*got 'valid'"):
        base.tasks_of(env, "c", "valid", 4)


def test_a_reset_without_a_task_draws_a_train_task_by_its_seed():
    env, (dev, *_) = doubles.Corridor(), doubles.tasks("dev")
    assert base.task_to_start(env, {"task": dev}) is dev
    drawn = []
    for seed in (1, 1, 2, 3, 4):
        env.reset(seed=seed, options={"task": dev})
        drawn.append(base.task_to_start(env, None if seed == 1 else {}))
    assert drawn[0] == drawn[1]
    assert len({task.id for task in drawn}) > 2
    assert {task.split for task in drawn} == {"train"}


def test_an_environment_without_tasks_has_seeds_that_never_meet():
    env = doubles.Bare()
    result = {s: base.tasks_of(env, "bare", s, 50) for s in base.SPLITS}
    seeds = [t.options["seed"] for tasks in result.values() for t in tasks]
    names = [t.id for tasks in result.values() for t in tasks]
    assert len(set(seeds)) == len(set(names)) == 150
    assert {t.split for t in result["dev"]} == {"dev"}
    assert {t.env for t in result["dev"]} == {"bare"}


def test_begin_hands_over_seed_and_task_and_keeps_what_was_told():
    calls = []

    class Told(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            calls.append((seed, options))
            return "one  \n\n two\n", {"instruction": "do it"}

    (task,) = base.tasks_of(doubles.Bare(), "bare", "test", 1)
    got, state = base.begin(Told(), task)
    assert calls == [(20_000_000, {"task": task})]
    assert state == ("one", " two")
    assert got.initial_state == state
    assert (got.id, got.instruction) == (task.id, "do it")
    named = base.begin(Told(), doubles.task(0, 1, 2))[0]
    assert named.instruction == "take the coin"  # the task's own words come first


def test_an_episode_writes_into_a_copy_of_its_options():
    class Emptying(doubles.Corridor):
        def reset(self, *, seed=None, options=None):
            result = super().reset(seed=seed, options=options)
            options["task"].options.clear()
            return result

    task = doubles.task(0, 1, 2)
    before = dict(task.options)
    first = base.begin(Emptying(), task)
    assert task.options == before
    assert base.begin(Emptying(), task) == first


class Fixed(doubles.Corridor):
    """Answers every step with the same thing."""

    def __init__(self, *answer):
        super().__init__()
        self.answer = answer

    def step(self, action):
        del action
        return ("x\n", *self.answer)


@pytest.mark.parametrize(
    ("answer", "earned", "won"),
    [
        ((1.0, True, False, {}), 0.0, True),
        ((0.0, True, False, {}), 0.5, True),  # the return counts, not the last reward
        ((-1.0, True, False, {}), 0.5, False),
        ((0.0, True, False, {}), 0.0, False),
        ((1.0, False, True, {}), 0.0, False),  # a limit is no success
        ((1.0, False, False, {}), 0.0, False),
        ((1.0, True, False, {"success": False}), 0.0, False),
        ((0.0, True, False, {"success": True}), 0.0, True),
        ((1.0, True, False, {"success": None}), 0.0, True),  # as if it said nothing
    ],
)
def test_success_is_told_or_a_positive_return_at_the_end(answer, earned, won):
    assert base.take(Fixed(*answer), "a", earned).success is won


def test_what_a_reset_leaves_open_is_no_word_of_the_instruction():
    class Silent(doubles.Corridor):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return obs, info | {"instruction": None, "tools": None}

    env = Silent()
    task = dataclasses.replace(env.tasks("train")[0], instruction="")
    assert base.begin(env, task)[0].instruction == ""


def test_take_keeps_names_of_rewards_and_the_two_ends_apart():
    output = {"rewards": {"a": 1, "b": -0.25}, "invalid": True, "reveals": False}
    step = base.take(Fixed(0.75, False, True, output), "a")
    assert step.rewards == {"a": 1.0, "b": -0.25}
    assert (step.terminated, step.truncated, step.invalid) == (False, True, True)
    assert step.reveals is False
    assert base.take(Fixed(0.75, True, False, {}), "a").reveals is None
    assert base.take(Fixed(0.75, True, False, {}), "a").rewards == {"reward": 0.75}
    with pytest.raises(FloatingPointError, match="nan"):
        base.take(Fixed(math.nan, False, False, {}), "a")


# --- batches -----------------------------------------------------------------


TASKS = [doubles.task(0, 1, 2), doubles.task(2, 1, 2), doubles.task(1, 1, 2)]


def test_what_numpy_says_can_be_written():
    output = {"invalid": np.True_, "reveals": np.False_, "success": np.True_}
    step = base.take(Fixed(np.float32(0.5), np.True_, np.False_, output), "a")
    assert [step.invalid, step.reveals, step.success] == [True, False, True]
    json.dumps(step._asdict())
    quiet = base.take(Fixed(0.0, False, False, {}), "a")
    assert (quiet.invalid, quiet.reveals) == (None, None)


def test_an_action_is_invalid_as_told_else_where_nothing_changed():
    (t,) = doubles.episode(TASKS[0], ["go right"]).transitions
    same = dataclasses.replace(t, next_state=t.state)
    for output, moved, stuck in (
        (None, False, True),
        (True, True, True),
        (False, False, False),
    ):
        assert base.counts_as_invalid(dataclasses.replace(t, invalid=output)) is moved
        assert (
            base.counts_as_invalid(dataclasses.replace(same, invalid=output)) is stuck
        )


class Odd(doubles.Corridor):
    """Cannot begin one task, and speaks half a character in another."""

    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed, options=options)
        if options["task"].id == TASKS[0].id:
            raise RuntimeError("level file missing")
        return (obs + "\ud800" if options["task"].id == TASKS[1].id else obs), info


def test_tasks_that_cannot_be_begun_or_written_stay_as_they_are(capsys):
    numpy = dataclasses.replace(TASKS[2], options={"seed": np.int64(3)})
    given = [TASKS[0], TASKS[1], numpy, doubles.task(3, 1, 4)]
    bare = [dataclasses.replace(t, initial_state=()) for t in given]
    results = base.begin_all(Odd(), bare)
    assert results[:3] == bare[:3]
    assert results[3] == given[3]
    output = capsys.readouterr().err.splitlines()
    assert [line.split("begun: ")[1].split(":")[0] for line in output] == [
        "RuntimeError",
        "UnicodeEncodeError",
        "TypeError",
    ]
    with pytest.raises(UnicodeEncodeError):
        base.begin(Odd(), TASKS[1])
    with pytest.raises(ConnectionError, match="began none of 2 tasks: UnicodeEnc"):
        # The environment is down, or is not that of these tasks: nothing to play.
        base.begin_all(Odd(), bare[:2])
    assert base.begin_all(Odd(), []) == []


# --- capabilities ------------------------------------------------------------


class Capable(doubles.Corridor):
    """A corridor with every capability."""

    def variations(self, task, rng):
        del task, rng
        return []

    def fork(self):
        other = Capable(self.max_steps)
        other.state, other.steps, other.open = self.state, self.steps, self.open
        return other

    def render_state(self, state):
        return " / ".join(state)


class Shouting(gymnasium.Wrapper):
    """A wrapper with state of its own."""

    calls = 0

    def step(self, action):
        self.calls += 1
        text, *rest = self.env.step(action)
        return (f"{text}\ncall {self.calls}", *rest)


LOOKUPS = [
    (base.as_tasks, "tasks"),
    (base.as_expert, "expert"),
    (base.as_valid_actions, "valid_actions"),
    (base.as_variations, "variations"),
    (base.as_forkable, "fork"),
    (base.as_render, "render_state"),
]


@pytest.mark.parametrize(("lookup", "method"), LOOKUPS)
def test_a_capability_is_seen_where_its_method_is_and_behind_wrappers(lookup, method):
    env = Capable()
    assert lookup(env) is env
    wrapped = gymnasium.wrappers.OrderEnforcing(Shouting(env))
    result = lookup(wrapped)
    assert result is not None
    assert callable(getattr(result, method))
    assert lookup(doubles.Bare()) is None
    assert lookup(Shouting(doubles.Bare())) is None


def test_a_wrappers_own_method_comes_first():
    class Slow(gymnasium.Wrapper):
        def valid_actions(self):
            return ["wait"]

    result = base.as_valid_actions(Shouting(Slow(doubles.Corridor())))
    assert result is not None
    assert result.valid_actions() == ["wait"]


def test_a_fork_of_a_wrapped_environment_keeps_its_wrappers():
    env = Shouting(Capable())
    base.begin(env, TASKS[0])
    base.take(env, "go left right")
    forkable = base.as_forkable(env)
    assert forkable is not None
    fork = forkable.fork()
    state = base.take(fork, "go right").state
    assert state == ("at 1", *TASKS[0].initial_state[1:], "call 2")
    assert isinstance(fork, Shouting)
    assert fork.unwrapped is not env.unwrapped
    assert base.take(env, "dance").state[0] == "at 0"
    assert env.calls == 2


def test_classes_that_vary_and_environments_that_draw_lots():
    class Drawing(doubles.Corridor):
        deterministic = False

    assert base.can_vary(Capable)
    assert not base.can_vary(doubles.Corridor)
    assert base.is_deterministic(gymnasium.Env())
    assert base.is_deterministic(Shouting(doubles.Corridor()))
    assert not base.is_deterministic(Drawing())
    assert not base.is_deterministic(Shouting(Drawing()))
    assert base.declared_determinism(Shouting(Drawing())) is False
    Drawing.deterministic = None
    assert base.declared_determinism(Shouting(Drawing())) is None
    assert not base.is_deterministic(Drawing())


# --- failures ----------------------------------------------------------------


def test_guarded_returns_the_value_or_the_failure():
    def fails():
        raise OSError("no answer")

    env = Shouting(doubles.Corridor())
    assert base.guarded(env, lambda: 3) == 3
    failure = base.guarded(env, fails)
    assert isinstance(failure, base.EnvironmentFailure)
    assert failure.environment == "Corridor"
    assert failure.reason == "OSError: no answer"
    assert failure.place.startswith("test_base.py:")
    # The line is that of the environment's code, not of the library it calls.
    inside = base.guarded(env, lambda: json.loads("no"))
    assert isinstance(inside, base.EnvironmentFailure)
    assert inside.place.startswith("test_base.py:")


def test_an_interrupt_is_no_failure_of_the_environment():
    def interrupts():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base.guarded(doubles.Corridor(), interrupts)


def test_a_step_as_a_record():
    output = {"rewards": {"a": 1.0}, "invalid": False, "reveals": True}
    step = base.take(Fixed(1.0, True, False, output), "a")
    record = step.transition(("here",), "open", "a door")
    assert record == Transition(
        state=("here",),
        action="open",
        next_state=("x",),
        rewards={"a": 1.0},
        terminated=True,
        truncated=False,
        success=True,
        invalid=False,
        reveals=True,
        thought="a door",
    )
    assert step.transition((), "open").thought is None


def test_a_task_whose_calls_are_something_else_is_not_begun():
    env, (task, *_) = doubles.Corridor(), doubles.tasks("train")
    task = dataclasses.replace(task, options={**task.options, "calls": 3})
    message = r"options\['calls'\] must be a list, got int; .*another name"
    with pytest.raises(ValueError, match=message):
        base.begin(env, task)
