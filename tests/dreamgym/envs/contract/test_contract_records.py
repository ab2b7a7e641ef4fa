"""Tasks and values that a run could not write, and what the checker says of them."""

import dataclasses
import math
import time

import numpy as np
import pytest

from dreamgym.envs.contract import checker, texts
from dreamgym.envs.contract.findings import Findings
from dreamgym.envs.contract.player import Player
from dreamgym.envs.contract.tasks import sound_tasks
from dreamgym.envs.limits import DEFAULT, step_limit
from tests import doubles
from tests.dreamgym.envs.contract.common import checked, named


def changing(**values):
    """A corridor whose tasks have other values."""

    class Changed(doubles.Corridor):
        def tasks(self, split):
            options = values.get("options", {})
            return [
                dataclasses.replace(t, **values | {"options": {**t.options, **options}})
                for t in super().tasks(split)
            ]

    return Changed


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": "half \ud800"}, "surrogates not allowed"),
        ({"options": {"deep": nested(70)}}, "expected at most 64 nested lists"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_task_that_cannot_be_read_back_is_a_fault(values, reason):
    fault = named(checked(changing(**values)).faults, "cannot be written to a file")
    assert reason in fault.where


def unchecked(task, name, value):
    """A task with any value of a field, past the check of types that the tests have."""
    odd = object.__new__(type(task))
    for field, given in (vars(task) | {name: value}).items():
        object.__setattr__(odd, field, given)
    return odd


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("family", ["a"]),
        ("split", None),
        ("initial_state", None),
        ("initial_state", "room hall"),
        ("lineage", (1,)),
    ],
)
def test_tasks_with_fields_of_another_type_are_no_sound_tasks(name, value):
    player = Player(doubles.Corridor(), Findings())
    tasks = [unchecked(doubles.tasks("train")[0], name, value)]
    assert sound_tasks(player, "tasks('train')", tasks) is None
    assert any(f"a task's {name} must be" in what for what in player.findings.faults)


def test_fields_of_another_type_are_named():
    task = doubles.tasks("train")[0]
    for name, value in (("family", None), ("lineage", (1,))):
        odd = unchecked(task, name, value)
        reason = texts._why_unreadable(odd)
        assert reason is not None
        assert f"field 'task.{name}': expected" in reason
    assert texts._why_unreadable(task) is None


def test_an_instruction_that_no_episode_would_begin_with_is_a_fault():
    faults = checked(changing(instruction="x" * 100_001)).faults
    assert "100,001 characters" in named(faults, "an instruction is too long").where


class PaysHugely(doubles.Corridor):
    """Each reward is finite, and the sum of two is not."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 1e308, *rest


def test_an_episode_that_cannot_be_read_back_is_a_fault():
    faults = checked(PaysHugely).faults
    fault = named(faults, "an episode cannot be written to a file and read back")
    assert "rewards with a finite sum" in fault.where


class Single(doubles.Corridor):
    """Its large rewards are in single precision, and its flag is NumPy's."""

    def step(self, action):
        obs, _, terminated, truncated, info = super().step(action)
        parts = {"sale": 123456.7, "fee": -0.3}
        reward = np.float32(np.float32(123456.7) - np.float32(0.3))
        return obs, reward, np.bool_(terminated), truncated, {**info, "rewards": parts}


def test_rounding_and_flags_of_numpy_are_no_faults():
    report = checked(Single)
    assert report.faults == (), report.text("env")
    named(report.warnings, "terminated must be a bool, got numpy.bool")


class ByNumber(doubles.Corridor):
    """Its costs have numbers for names."""

    def step(self, action):
        *rest, info = super().step(action)
        return (*rest, {**info, "costs": {1: 2.0}})


def test_costs_need_names():
    named(checked(ByNumber).faults, "'costs'. must be a dict of finite numbers by name")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"calls": 3}, "options..calls.. must be a list, got int"),
        ({"tools": ["hammer", "saw"]}, "options..tools...0. must be "),
    ],
)
def test_tools_and_calls_of_another_meaning_are_a_fault(options, what):
    finding = named(checked(changing(options=options)).faults, what)
    assert "another name" in finding.cure


def test_calls_of_another_form_in_the_info_of_a_reset_are_a_fault():
    class Counting(doubles.Corridor):
        def reset(self, **kwargs):
            obs, info = super().reset(**kwargs)
            return obs, {**info, "calls": 3}

    finding = named(checked(Counting).faults, "options..calls.. must be a list")
    assert "info['calls']" in finding.cure


@pytest.mark.parametrize("seed", ["7", 1.5])
def test_a_seed_that_is_no_integer_is_warned_of(seed):
    report = checked(changing(options={"seed": seed}))
    assert repr(seed) in named(report.warnings, "'seed' is no integer").what


class Slow(doubles.Corridor):
    """Its deadline is a text, and its expert gives one text in place of a list."""

    reset_seconds = "60"

    def expert(self):
        return "go right"


def test_a_deadline_that_is_no_number_hides_no_other_fault():
    faults = checked(Slow).faults
    named(faults, "reset_seconds must be a number of 0 to 1,000,000,000, or None")
    named(faults, "got a string")


@pytest.mark.parametrize("name", ["reset_seconds", "step_seconds", "max_copies"])
@pytest.mark.parametrize("value", [10**400, 1e300, -(10**400), math.nan])
def test_a_number_that_no_float_or_alarm_holds_is_a_fault(name, value):
    Huge = type("Huge", (doubles.Corridor,), {name: value})
    fault = named(checked(Huge).faults, rf"Huge\.{name} must be a number of 0 to 1,000")
    assert len(fault.what) < 200


def test_a_step_limit_that_no_float_holds_is_a_fault():
    Huge = type("Huge", (doubles.Corridor,), {"max_episode_steps": 10**400})
    named(checked(Huge).faults, "max_episode_steps must be a whole number of at least")
    assert step_limit(Huge(), []).steps == DEFAULT


def test_a_flag_of_several_values_is_named():
    Both = type("Both", (doubles.Corridor,), {"deterministic": np.array([True, False])})
    with pytest.raises(ValueError, match=r"Both\.deterministic must be a bool, got a"):
        checked(Both)


@pytest.mark.parametrize("method", ["tasks", "variations"])
def test_one_task_in_place_of_a_list_is_a_fault(method):
    task = dataclasses.replace(doubles.tasks("train")[0], split="generated")
    Single = type("Single", (doubles.Corridor,), {method: lambda *_: task})
    faults = checker.check(Single(), limit=30, tasks=1).faults
    named(faults, f"^{method}.* must return a list of Tasks, got a single Task")


class SlowResets(doubles.Corridor):
    def reset(self, **kwargs):
        time.sleep(0.003)
        return super().reset(**kwargs)


def test_slow_resets_are_warned_of(monkeypatch):
    monkeypatch.setattr(texts, "SLOW_RESET", 0.002)
    (warning,) = checker.check(SlowResets(), limit=30).warnings
    assert warning.what == "a reset takes 0.0 s"
