"""What several tests of the contract checker need."""

import re

from dreamgym.envs.contract import checker
from tests import doubles


def checked(env):
    """Check an environment class, with few steps an episode."""
    return checker.check(env(), limit=30, make=env)


def named(findings, what):
    """Return the one finding whose text has `what`."""
    hits = [f for f in findings if re.search(what, f.what)]
    assert len(hits) == 1, findings
    return hits[0]


class SharedState(doubles.Corridor):
    """An environment whose copies share the number of steps."""

    where = [0]  # noqa: RUF012 - the mistake that is looked for

    def reset(self, **kwargs):
        self.where[0] = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.where[0] += 1
        obs, *rest = super().step(action)
        return (f"{obs}\nstep {self.where[0]}", *rest)
