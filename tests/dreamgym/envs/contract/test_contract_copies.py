"""The contract checker over copies of an environment that differ."""

import dataclasses
import itertools
import random

import pytest

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
