"""Conversations of BFCL: right and wrong turns, the official checker, late tools."""

import itertools
import sys

import pytest

pytest.importorskip("bfcl_eval")

from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.suites import bfcl, bfcl_apis
from tests.dreamgym.envs.suites.common import play

pytestmark = pytest.mark.peer


def tasks_of(env):
    return [task for split in base.SPLITS for task in env.tasks(split)]


@pytest.mark.parametrize("category", bfcl.CATEGORIES)
def test_the_answer_key_wins_every_conversation_and_silence_none(category):
    env = registry.make(f"bfcl:{category}")
    tasks = tasks_of(env)
    assert len(tasks) in (198, 199)
    for task in tasks:
        base.begin(env, task)
        plan = env.expert()
        assert len(plan) <= bfcl.MAX_STEPS
        steps = play(env, task, plan)
        assert steps[-1].success
        assert not any(step.invalid for step in steps)
        assert sum(sum(s.rewards.values()) for s in steps) == pytest.approx(1)
        silent = play(env, task, itertools.repeat(env.write_answer("done")))
        assert silent[-1].terminated
        assert not silent[-1].success


def test_the_splits_share_no_scenario():
    env = registry.make("bfcl")
    numbers = [{t.options["scenario"] for t in env.tasks(s)} for s in base.SPLITS]
    assert [len(n) for n in numbers] == [119, 40, 40]
    assert not numbers[0] & numbers[1]
    assert not (numbers[0] | numbers[1]) & numbers[2]


def as_python(call):
    name, arguments = call
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def official_verdict(category, scenario, turns):
    """Return what the package's checker says of calls, a list for each turn."""
    file = f"BFCL_v4_multi_turn_{category}.json"
    row = next(r for r in bfcl_apis._rows(file) if r["id"] == scenario.id)
    key = next(
        r["ground_truth"]
        for r in bfcl_apis._rows(f"possible_answer/{file}")
        if r["id"] == scenario.id
    )
    made = [[[as_python(call)] for call in calls] for calls in turns]
    name = f"run_{official_verdict.number}"
    official_verdict.number += 1  # the package keeps its instances by name
    return multi_turn_checker(made, key, row, f"multi_turn_{category}", name)["valid"]


official_verdict.number = 0


@pytest.mark.parametrize("number", [0, 7, 52, 99, 120, 151, 198])
@pytest.mark.parametrize("category", bfcl.DEFAULT_CATEGORIES)
def test_verdicts_are_those_of_the_official_checker(category, number):
    """Calls left out, doubled, in another order, and a turn early, turn by turn."""
    env = registry.make(f"bfcl:{category}")
    task = next(t for t in tasks_of(env) if t.options["scenario"] == number)
    scenario = bfcl_apis.read_scenarios(category)[number]
    right = [list(calls) for calls in scenario.right_calls]
    variants = [right]
    for turn, calls in enumerate(right):
        for changed in (calls[:-1], [*calls, *calls[-1:]], calls[::-1]):
            variants.append([*right[:turn], changed, *right[turn + 1 :]])
        if turn:
            early = [*right[turn - 1], *calls]
            variants.append([*right[: turn - 1], early, [], *right[turn + 1 :]])
    verdicts = []
    for turns in variants:
        actions = [
            action
            for calls in turns
            for action in (
                *(env.call(name, **arguments) for name, arguments in calls),
                env.write_answer("done"),
            )
        ]
        assert len(actions) <= bfcl.MAX_STEPS
        verdict = bool(play(env, task, actions)[-1].success)
        assert verdict == official_verdict(category, scenario, turns), turns
        verdicts.append(verdict)
    assert verdicts[0]
    assert not all(verdicts)


def test_a_tool_that_comes_late_is_refused_until_then():
    env = registry.make("bfcl:miss_func")
    task = next(t for t in tasks_of(env) if t.options["scenario"] == 3)
    begun, _ = base.begin(env, task)
    assert begun.instruction.startswith(f"{bfcl.INSTRUCTION} tools: cat(")
    assert "find(" not in begun.instruction
    call = env.call("find", path=".", name="test")
    assert not any(action.startswith("find ") for action in env.valid_actions())
    early = base.take(env, call)
    assert early.invalid
    assert "result error: no tool 'find' yet" in early.state
    assert sum(early.rewards.values()) == pytest.approx(-0.02)
    turn = base.take(env, env.write_answer("it is missing"))
    assert any(line.startswith("new tool find(") for line in turn.state)
    assert not base.take(env, call).invalid


def test_a_failing_call_says_why_and_the_episode_goes_on():
    env = registry.make("bfcl:base")
    task = next(t for t in tasks_of(env) if t.options["scenario"] == 0)
    base.begin(env, task)
    for action, message in (
        (env.call("cd", folder="nowhere"), "No such file or directory"),
        (env.call("cd", folder=3), "folder must be str"),
        (env.call("__import__", name="os"), "no tool '__import__'"),
        (env.call("_load_scenario", scenario={}), "no tool '_load_scenario'"),
        ('cd {"folder": ', "error: "),
    ):
        step = base.take(env, action)
        assert (step.invalid, step.terminated) == (True, False)
        assert message in step.state[-1]
    assert play(env, task, env.expert())[-1].success


def scenario_task(env, number):
    return next(t for t in tasks_of(env) if t.options["scenario"] == number)


def test_an_error_names_no_tool_that_comes_late():
    env = registry.make("bfcl:miss_func")
    base.begin(env, scenario_task(env, 3))
    step = base.take(env, env.call("nonsense"))
    assert "have cat, cd, cp" in step.state[-1]
    names = step.state[-1].partition("have ")[2].split(", ")
    assert not {"find", "ls"} & set(names)


def test_a_call_that_an_api_refuses_is_listed_as_some_have_changed_something():
    """A refused contact is counted all the same: it decides the turn, so it is seen."""
    env = registry.make("bfcl:base")
    base.begin(env, scenario_task(env, 72))
    users = env._apis._instances["MessageAPI"].user_map
    call = env.call("add_contact", user_name=next(iter(users)))
    step = base.take(env, call)
    assert step.invalid
    assert any(line.startswith(f"called {call} -> ") for line in step.state)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("power", {"base": 10, "exponent": 300_000_000}),
        ("power", {"base": 10, "exponent": -300_000_000}),
        ("square_root", {"number": 2, "precision": 2_000_000}),
    ],
)
def test_mathematics_without_a_bound_is_refused_at_once(tool, arguments):
    scenarios = bfcl_apis.read_scenarios("base").values()
    scenario = next(s for s in scenarios if "MathAPI" in s.apis)
    apis = bfcl_apis.Apis(scenario)
    with pytest.raises(ValueError, match=r"must be at most 10?000"):
        apis.call(tool, arguments)
    assert not apis.call("power", {"base": 2, "exponent": 10}).failed


def test_no_step_is_taken_after_a_reset_that_failed_nor_before_any():
    env = registry.make("bfcl")
    for method in (env.expert, env.valid_actions):
        with pytest.raises(RuntimeError, match="needs a task: call reset"):
            method()
    base.begin(env, env.tasks("train")[0])
    for options in ({}, {"category": "base", "scenario": True}):
        with pytest.raises(ValueError, match="must name a category"):
            env.reset(options={"task": Task(id="t", instruction="", options=options)})
        with pytest.raises(RuntimeError, match="needs a running episode"):
            env.step("cd {}")


def test_a_fork_goes_its_own_way():
    env = registry.make("bfcl:base")
    task = env.tasks("train")[0]
    base.begin(env, task)
    plan = env.expert()
    base.take(env, plan[0])
    copy = env.fork()
    assert not base.take(copy, copy.write_answer("done")).success
    for action in plan[1:]:
        step = base.take(env, action)
    assert step.success


@pytest.mark.parametrize("options", [{}, {"category": "base", "scenario": 173}])
def test_a_task_that_names_no_conversation_is_refused(options):
    env = registry.make("bfcl")
    with pytest.raises(ValueError, match="must name a category"):
        env.reset(options={"task": Task(id="t", instruction="", options=options)})


def test_an_unknown_category_is_refused():
    with pytest.raises(ValueError, match="expected one of base, miss_func"):
        registry.make("bfcl:nonsense")


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.bfcl", raising=False)
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.bfcl_apis", raising=False)
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    with pytest.raises(ValueError, match=r"--no-deps bfcl-eval mpmath") as caught:
        registry.make("bfcl")
    assert "\n" not in str(caught.value)


def test_states_are_bounded_however_many_calls_there_are():
    env = registry.make("bfcl")
    task = env.tasks("train")[0]
    base.begin(env, task)
    longest = max(env.valid_actions()[:-1], key=len)
    for number in (1, 2):
        step = base.take(env, "\n".join([longest] * 500))
        called = [line for line in step.state if line.startswith("called ")]
        assert f"earlier calls {500 * number - len(called)}" in step.state
        assert 0 < sum(map(len, called)) <= bfcl.MAX_RESULTS
