"""The contract checker over copies of an environment that differ."""

import dataclasses
import itertools
import random

import pytest

from dreamgym.envs import registry
from dreamgym.envs.contract import checker
from dreamgym.envs.workers.env import rehashed_env
from tests import doubles
from tests.dreamgym.envs.contract.common import checked


class DrawnSplits(doubles.Corridor):
    """Its splits are drawn once for each instance."""

    made = itertools.count()

    def __init__(self):
        super().__init__()
        every = [doubles.task(at, goal, 4) for at in range(5) for goal in range(5)]
        random.Random(next(self.made)).shuffle(every)
        parts = {"train": every[:17], "dev": every[17:20], "test": every[20:]}
        self.parts = {
            split: [dataclasses.replace(t, split=split) for t in part]
            for split, part in parts.items()
        }

    def tasks(self, split):
        return self.parts[split]


class DrawnLots(DrawnSplits):
    deterministic = False


@pytest.mark.parametrize("env", [DrawnSplits, DrawnLots])
def test_copies_that_list_other_tasks_are_a_fault(env):
    (fault,) = checked(env).faults
    assert fault.what == "a second copy of the environment lists other tasks"
    assert fault.where.startswith("tasks('train'): 'corridor-")


class Numbered(doubles.Corridor):
    """Shows the number of the instance."""

    made = itertools.count()

    def __init__(self):
        super().__init__()
        self.number = next(self.made)

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs}\ncopy {self.number}", *rest)


class RaisesInACopy(Numbered):
    def step(self, action):
        if self.number > first_number:
            raise KeyError("copy")
        return doubles.Corridor.step(self, action)


first_number = 0


def test_copies_that_answer_differently_are_a_fault():
    (fault,) = checked(Numbered).faults
    assert fault.what == "a second copy of the environment answers differently"
    assert "copy" in fault.where


def test_a_copy_that_raises_is_a_fault(monkeypatch):
    monkeypatch.setattr(Numbered, "made", itertools.count())
    (fault,) = checked(RaisesInACopy).faults
    assert fault.what == "a second copy of the environment answers differently"
    assert "step raised KeyError" in fault.where


ROOMS = ("hall", "kitchen", "cellar", "attic", "garden", "porch", "study")


class SetOrder(doubles.Corridor):
    """Shows a set of texts, which has another order in each process."""

    def step(self, action):
        obs, *rest = super().step(action)
        return (f"{obs}\nrooms {' '.join(set(ROOMS))}", *rest)


class HashedIds(doubles.Corridor):
    """Its ids are hashes of texts."""

    def tasks(self, split):
        tasks = super().tasks(split)
        return [dataclasses.replace(t, id=str(hash(t.id))) for t in tasks]


@pytest.mark.parametrize("name", ["Corridor", "SetOrder", "HashedIds"])
def test_another_process_is_compared(name):
    spec = f"{__name__}:{name}" if name != "Corridor" else "tests.doubles:Corridor"
    env = registry.make(spec)
    report = checker.check(
        env,
        limit=30,
        make_elsewhere=lambda: rehashed_env(spec, start_seconds=60.0),
    )
    assert "processes" in report.checks
    expected = ["the environment differs in another process"] * (name != "Corridor")
    assert [f.what for f in report.faults] == expected
    assert all("hash()" in f.cure for f in report.faults)


def test_a_copy_that_cannot_be_made_elsewhere_is_not_compared():
    report = checker.check(
        doubles.Corridor(),
        limit=30,
        make_elsewhere=lambda: rehashed_env("tests:Nothing", start_seconds=60.0),
    )
    assert report.faults == ()
    assert "processes" not in report.checks
