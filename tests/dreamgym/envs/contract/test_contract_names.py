"""Attributes with the names of others, which nothing reads."""

from tests import doubles
from tests.dreamgym.envs.contract.common import checked, named


class NamesOfOthers(doubles.Corridor):
    """A corridor with the names of other libraries, and one that is misspelt."""

    max_episode_steps = None
    horizon = 0  # no step limit
    expert = valid_actions = variations = None

    def __init__(self):
        super().__init__()
        self.max_steps = 12

    def legal_actions(self):
        return ["go left", "go right"]

    def variation(self, task):
        del task
        return []


def test_attributes_that_nothing_reads_are_warned_of():
    warnings = checked(NamesOfOthers).warnings
    limit = named(warnings, r"^max_steps = 12 is not read: .* max_episode_steps\?$")
    assert "episodes of a run have 16 steps" in limit.cure
    assert named(warnings, r"^legal_actions\(\) is not read: .* valid_actions\?$")
    assert named(warnings, r"^variation\(\) is not read: .* variations\?$")
    assert sum("is not read" in w.what for w in warnings) == 3


class NamesBeside(NamesOfOthers):
    """A corridor that has what these names could be meant as, too."""

    max_episode_steps = 12

    def valid_actions(self):
        return self.legal_actions()

    def variations(self, task):
        return self.variation(task)


def test_names_beside_those_that_are_read_are_not_warned_of():
    assert not [w for w in checked(NamesBeside).warnings if "not read" in w.what]
