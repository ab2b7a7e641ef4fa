"""The batch of real environments, slot by slot."""

from dreamgym.envs import base, vector
from dreamgym.envs.dream import DreamVectorEnv
from tests import corridor, doubles


def batch(size=3, **settings):
    settings = {"max_steps": 6} | settings
    return vector.RealVectorEnv([doubles.Corridor() for _ in range(size)], **settings)


TASKS = [doubles.task(0, 1, 2), doubles.task(2, 1, 2), doubles.task(1, 1, 2)]


def test_a_batch_steps_each_slot_on_its_own_task():
    envs = batch()
    states = envs.reset(options={"tasks": TASKS})
    assert states == [t.initial_state for t in TASKS]
    steps = envs.step(["go right", "go left", "take coin"])
    assert [s.state[0] for s in steps] == ["at 1", "at 1", "at 1"]
    assert [s.terminated for s in steps] == [False, False, True]
    assert [s.success for s in steps] == [False, False, True]
    assert envs.transitions == 3


def test_finished_and_unasked_slots_wait():
    envs = batch()
    envs.reset(options={"tasks": TASKS})
    envs.step([None, None, "take coin"])
    steps = envs.step(["go right", None, "go left"])
    assert steps[0].state[0] == "at 1"
    assert steps[1:] == [None, None]
    assert envs.transitions == 2


def test_a_reset_touches_only_the_masked_slots():
    envs = batch()
    envs.reset(options={"tasks": TASKS})
    envs.step(["go right", "go left", "take coin"])
    states = envs.reset(
        options={"tasks": [None, None, TASKS[0]], "reset_mask": [False, False, True]}
    )
    assert states == [None, None, TASKS[0].initial_state]
    steps = envs.step(["take coin", "take coin", "take coin"])
    assert [s.success for s in steps] == [True, True, False]


def test_the_limit_truncates_and_does_not_terminate():
    envs = batch(2, max_steps=2)
    envs.reset(options={"tasks": TASKS[:2]})
    assert not any(s.truncated for s in envs.step(["go right", "go right"]))
    late = envs.step(["go right", "go left"])[0]
    assert (late.terminated, late.truncated, late.success) == (False, True, False)
    envs.reset(options={"tasks": [TASKS[0], TASKS[0]]})
    envs.step(["go right", "go right"])
    won = envs.step(["take coin", "go left"])[0]  # an end on the last step is an end
    assert (won.terminated, won.truncated, won.success) == (True, False, True)


class Crashing(doubles.Corridor):
    def step(self, action):
        if action == "go left":
            raise OSError("the line is dead")
        return super().step(action)


def test_a_crash_ends_one_trajectory_with_its_reason():
    envs = vector.RealVectorEnv([Crashing(), doubles.Corridor()], max_steps=6)
    task = doubles.task(1, 2, 2)
    envs.reset(options={"tasks": [task, task]})
    broken, fine = envs.step(["go left", "go left"])
    assert broken.error == "OSError: the line is dead"
    assert (broken.terminated, broken.truncated) == (False, True)
    assert broken.rewards == {}
    assert fine.error is None
    assert fine.state[0] == "at 0"
    steps = envs.step(["go right", "go right"])
    assert steps[0] is None
    assert steps[1].state[0] == "at 1"


def test_the_return_of_an_earlier_game_is_not_carried_over():
    envs = vector.RealVectorEnv([doubles.Bare()], max_steps=9)
    task = base.tasks_of(doubles.Bare(), "bare", "train", 1)[0]
    for _ in range(2):  # first win, then fall: the second must not count as a win
        (state,) = envs.reset(options={"tasks": [task]})
        at = int(state[0].split()[1])
        plans = [doubles.plan(state), ["go left"] * (at + 1)]
        for plan in plans[:1] if envs.transitions == 0 else plans[1:]:
            for action in plan:
                (step,) = envs.step([action])
        won = step.success
    assert step.terminated
    assert not won


def test_the_length_of_a_plan_is_that_from_the_present_state():
    envs = vector.RealVectorEnv(
        [corridor.PlansAnywhere(), corridor.PlansAnywhere()], max_steps=6
    )
    assert envs.knows_plans
    envs.reset(options={"tasks": [doubles.task(0, 2, 3), doubles.task(1, 1, 3)]})
    assert [envs.plan_length(i) for i in range(2)] == [3, 1]
    envs.step(["go right", "take coin"])
    assert [envs.plan_length(i) for i in range(2)] == [2, None]  # the second has ended
    assert not batch().knows_plans


class Hopeless(corridor.PlansAnywhere):
    def expert(self):
        if self.state[0] == "at 1":
            raise LookupError("no way")
        return []


def test_without_a_plan_its_length_is_unknown():
    envs = vector.RealVectorEnv([Hopeless()], max_steps=6)
    envs.reset(options={"tasks": [doubles.task(0, 2, 3)]})
    assert envs.plan_length(0) is None
    envs.step(["go right"])
    assert envs.plan_length(0) is None


def test_only_the_dream_can_return_to_an_earlier_moment():
    dream = DreamVectorEnv(doubles.RuleModel(), 1, max_steps=3)
    assert vector.as_restorable(dream) is dream
    assert vector.as_restorable(batch()) is None
