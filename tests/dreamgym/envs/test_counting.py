"""Real steps are counted where they are taken, on disk before anybody is told."""

import pytest

from dreamgym.agent.branching import branch
from dreamgym.envs import base
from dreamgym.envs.counting import CountedEnv, RealSteps
from tests import doubles
from tests.ledger import ForkingLedger, Ledger

TASK = doubles.task(0, 2, 3)


@pytest.fixture(autouse=True)
def _empty():
    Ledger.taken = Ledger.stop_at = 0


def test_a_count_outlives_what_counts(tmp_path):
    path, env = tmp_path / "stages" / "x.steps", RealSteps()
    with env.recorded(path):
        for _ in range(11):
            env.add()
        assert path.read_text() == "11"  # before the stage ends
    again = RealSteps()
    with again.recorded(path):
        again.add()
    assert (again.count, path.read_text()) == (12, "12")
    again.add()  # nobody records now
    assert path.read_text() == "12"


@pytest.mark.parametrize("make", [Ledger, ForkingLedger])
def test_branches_count_what_the_environment_saw_forks_included(make):
    steps = RealSteps()
    env = CountedEnv(make(), steps)
    result = branch(env, [doubles.expert(TASK)], alternatives=2, max_episodes=1, seed=0)
    assert steps.count == Ledger.taken == result.transitions > 0
    assert len(result.branches) == 6


def test_a_step_that_raises_was_taken():
    class Broken(doubles.Corridor):
        def step(self, action):
            raise OSError(action)

    steps = RealSteps()
    env = CountedEnv(Broken(), steps)
    base.begin(env, TASK)
    assert isinstance(
        base.guarded(env, lambda: base.take(env, "x")), base.EnvironmentFailure
    )
    assert steps.count == 1
