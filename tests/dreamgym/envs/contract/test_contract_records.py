"""Tasks and values that a run could not write, and what the checker says of them."""

import dataclasses

import numpy as np
import pytest

from dreamgym.envs.contract import texts
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


def test_fields_of_another_type_are_named():
    """Past the check of types that the tests have."""
    task = doubles.tasks("train")[0]
    for name, value in (("family", None), ("lineage", (1,))):
        odd = object.__new__(type(task))
        for field, given in (vars(task) | {name: value}).items():
            object.__setattr__(odd, field, given)
        reason = texts._why_unreadable(odd)
        assert reason is not None
        assert f"field 'task.{name}': expected" in reason
    assert texts._why_unreadable(task) is None


def test_an_instruction_that_no_episode_would_begin_with_is_a_fault():
    faults = checked(changing(instruction="x" * 100_001)).faults
    assert "100,001 characters" in named(faults, "an instruction is too long").where


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
