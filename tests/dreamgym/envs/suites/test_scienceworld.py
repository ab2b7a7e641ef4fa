"""ScienceWorld in real Java: experts, determinism, refusals, lost machines."""

import importlib
import importlib.util
import os
import signal
import sys

import pytest

from dreamgym.cli import main
from dreamgym.envs import base, registry, restarting
from worldmodel.data.records import Task, lines

SUITE = "dreamgym.envs.suites.scienceworld"


@pytest.fixture
def suite():
    """The module of the environment; skipped where the package is missing."""
    try:
        registry.parse_spec("scienceworld")
    except ValueError as error:
        pytest.skip(str(error))
    return importlib.import_module(SUITE)


@pytest.fixture
def env(suite):
    env = suite.ScienceWorld()
    yield env
    env.close()


def task(task_type, variation):
    options = {"task_type": task_type, "variation": variation}
    return Task(id=f"{task_type}-{variation}", instruction="", options=options)


def start(env, task_type, variation):
    return env.reset(options={"task": task(task_type, variation)})


def play(env, actions):
    """The text of every step."""
    return [env.step(action)[0] for action in actions]


# --- what needs no Java ---


def test_a_missing_package_is_one_line(monkeypatch, capsys):
    for name in (SUITE, f"{SUITE}_java"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n == "scienceworld" else find(n, *a),
    )
    for name in ("scienceworld", "scienceworld:find-plant"):
        assert main(["check", "--env", name]) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "pip install 'dreamgym[scienceworld]'" in line


def test_an_unknown_task_type_lists_those_that_there_are(suite):
    with pytest.raises(ValueError, match=r"'fly': expected one of \['boil', .*melt"):
        registry.parse_spec("scienceworld:fly")
    assert len(suite.PLAN_STEPS) == 30
    assert set(suite.DEFAULT_TASK_TYPES) <= set(suite.PLAN_STEPS)


def test_the_step_limit_follows_from_the_longest_plan(suite):
    longest = max(suite.PLAN_STEPS[t] for t in suite.DEFAULT_TASK_TYPES)
    assert suite.ScienceWorld().max_episode_steps == 2 * longest
    melt = registry.make("scienceworld:melt")
    assert melt.max_episode_steps == 2 * suite.PLAN_STEPS["melt"]
    with pytest.raises(ValueError, match="max_steps must be >= 1, got 0"):
        suite.ScienceWorld(max_steps=0)


@pytest.mark.parametrize(
    "options",
    [{}, {"task_type": "fly", "variation": 1}, {"task_type": "melt"}],
)
def test_a_task_of_another_environment_is_refused(env, options):
    odd = Task(id="odd", instruction="", options=options)
    with pytest.raises(ValueError, match=r"'odd'.*a task_type of .*boil.* a variation"):
        env.reset(options={"task": odd})


def test_nothing_works_before_a_reset(env):
    for call in (lambda: env.step("wait"), env.expert, env.valid_actions):
        with pytest.raises(RuntimeError, match="call reset"):
            call()


# --- games ---


@pytest.mark.medium
def test_a_game_by_hand(env):
    obs, info = start(env, "find-non-living-thing", 0)
    assert info["instruction"] == (
        "Your task is to find a(n) non-living thing. First, focus on the thing. Then, "
        "move it to the red box in the kitchen."
    )
    rooms = ("art studio", "bedroom", "greenhouse", "kitchen", "living room")
    assert lines(obs) == (
        "visited hallway",
        "focus nothing",
        *(f"door {room} open" for room in (*rooms, "workshop")),
        "see picture",
        "carry orange",
        "at hallway",
        "said ok",
    )
    obs, reward, ended, truncated, info = env.step("go to kitchen")
    assert lines(obs)[0] == "visited hallway, kitchen"
    assert lines(obs)[-2:] == ("at kitchen", "said You move to the kitchen")
    counter = "see counter (bowl (red apple, banana, orange, potato), drawer)"
    assert counter in lines(obs)
    assert "see cupboard closed" in lines(obs)
    assert (reward, ended, truncated) == (pytest.approx(0.17), False, False)
    assert info["reveals"]
    assert not info["success"]
    obs, reward, ended, *_ = env.step("focus on stopwatch")
    assert lines(obs)[1] == "focus stopwatch"
    assert (reward, ended) == (pytest.approx(0.5), False)
    obs, reward, ended, truncated, info = env.step("move stopwatch to red box")
    assert "see red box (stopwatch deactivated)" in lines(obs)
    # 100 points less the 8 that the task begins with.
    assert (reward, ended, truncated) == (pytest.approx(0.25), True, False)
    assert info["success"]
    assert info["rewards"] == {"score": reward}
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("wait")


def test_a_wrong_focus_ends_the_episode_with_a_loss(env):
    start(env, "lifespan-longest-lived", 0)
    _, before, *_ = env.step("teleport to outside")
    _, reward, ended, truncated, info = env.step("focus on axe")
    assert (ended, truncated, info["success"]) == (True, False, False)
    assert before + reward == pytest.approx(-1.0)


@pytest.mark.parametrize("action", ["fly", "", "pick up moon", "x" * 300, "a\nb"])
def test_an_unknown_action_changes_nothing_but_the_message(env, action):
    obs, _ = start(env, "find-non-living-thing", 0)
    text, reward, ended, truncated, info = env.step(action)
    assert lines(text) == (*lines(obs)[:-1], "said unknown action")
    assert (reward, ended, truncated) == (0.0, False, False)
    assert info["invalid"]
    assert not info["reveals"]
    assert not env.step("go to kitchen")[4]["invalid"]


def test_a_question_is_answered_by_a_number(env):
    start(env, "find-non-living-thing", 0)
    env.step("go to kitchen")
    obs, _, _, _, info = env.step("put down orange")
    assert lines(obs)[-3:] == (
        "choice 0 put down orange (in bowl, in counter, in kitchen)",
        "choice 1 put down orange (in inventory, in agent, in kitchen)",
        "said which number",
    )
    assert not info["invalid"]
    assert env.valid_actions() == ["0", "1"]
    obs = env.step("1")[0]
    assert {"carry nothing", "see orange"} <= set(lines(obs))


def test_valid_actions_are_some_tens_that_are_in_sight(env):
    start(env, "find-non-living-thing", 0)
    env.step("go to kitchen")
    actions = env.valid_actions()
    assert actions == sorted(set(actions))
    assert 50 < len(actions) < 200  # of 1,100 that the game lists
    assert {"focus on stopwatch", "move stopwatch to red box", "open cupboard"} <= set(
        actions
    )
    assert {"teleport to foundry", "go to outside"} <= set(actions)
    assert "pick up metal pot" not in actions  # it is in the closed cupboard
    env.step("open cupboard")
    assert "pick up metal pot" in env.valid_actions()


def test_simplifications_are_an_option(suite):
    env = suite.ScienceWorld(simplifications="")
    obs, _ = start(env, "find-non-living-thing", 0)
    assert "door kitchen closed" in lines(obs)
    assert env.step("teleport to kitchen")[4]["invalid"]
    assert env.expert()[0] == "open door to kitchen"
    *_, info = [env.step(action) for action in env.expert()][-1]
    assert info["success"]


def test_steps_run_out_without_an_end(suite):
    env = suite.ScienceWorld(max_steps=2)
    start(env, "find-animal", 0)
    assert env.step("wait1")[2:4] == (False, False)
    assert env.step("wait1")[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("wait1")


@pytest.mark.medium
def test_splits_are_the_packages_and_lie_apart(env, suite):
    seen = {}
    for split in base.SPLITS:
        tasks = env.tasks(split)
        families = [t.family for t in tasks]
        assert families[:8] == list(suite.DEFAULT_TASK_TYPES)
        assert {t.split for t in tasks} == {split}
        for task in tasks:
            assert seen.setdefault(task.id, split) == split
    assert sum(split == "train" for split in seen.values()) == 796
    assert seen["scienceworld-find-plant-0"] == "train"
    with pytest.raises(ValueError, match=r"split must be one of .* got 'valid'"):
        env.tasks("valid")
    alone = registry.make("scienceworld:find-plant").tasks("test")
    assert {t.family for t in alone} == {"find-plant"}
    assert len(alone) == 75


def test_a_seed_alone_chooses_a_train_task(env):
    states = {env.reset(seed=seed)[1]["instruction"] for seed in range(12)}
    assert len(states) > 2
    first, again = (env.reset(seed=3) for _ in range(2))
    assert first == again


# Animals move and hatch by chance here, and a room lists what it holds in an order of
# Java's own.
CHANGING = (
    "teleport to outside",
    *["wait"] * 3,
    "teleport to greenhouse",
    "pick up jug",
    "teleport to art studio",
    "open large cupboard",
    "teleport to outside",
    "wait",
)


@pytest.mark.slow
def test_equal_tasks_and_actions_give_equal_texts_whatever_is_played_beside(suite):
    one, two = (suite.ScienceWorld(max_steps=50) for _ in range(2))
    texts = [start(one, "find-animal", 8)[0], *play(one, CHANGING)]
    actions = one.valid_actions()
    assert len(set(texts)) > 6
    again = [start(two, "find-animal", 8)[0]]
    for number, action in enumerate(CHANGING):
        if number % 3 == 0:
            start(one, "find-plant", number)
        one.step("teleport to outside")
        one.valid_actions()
        again += play(two, [action])
    assert again == texts
    assert two.valid_actions() == actions
    _end_machine()
    assert [start(one, "find-animal", 8)[0], *play(one, CHANGING)] == texts
    assert one.valid_actions() == actions


def _end_machine():
    module = importlib.import_module(f"{SUITE}_java")
    process = module.java_machine.machine_of(module.PROGRAM)._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)


@pytest.mark.slow
def test_a_java_machine_that_is_killed_is_replaced_in_the_same_place(suite):
    plain = suite.ScienceWorld()
    base.begin(plain, task("find-plant", 2))
    plan = plain.expert()
    expected = [base.take(plain, action) for action in plan]
    assert expected[-1].success
    env = restarting.RestartingEnv(suite.ScienceWorld)
    base.begin(env, task("find-plant", 2))
    steps = []
    for number, action in enumerate(plan):
        if number in (1, len(plan) - 1):
            _end_machine()
        steps.append(base.take(env, action))
    assert steps == expected
    base.begin(plain, task("find-plant", 2))
    _end_machine()
    with pytest.raises(ConnectionError, match="Java machine of ScienceWorld has ended"):
        base.take(plain, "look around")  # without a restart it says what happened


def test_java_is_a_session_of_its_own(suite):
    module = importlib.import_module(f"{SUITE}_java")
    start(suite.ScienceWorld(), "melt", 0)
    machine = module.java_machine.machine_of(module.PROGRAM)
    assert os.getsid(machine._process.pid) != os.getsid(0)


@pytest.mark.slow
@pytest.mark.parametrize("split", base.SPLITS)
def test_the_expert_wins_every_default_task_type(suite, env, split):
    tasks = env.tasks(split)
    for task in (*tasks[:8], *tasks[16:24]):
        env.reset(options={"task": task})
        plan, total = env.expert(), 0.0
        assert 0 < len(plan) <= suite.PLAN_STEPS[task.family]
        for number, action in enumerate(plan, start=1):
            _, reward, ended, truncated, info = env.step(action)
            assert not truncated
            assert not info["invalid"]
            assert ended == (number == len(plan)), (task.id, plan, number)
            total += reward
        assert info["success"], task.id
        assert 0.7 < total <= 1.0 + 1e-9


@pytest.mark.slow
@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("task_type", ["boil", "chemistry-mix", "grow-fruit"])
def test_the_expert_wins_other_task_types_by_name(task_type):
    env = registry.make(f"scienceworld:{task_type}")
    env.reset(options={"task": env.tasks("test")[0]})
    *_, info = [env.step(action) for action in env.expert()][-1]
    assert info["success"]
    if task_type == "chemistry-mix":  # the recipe is remembered in every later room
        assert "\nnote The recipe reads:" in env._text()
