"""Mistakes that users made in their environments, and what the checker says of them."""

import dataclasses
import random
import re
from typing import ClassVar

import numpy as np
import pytest

from dreamgym.envs import base
from dreamgym.envs.base import TextEnv
from dreamgym.envs.contract import checker
from dreamgym.envs.tools.tool_env import ToolEnv, tool
from tests import doubles
from tests.dreamgym.envs.contract.common import checked, named
from worldmodel.data.records import Task

# --- ends --------------------------------------------------------------------


class OpenAfterWin(doubles.Corridor):
    """Its limit closes it, the coin does not."""

    def step(self, action):
        *rest, terminated, truncated, info = super().step(action)
        self.open = self.open or terminated
        return (*rest, terminated, truncated, info)


class OnlyWins(OpenAfterWin):
    """Its episodes have no limit, so that nonsense never ends them."""

    def __init__(self):
        super().__init__(max_steps=10**6)


class MistypedAfterWin(doubles.Corridor):
    """Its flag is misspelt where an episode is won."""

    won = False

    def reset(self, **kwargs):
        self.won = False
        return super().reset(**kwargs)

    def step(self, action):
        if self.won:
            raise NameError("name 'RuntimError' is not defined")
        *rest, info = super().step(action)
        self.won = info["success"]
        return (*rest, info)


@pytest.mark.parametrize("env", [OpenAfterWin, OnlyWins])
def test_a_step_after_a_won_episode_must_raise_too(env):
    report = checked(env)
    assert report.faults == (), report.text("env")
    warning = named(report.warnings, "^a step after the end must raise$")
    assert "the expert's plan, after step" in warning.where
    assert "raise RuntimeError" in warning.cure


def test_a_step_after_a_won_episode_must_raise_what_says_so():
    fault = named(checked(MistypedAfterWin).faults, "must raise one of RuntimeError")
    assert "got NameError" in fault.what
    assert "the expert's plan" in fault.where


class Plain(TextEnv):
    """Without tasks, expert and limit: one door of three, as in the README."""

    def reset(self, *, seed=None, options=None):
        del options
        super().reset(seed=seed)
        self.coin = int(self.np_random.integers(3))
        return "all doors are closed", {"instruction": "find the coin"}

    def step(self, action):
        won = action == f"open door {self.coin}"
        return "a coin" if won else "nothing", float(won), won, False, {"success": won}

    def valid_actions(self):
        return [f"open door {i}" for i in range(3)]


def test_a_small_environment_that_ends_only_when_won_has_no_fault():
    report = checked(Plain)
    assert report.faults == ()
    assert named(report.warnings, "^a step after the end must raise$")
    assert not [w for w in report.warnings if "options['task']" in w.cure]


class Declares(doubles.Corridor):
    """Declares a limit that its plans keep, and does not end there."""

    max_episode_steps = 9


class Unlimited(Declares):
    def __init__(self):
        super().__init__(max_steps=10**6)


class Keeps(Declares):
    def __init__(self):
        super().__init__(max_steps=9)


@pytest.mark.parametrize("env", [Declares, Unlimited])
def test_a_declared_limit_that_does_not_truncate_is_warned_of(env):
    warning = named(checked(env).warnings, "max_episode_steps = 9 is declared")
    assert "goes on after it" in warning.what
    assert "truncated=True at step 9 (a ToolEnv counts them" in warning.cure
    assert checked(Keeps).warnings == ()


# --- methods that return nothing ---------------------------------------------


class NoActions(doubles.Corridor):
    def valid_actions(self):
        return None


class NoPlan(doubles.Corridor):
    def expert(self):
        return None

    def valid_actions(self):
        return ["go left", "go right"]  # nobody wins by chance


class NoAnswer(doubles.Corridor):
    def step(self, action):
        super().step(action)


class NoStart(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)


class NoTasks(doubles.Corridor):
    def tasks(self, split):
        del split


class NoVariations(doubles.Corridor):
    def variations(self, task, rng):
        del task, rng


@pytest.mark.parametrize(
    ("env", "what", "cure"),
    [
        (NoActions, r"valid_actions\(\) must return a list of actions, got None", ""),
        (NoPlan, r"expert\(\) must return a list of actions, got None", ""),
        (NoAnswer, r"step must return \(obs, reward, term", "five values .*None"),
        (NoStart, r"reset must return \(obs, info\)", "a text and a dict .*None"),
        (NoTasks, r"tasks\(\) must return a list of Tasks, got None", ""),
        (NoVariations, r"variations\(\) must return Tasks, got None", ""),
    ],
)
def test_a_method_that_returns_nothing_is_told_once(env, what, cure):
    report = checked(env)
    (fault,) = report.faults
    assert re.search(f"^{what}", fault.what)
    assert re.search(cure, fault.cure)
    assert report.warnings == ()  # such as: give expert()


class Box(ToolEnv):
    """One key of five opens it."""

    def tasks(self, split):
        first = 10 * base.SPLITS.index(split)
        return [
            Task(
                id=f"box-{n}",
                instruction=f"open box {n}",
                split=split,
                options={"key": n % 5, "box": n},
            )
            for n in range(first, first + 5)
        ]

    def start(self, task):
        self.key = task.options["key"]
        return f"box {task.options['box']}"

    @tool
    def look(self) -> str:
        """Look for the key."""
        return f"key {self.key}"

    @tool
    def open(self, key: int) -> str:
        """Open the box with a key."""
        self.finish(key == self.key)
        return "done"

    def expert(self):
        return [self.call("look"), self.call("open", key=self.key)]


class Planless(Box):
    """Its plan is asked for when a task starts, and is none."""

    def expert(self):
        return None  # type: ignore[override]


def test_the_plan_of_tools_that_is_none_is_told_as_such():
    faults = checked(Planless).faults
    fault = named(faults, r"^expert\(\) must return a list of actions, got None$")
    assert not [f for f in faults if f.what.startswith("reset raised")]
    assert "[] for a task that it has no plan for" in fault.cure


class Silent(Box):
    @tool
    def look(self) -> str:
        """Look for the key."""
        return None  # type: ignore[return-value]


def test_a_tool_that_returns_nothing_is_warned_of():
    assert checked(Box).warnings == ()
    warning = named(checked(Silent).warnings, "a tool returned None")
    assert "`result None`" in warning.what
    assert "action 'look {}'" in warning.where


@pytest.mark.parametrize(
    ("render", "what"),
    [
        ("\n".join, ""),
        (list, r"^render_state\(\) must return a text, got a list$"),
        (lambda _: None, r"^render_state\(\) must return a text, got None"),
        (lambda state: state[9], "^render_state raised IndexError"),
        (lambda: "a picture", "^render_state raised TypeError"),
    ],
)
def test_how_states_are_shown_is_tried(render, what):
    class Shown(doubles.Corridor):
        render_state = staticmethod(render)

    faults = checked(Shown).faults
    if what:
        named(faults, what)
    else:
        assert faults == ()


# --- tasks, plans, rewards, lots ---------------------------------------------


class IgnoresTask(doubles.Corridor):
    def reset(self, *, seed=None, options=None):
        del options
        first = doubles.tasks("train")[0]
        return super().reset(seed=seed, options={"task": first})


class IgnoresTaskOfTools(Box):
    def start(self, task):
        del task
        return super().start(self.tasks("train")[0])


class Hidden(Box):
    """What its tasks differ in is not seen at the start; the plan tries every key."""

    def start(self, task):
        super().start(task)
        return "a box"

    @tool
    def attempt(self, key: int) -> str:
        """Try a key."""
        if key == self.key:
            self.finish(True)
        return "it opens" if key == self.key else "it does not fit"

    def expert(self):
        return [self.call("attempt", key=n) for n in range(5)]


@pytest.mark.parametrize("env", [IgnoresTask, IgnoresTaskOfTools])
def test_a_reset_that_ignores_its_task_is_warned_of(env):
    warning = named(checked(env).warnings, "different tasks gave the same first state")
    assert re.match(r"\d+ .* and the same plan of the expert$", warning.what)
    assert warning.cure == "does reset read options['task']?"


def test_tasks_whose_difference_is_hidden_at_the_start_are_not_warned_of():
    report = checked(Hidden)
    assert (report.faults, report.warnings) == ((), ()), report.text("env")


class Misspells(Box):
    def expert(self):
        return ["lok", *super().expert()]


def test_a_refused_action_of_the_plan_is_warned_of_with_the_answer():
    warning = named(checked(Misspells).warnings, "of the expert's plan was refused")
    assert warning.what.endswith("'lok'")
    assert "step 1: result error: expected a call" in warning.where


class Costly(doubles.Corridor):
    """Every step costs a tenth, and what cannot be done costs `idle`."""

    idle = -0.1

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        reward += self.idle if info["invalid"] else -0.1
        info = {"success": info["success"], "invalid": info["invalid"]}
        return obs, reward, terminated, truncated, info

    def tasks(self, split):
        """Those whose plans have four actions or more."""
        return [
            t
            for t in super().tasks(split)
            if abs(t.options["goal"] - t.options["at"]) > 2
        ]


class CostsSoFar(Costly):
    """Pays the costs of all steps so far, at each."""

    def reset(self, **kwargs):
        self.score = 0.0
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, *rest = super().step(action)
        self.score += reward
        return (obs, self.score, *rest)


class FreeNonsense(CostsSoFar):
    """What cannot be done costs nothing, so that plans alone show the sum."""

    idle = 0.0


class FreeNonsenseOnce(Costly):
    idle = 0.0


class HotFloor(Costly):
    """A step that ends in another room than the first costs more: no sum."""

    idle = 0.0

    def step(self, action):
        obs, _, *rest = super().step(action)
        hot = self.state[0] != self.begin[0]
        return (obs, -0.5 * hot, *rest)


@pytest.mark.parametrize("env", [CostsSoFar, FreeNonsense])
def test_costs_that_are_the_sum_so_far_are_warned_of(env):
    warning = named(checked(env).warnings, "look like a cumulative score")
    assert "does nothing" in warning.where or "do nothing" in warning.where
    assert "score - score before" in warning.cure


@pytest.mark.parametrize("env", [Costly, FreeNonsenseOnce, HotFloor])
def test_costs_of_single_steps_are_no_sums(env):
    assert not [w for w in checked(env).warnings if "cumulative" in w.what]


class GlobalLots(doubles.Corridor):
    deterministic = False

    def lot(self):
        return random.randrange(10**6)

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs}\nlot {self.lot()}", *rest)


class GlobalNumpyLots(GlobalLots):
    def lot(self):
        return np.random.randint(10**6)  # noqa: NPY002 - the mistake


class SeededLots(GlobalLots):
    def lot(self):
        return int(self.np_random.integers(10**6))


class HeldLots(GlobalLots):
    """A generator of its own, which goes on from one episode to the next."""

    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng()

    def lot(self):
        return int(self.rng.integers(10**6))


@pytest.mark.parametrize("env", [GlobalLots, GlobalNumpyLots])
def test_lots_of_a_global_generator_are_warned_of(env):
    warning = named(checker.check(env(), limit=30).warnings, "global generator")
    assert re.search(r"lot \d+' and then '.*lot \d+", warning.where)
    assert "self.np_random" in warning.cure


@pytest.mark.parametrize("env", [SeededLots, HeldLots])
def test_lots_of_a_generator_of_the_environment_are_not_warned_of(env):
    assert checked(env).warnings == ()


class Declares(doubles.Corridor):
    """A corridor that declares methods and flags as something else."""

    expert = ("go left",)
    variations = 3
    deterministic = "no"


def test_what_is_declared_as_something_else_is_a_fault():
    faults = checked(Declares).faults
    for name in ("expert", "variations"):
        assert named(faults, rf"^{name} must be a method, got ")
    assert named(faults, r"^deterministic must be a bool, got 'no'$")


class OddFlags(doubles.Corridor):
    ended = np.array([False, True])
    flags: ClassVar[dict] = {}

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        if "ended" in self.flags:
            terminated = self.flags["ended"]
        return obs, reward, terminated, truncated, info | self.flags.get("info", {})


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"ended": np.array([False, True])}, r"^terminated must be a bool, got numpy"),
        (
            {"info": {"success": np.array([True, False])}},
            r"^info\['success'\] must be a bool$",
        ),
    ],
)
def test_flags_that_are_neither_true_nor_false_are_faults(monkeypatch, flags, what):
    monkeypatch.setattr(OddFlags, "flags", flags)
    assert named(checked(OddFlags).faults, what)


class OddTasks(doubles.Corridor):
    def tasks(self, split):
        tasks = [dataclasses.replace(t) for t in super().tasks(split)]
        for task in tasks:  # past the check of type hints that the tests have
            object.__setattr__(task, "options", None)
        return tasks

    def variations(self, task, rng):
        del task, rng
        return ["another task"]


def test_tasks_and_variations_of_other_types_are_faults(monkeypatch):
    faults = checked(OddTasks).faults
    assert named(faults, r"^a task's options must be a dict, got None")
    monkeypatch.setattr(OddTasks, "tasks", doubles.Corridor.tasks)
    faults = [f.what for f in checked(OddTasks).faults]
    assert faults
    assert all(x.endswith("must return Tasks, got 'another task'") for x in faults)


class Endless(doubles.Corridor):
    def variations(self, task, rng):
        while True:
            yield dataclasses.replace(
                task,
                id=f"{task.id}-{rng.integers(10**9)}",
                split="generated",
                lineage=(*task.lineage, task.id),
            )


def test_variations_without_an_end_are_looked_at_in_part():
    assert not [f for f in checked(Endless).faults if "variations" in f.what]
