"""ALFWorld's engine: plans that win, states by hand, equal texts, official files."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("alfworld")

from dreamgym import Task
from dreamgym.cli import main
from dreamgym.envs import base, registry
from dreamgym.envs.suites.alfworld import games
from dreamgym.envs.suites.alfworld.engine import Engine
from dreamgym.envs.suites.alfworld.text import Household

pytestmark = pytest.mark.peer


@pytest.fixture
def env():
    env = registry.make("alfworld")
    yield env
    env.close()


def task_of(env, task_type, split="train"):
    return next(t for t in env.tasks(split) if t.family == task_type)


def play(env, task, actions):
    base.begin(env, task)
    return [base.take(env, action) for action in actions]


@pytest.mark.medium
@pytest.mark.parametrize("task_type", games.TASK_TYPES)
def test_the_expert_wins_by_possible_actions_alone(env, task_type):
    for split in base.SPLITS:
        tasks = [t for t in env.tasks(split) if t.family == task_type]
        assert len(tasks) >= 11
        for task in tasks[:1]:
            base.begin(env, task)
            plan = env.expert()
            assert len(plan) <= games.MAX_STEPS
            for action in plan:
                assert action in env.valid_actions()
                step = base.take(env, action)
                assert not step.invalid
            assert step.success
            assert step.terminated


def test_the_splits_share_no_floor_plan(env):
    rooms = [{t.options["room"] for t in env.tasks(split)} for split in base.SPLITS]
    assert not rooms[0] & rooms[1]
    assert not (rooms[0] | rooms[1]) & rooms[2]
    assert [len(env.tasks(split)) for split in base.SPLITS] == [806, 158, 250]


def test_no_goal_is_reached_before_anything_is_done():
    """A thing that is to be moved does not lie where it is to go."""
    for task_type in games.TASK_TYPES:
        for room, seed in games.list_games(task_type, "dev"):
            game = games.draw_game(room, task_type, seed)
            things = [i for i in game.places if i.type == game.goal.thing]
            assert things
            places = {game.places[thing].type for thing in things}
            assert game.goal.place not in places


def test_names_are_those_of_the_engine():
    game = games.draw_game(10, "pick_two_obj_and_place", 0)
    engine = Engine()
    answer = engine.start(game.data)
    household = Household(answer.text)
    assert household._unseen == [item.name for item in game.furniture]
    assert household.request == game.request
    for place in game.furniture:
        household.read(engine.step(f"go to {place.name}").text)
        if place.openable:
            household.read(engine.step(f"open {place.name}").text)
        inside = [t.name for t, where in game.places.items() if where == place]
        assert sorted(household._contents[place.name]) == sorted(inside)
    engine.close()


INTRODUCTION = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking "
    "quickly around you, you see a drawer 10, a drawer 2, a fridge 1, and a shelf 1."
    "\n\nYour task is to: cool some egg and put it in shelf."
)


def test_states_by_hand():
    household = Household(INTRODUCTION)
    assert household.request == "cool some egg and put it in shelf"
    assert household.lines() == [
        "unseen drawer 2, drawer 10, fridge 1, shelf 1",
        "carry nothing",
        "at middle of the room",
        "said welcome",
    ]
    assert household.read("You arrive at fridge 1. The fridge 1 is closed.")
    assert household.lines()[1:] == [
        "fridge 1 closed",
        "carry nothing",
        "at fridge 1",
        "said You arrive at fridge 1",
    ]
    assert household.read(
        "You open the fridge 1. The fridge 1 is open. In it, you see a cup 1, and a "
        "egg 2."
    )
    assert not household.read("You pick up the egg 2 from the fridge 1.")
    assert not household.read("You cool the egg 2 using the fridge 1.")
    assert household.lines() == [
        "unseen drawer 2, drawer 10, shelf 1",
        "fridge 1 open cup 1",
        "egg 2 is cool",
        "carry egg 2",
        "at fridge 1",
        "said You cool the egg 2 using the fridge 1",
    ]
    assert not household.read("You close the fridge 1.")
    assert not household.read("You heat the egg 2 using the microwave 1.")
    assert household.read("You arrive at shelf 1. On the shelf 1, you see nothing.")
    assert not household.read("You move the egg 2 to the shelf 1.")
    assert household.lines()[1:-1] == [
        "fridge 1 closed cup 1",
        "shelf 1 has egg 2",
        "egg 2 is hot",
        "carry nothing",
        "at shelf 1",
    ]
    assert not household.read("Nothing happens.")
    assert household.lines()[-1] == "said Nothing happens"


def test_a_refused_action_changes_only_what_is_said(env):
    task = task_of(env, "pick_and_place_simple")
    base.begin(env, task)
    before = env._household.lines()
    step = base.take(env, "fly to the moon")
    assert step.invalid
    assert step.state == (*before[:-1], "said Nothing happens")


def test_help_is_one_line_of_the_state(env):
    base.begin(env, task_of(env, "pick_and_place_simple"))
    before = env._household.lines()
    step = base.take(env, "help")
    assert step.state == (*before[:-1], "said Available commands:")


def test_no_step_is_taken_after_a_reset_that_failed(env):
    base.begin(env, task_of(env, "pick_and_place_simple"))
    options = {"task_type": "pick_and_place_simple", "room": 10, "seed": True}
    with pytest.raises(ValueError, match="options must name a task_type"):
        env.reset(options={"task": Task(id="t", instruction="", options=options)})
    with pytest.raises(RuntimeError, match="needs a running episode"):
        env.step("look")


def test_an_episode_ends_after_its_last_step(env):
    task = task_of(env, "look_at_obj_in_light")
    steps = play(env, task, ["look"] * games.MAX_STEPS)
    assert [s.truncated for s in steps[-2:]] == [False, True]
    assert not steps[-1].success


TEXTS = """
import json, sys
from dreamgym.envs.suites.alfworld import engine as alfworld_engine
from dreamgym.envs.suites.alfworld import games as alfworld_games
if sys.argv[1] == "released":
    alfworld_engine._speed_up = lambda: None
engine = alfworld_engine.Engine()
texts = []
for task_type in ("pick_heat_then_place_in_recep", "look_at_obj_in_light"):
    room, seed = alfworld_games.list_games(task_type, "test")[0]
    game = alfworld_games.draw_game(room, task_type, seed)
    for _ in range(2):
        texts.append(engine.start(game.data))
        for action in (*alfworld_games.plan_of(room, task_type, seed)[:6], "look"):
            texts.append(engine.step(action))
assert sys.argv[1] in ("released", "fast")
print(json.dumps(texts))
"""


@pytest.mark.medium
def test_the_texts_are_those_of_the_engine_as_released():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TEXTS, way],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout
        for way in ("released", "fast")
    ]
    assert len(json.loads(outputs[0])) > 20
    assert outputs[0] == outputs[1]


CLOSING = """
import gc
from dreamgym.envs.suites.alfworld import engine as alfworld_engine
from dreamgym.envs.suites.alfworld import games as alfworld_games
game = alfworld_games.draw_game(301, "look_at_obj_in_light", 0)
texts = []
for _ in range(3):
    engines = [alfworld_engine.Engine() for _ in range(3)]
    texts += [engine.start(game.data).text for engine in engines]
    for engine in engines:
        engine.close()
        engine.close()
    del engine, engines
    gc.collect()
assert len(set(texts)) == 1
assert len(alfworld_engine._idle) == 3
"""


def test_engines_can_be_closed_and_opened_again():
    """The library crashes the process where a copy of it is unloaded."""
    done = subprocess.run([sys.executable, "-c", CLOSING], check=False, timeout=300)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task_type": "fly", "room": 10, "seed": 0},
        {"task_type": "pick_and_place_simple", "room": 77, "seed": 0},
        {"task_type": "pick_heat_then_place_in_recep", "room": 401, "seed": 0},
    ],
)
def test_a_task_that_names_no_game_is_refused(env, options):
    with pytest.raises(ValueError, match="options must name a task_type"):
        env.reset(options={"task": Task(id="t", instruction="", options=options)})


def test_an_unknown_task_type_is_refused():
    with pytest.raises(ValueError, match="expected 'official' or one of pick_and"):
        registry.make("alfworld:nonsense")


def write_official_game(folder, game, **content):
    folder.mkdir(parents=True)
    plan = games.plan_of(game.room, game.goal.task_type, game.seed)
    data = {**game.data, "solvable": True, "walkthrough": list(plan), **content}
    (folder / "game.tw-pddl").write_text(json.dumps(data))
    description = {"task_type": game.goal.task_type}
    (folder / "traj_data.json").write_text(json.dumps(description))


def test_official_files_are_played_where_they_are(tmp_path, monkeypatch):
    """Files of the official layout with games of ours: the real ones need a network."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    root = tmp_path / "json_2.1.1"
    task_type = "pick_and_place_simple"
    room, seed = games.list_games(task_type, "train")[0]
    game = games.draw_game(room, task_type, seed)
    write_official_game(root / "train/a/trial_1", game)
    write_official_game(root / "train/a/trial_2", game, solvable=False)
    write_official_game(root / "train/movable_b/trial_1", game)
    write_official_game(root / "valid_unseen/c/trial_1", game, walkthrough=None)
    env = registry.make("alfworld:official")
    (task,) = env.tasks("train")
    assert task.id == "alfworld-train/a/trial_1"
    base.begin(env, task)
    assert play(env, task, env.expert())[-1].success
    (unseen,) = env.tasks("test")
    base.begin(env, unseen)
    assert env.expert() == []
    with pytest.raises(ValueError, match=r"no game of ALFWorld in .*valid_seen.*down"):
        env.tasks("dev")
    with pytest.raises(ValueError, match="must name the file of a game"):
        env.reset(options={"task": Task(id="t", instruction="", options={"file": "x"})})
    env.close()


def test_missing_official_files_are_one_line_of_check(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["check", "--env", "alfworld:official"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "no game of ALFWorld in" in line
    assert "alfworld-download" in line


def test_arguments_of_this_process_are_kept(env, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mine", "--flag"])
    base.begin(env, task_of(env, "pick_and_place_simple", "dev"))
    assert sys.argv == ["mine", "--flag"]


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.alfworld.env", raising=False)
    monkeypatch.setitem(sys.modules, "alfworld", None)
    with pytest.raises(ValueError, match=r"dreamgym\[alfworld\]") as caught:
        registry.make("alfworld")
    assert "\n" not in str(caught.value)
