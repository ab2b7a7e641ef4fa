"""Real steps are counted where they are taken, on disk before anybody is told."""

from pathlib import Path

import pytest

from dreamgym.agent.early_experience.branching import branch
from dreamgym.envs import base, restarting
from dreamgym.envs.counting import BudgetSpent, CountedEnv, RealSteps
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.envs.vector import MAX_BROKEN_IN_A_ROW, RealVectorEnv
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is a full disk")
def test_a_step_that_cannot_be_written_down_is_not_taken():
    """It is no fault of the environment, so it is not one broken game of many."""
    steps = RealSteps()
    env = restarting.RestartingEnv(lambda: CountedEnv(Ledger(), steps))
    batch = RealVectorEnv([env], max_steps=6)
    with steps.recorded(Path("/dev/full")):
        batch.reset(options={"tasks": [TASK]})
        with pytest.raises(EnvironmentDown, match="No space left on device"):
            batch.step(["go right"])
    assert (steps.count, Ledger.taken) == (0, 0)


def test_a_step_beyond_the_limit_is_refused_before_it_is_taken(tmp_path):
    path, steps = tmp_path / "x.steps", RealSteps()
    env = CountedEnv(ForkingLedger(), steps)
    assert steps.left is None
    with steps.recorded(path, limit=3):
        env.reset(options={"task": TASK})
        fork = CountedEnv(env.env.fork(), steps)
        env.step("go right")
        fork.step("go right")
        assert steps.left == 1
    with steps.recorded(path, limit=3):  # resumed: what was taken counts
        assert steps.left == 1
        env.step("go right")
        for asked in (env, fork):
            with pytest.raises(BudgetSpent, match="all 3 real steps"):
                asked.step("go right")
        assert (steps.count, steps.left, Ledger.taken) == (3, 0, 3)
        assert path.read_text() == "3"
    assert steps.left is None  # nobody sets a limit now


def test_a_batch_whose_budget_is_spent_is_no_broken_environment(tmp_path):
    steps = RealSteps()
    envs = RealVectorEnv([CountedEnv(Ledger(), steps)], max_steps=6)
    with steps.recorded(tmp_path / "x.steps", limit=1):
        for _ in range(MAX_BROKEN_IN_A_ROW + 1):
            envs.reset(options={"tasks": [TASK]})
            (step,) = envs.step(["go right"])
            if step.error is None:
                envs.step(["go right"])
    assert "BudgetSpent" in step.error
    assert (Ledger.taken, envs.envs[0].env.steps) == (1, 0)


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
