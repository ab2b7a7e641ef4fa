"""Questions of reasoning-gym: answers, splits, the Python tool, refusals."""

import pytest

pytest.importorskip("reasoning_gym")

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.suites.reasoning import PROGRAMS, TASKS

pytestmark = pytest.mark.peer


@pytest.mark.medium
@pytest.mark.parametrize("name", TASKS)
def test_the_own_answer_of_each_task_is_right_and_another_is_not(name):
    env = registry.make(f"reasoning:{name}")
    tasks = env.tasks("train")
    assert len(tasks) > 100
    assert min(len(env.tasks(split)) for split in ("dev", "test")) > 20
    for task in tasks[:20]:
        begun, _ = base.begin(env, task)
        assert begun.instruction == task.instruction
        step = base.take(env, env.expert()[0])
        assert (step.terminated, step.success) == (True, True)
        assert sum(step.rewards.values()) == pytest.approx(1)
    for answer in ("1e999999", "nan", "-" * 50):  # nothing that a scorer stumbles over
        base.begin(env, tasks[0])
        assert base.take(env, answer).error is None
    base.begin(env, tasks[0])
    step = base.take(env, "no idea")
    assert (step.terminated, step.success) == (True, False)
    assert sum(step.rewards.values()) < 1


@pytest.mark.parametrize("name", ["chain_sum", "letter_counting"])
def test_no_question_is_in_two_splits(name):
    env = registry.make(f"reasoning:{name}")
    texts = [{t.instruction for t in env.tasks(split)} for split in base.SPLITS]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]
    assert min(map(len, texts)) > 100


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_program_of_the_expert_prints_the_answer(name):
    env = registry.make(f"reasoning:{name}?python=true")
    for task in env.tasks("train")[:4]:
        base.begin(env, task)
        program, answer = env.expert()
        printed = base.take(env, program)
        assert not printed.terminated
        assert not printed.invalid
        wanted = env._entry["answer"]
        assert printed.state == (f"result {wanted}",)
        assert base.take(env, answer).success


def test_a_program_that_fails_is_told_and_the_episode_goes_on():
    env = registry.make("reasoning:chain_sum?python=true")
    base.begin(env, env.tasks("train")[0])
    step = base.take(env, env.call("python", code="print(3)\n1 / 0"))
    assert step.state == ("result 3 ZeroDivisionError: division by zero",)
    assert not step.terminated
    step = base.take(env, env.call("python", code=7))
    assert step.invalid
    for _ in range(2):
        step = base.take(env, env.call("python", code=""))
    assert step.state == ("result nothing was printed",)
    assert step.truncated


def test_settings_of_a_generator_are_given_in_the_name():
    env = registry.make("reasoning:chain_sum?min_terms=2&max_terms=2&max_digits=1")
    assert all(len(t.instruction.split()) < 14 for t in env.tasks("test")[:50])
    for spec, message in (
        ("chain_sum?colour=red", "unexpected keyword argument 'colour'"),
        ("chain_sum?min_terms=9", "max_terms must be >= min_terms"),
        ("countdown", "unknown task.*chain_sum"),
        ("chain_sum?python=no", "expected python=true or false"),
        ("chain_sum?max_terms=", "."),
    ):
        with pytest.raises(ValueError, match=message):
            registry.make(f"reasoning:{spec}")
    with pytest.raises(ValueError, match="a split of"):
        base.begin(env, Task(id="t", instruction="", options={"split": "x"}))
    with pytest.raises(ValueError, match="must be in 0"):
        base.begin(
            env, Task(id="t", instruction="", options={"split": "dev", "number": 200})
        )


@pytest.mark.medium
@pytest.mark.parametrize("spec", ["reasoning", "reasoning:gcd?python=true"])
def test_they_keep_the_contract(spec):
    report = checker.check(registry.make(spec), make=lambda: registry.make(spec))
    assert report.faults == (), report.text(spec)
