"""TextWorld's own games: plans that win, what states show, lost and refused actions."""

import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("textworld")

from textworld import Game as Description

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.suites.twgames import env as twgames_env
from dreamgym.envs.suites.twgames import games
from dreamgym.envs.suites.twgames.engine import UNKNOWN_NOUN, UNKNOWN_VERB
from dreamgym.envs.suites.twgames.expert import next_command, plan_of

pytestmark = pytest.mark.peer

KITCHEN = "recipe1+take1+cook+cut+open"
HOUSE = "recipe2+take2+cook+cut+open+drop+go6"


@pytest.fixture
def env():
    env = registry.make(f"twcooking:{KITCHEN}")
    yield env
    env.close()


def begin(env, split="train"):
    return base.begin(env, env.tasks(split)[0])


# --- plans ---


@pytest.mark.medium
@pytest.mark.parametrize(
    ("spec", "split"),
    [
        (f"twcooking:{KITCHEN}", "train"),
        (f"twcooking:{KITCHEN}", "dev"),
        (f"twcooking:{KITCHEN}", "test"),
        (f"twcooking:{HOUSE}", "train"),
        ("twcoin:level105", "test"),
    ],
)
def test_the_expert_wins_by_possible_actions_alone(spec, split):
    env = registry.make(spec)
    begin(env, split)
    plan, total = env.expert(), 0.0
    assert 0 < len(plan) <= env.max_episode_steps
    for action in plan:
        assert action in env.valid_actions()
        step = base.take(env, action)
        assert not step.invalid
        total += sum(step.rewards.values())
    assert step.success
    assert step.terminated
    assert total == pytest.approx(1.0)
    env.close()


def described(name, split, number, kind="cooking"):
    """The package's description of a game that is not compiled."""
    game = games.Game(kind, name, split, games.FIRST_SEEDS[split] + number)
    content, _ = games._generate(game)
    return json.dumps(content.serialize()).encode(), twgames_env.capacity(game)


@pytest.fixture
def without_walkthroughs(monkeypatch):
    """The package compiles a game to note its own plan, which nobody asks for."""
    maker = "textworld.generator.maker.GameMaker.set_walkthrough"
    monkeypatch.setattr(maker, lambda *_: None)


@pytest.mark.medium
@pytest.mark.usefixtures("without_walkthroughs")
@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("recipe1", [3]),  # read the cookbook, prepare, eat
        ("recipe3+take3+cook+cut+open", range(13, 18)),
        ("recipe3+take3+cut+drop", range(9, 20)),
        ("recipe2+take1+cut+open+go9+drop", range(10, 101)),
        ("recipe5+take5+cook+cut+open+go12", range(20, 101)),
    ],
)
def test_the_search_ends_in_a_meal(name, actions):
    for split in base.SPLITS:
        description, hands = described(name, split, 1)
        assert len(plan_of(description, "cooking", hands)) in actions


@pytest.mark.usefixtures("without_walkthroughs")
def test_what_can_be_carried_is_heeded():
    """With one hand less than the game has, there is no plan."""
    description, hands = described("recipe3+take3+cut+drop", "train", 1)
    plan = plan_of(description, "cooking", hands)
    assert "drop knife" in plan
    assert plan_of(description, "cooking", hands - 1) == ()
    assert plan_of(description, "cooking") == ()  # what the game does not take


@pytest.mark.medium
@pytest.mark.usefixtures("without_walkthroughs")
def test_the_expert_knows_nothing_but_the_state(monkeypatch):
    """Where two moments have the same lines, it does the same."""
    commands = {}

    def watched(house, hands):
        command = next_command(house, hands)
        assert commands.setdefault(tuple(house.lines()[:-1]), command) == command
        return command

    monkeypatch.setattr("dreamgym.envs.suites.twgames.expert.next_command", watched)
    for number in range(4):
        description, hands = described("recipe1+take1+open", "train", number)
        assert plan_of(description, "cooking", hands)
    assert len(commands) > 10


# --- states ---


def test_states_show_what_the_texts_show_and_no_more():
    env = registry.make(f"twcooking:{HOUSE}")
    begin(env)
    foods = foods_of(env._reply.facts)
    for action in env.expert():
        sight, hands = (look(env, command) for command in ("look", "inventory"))
        house = env._house
        places = {n: p for n, p in house.places.items() if p.room == house.at}
        things = [thing for place in places.values() for thing in place.things or ()]
        furniture = [n for n in places if not n.startswith("floor of")]
        assert [x for x in (*map(printed, things), *furniture) if x not in sight] == []
        assert {t.name for t in things} & foods == {f for f in foods if f in sight}
        assert [t for t in house.carried if printed(t) not in hands] == []
        assert {t.name for t in house.carried} & foods == {
            f for f in foods if f in hands
        }
        base.take(env, action)
    env.close()


def look(env, command):
    return env._engine._env.step(command)[0]["feedback"]


def printed(thing):
    """A thing as the game prints it."""
    return " ".join((*thing.condition, thing.name))


def foods_of(facts):
    return {
        name
        for fact in facts
        for name, kind in zip(fact.names, fact.types, strict=True)
        if kind == "f"
    }


def test_a_refused_action_changes_only_what_is_said(env):
    _, state = begin(env)
    before = state[:-1]
    for action, text in {
        "fly": UNKNOWN_VERB,
        "": UNKNOWN_VERB,
        "quit": UNKNOWN_VERB,  # the game would ask back, and take no more commands
        "undo": UNKNOWN_VERB,
        "look then quit": UNKNOWN_NOUN,
        "take moon": UNKNOWN_NOUN,
        "take fridge": "That's fixed in place",
        "eat meal": UNKNOWN_NOUN,
    }.items():
        step = base.take(env, action)
        assert step.invalid
        assert step.state == (*before, f"said {text.rstrip('.')}")


def test_words_that_the_engine_refuses_are_those_of_the_game(env):
    begin(env)
    for command, answer in {"fly": UNKNOWN_VERB, "take moon": UNKNOWN_NOUN}.items():
        assert answer in env._engine._env.step(command)[0]["feedback"]


def test_looking_is_no_invalid_action(env):
    _, state = begin(env)
    for action in ("look", "inventory", "examine fridge"):
        step = base.take(env, action)
        assert not step.invalid
        assert step.state[:-1] == state[:-1]
        assert action not in env.valid_actions()


def test_the_cookbook_is_read_once(env):
    begin(env)
    assert "examine cookbook" in env.valid_actions()
    step = base.take(env, "examine cookbook")
    assert step.reveals
    assert not step.invalid
    assert [line for line in step.state if line.startswith("recipe ")]
    assert "examine cookbook" not in env.valid_actions()
    assert not base.take(env, "examine cookbook").reveals


def test_food_that_is_burned_loses_the_game(env):
    begin(env)
    plan = env.expert()
    number = next(i for i, action in enumerate(plan) if action.startswith("cook "))
    for action in plan[: number + 1]:
        step = base.take(env, action)
    assert not step.terminated
    step = base.take(env, plan[number])
    assert step.state[-1].startswith("said You burned the ")
    assert step.terminated
    assert not step.success
    assert not step.truncated
    with pytest.raises(RuntimeError, match="needs a running episode"):
        env.step("look")


def test_an_episode_ends_after_its_last_step(env):
    begin(env)
    steps = [base.take(env, "look") for _ in range(env.max_episode_steps)]
    assert [s.truncated for s in steps[-2:]] == [False, True]
    assert not steps[-1].success


@pytest.mark.parametrize("last", ["burn", "win"])
def test_an_end_at_the_last_step_is_no_truncation(env, last):
    begin(env)
    actions = env.expert()
    if last == "burn":
        number = next(i for i, a in enumerate(actions) if a.startswith("cook "))
        actions = [*actions[: number + 1], actions[number]]
    env.max_episode_steps = len(actions)
    step = [base.take(env, action) for action in actions][-1]
    assert (step.terminated, step.truncated) == (True, False)
    assert step.success is (last == "win")


TEXTS = """
import json
from dreamgym.envs import base, registry
env = registry.make("twcooking:recipe1+take1+cook+cut+open")
episodes = []
for split in base.SPLITS:
    _, state = base.begin(env, env.tasks(split)[0])
    episodes.append([state, *(base.take(env, action) for action in env.expert())])
env.close()
print(json.dumps(episodes, default=str))
"""


@pytest.mark.medium
def test_equal_actions_give_equal_texts_in_every_process():
    outputs = [
        subprocess.run(
            [sys.executable, "-c", TEXTS],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert len(json.loads(outputs[0])) == 3
    assert outputs[0] == outputs[1]


# --- tasks ---


def test_tasks_are_listed_and_none_is_made(monkeypatch):
    monkeypatch.setattr(twgames_env, "make_games", pytest.fail)
    env = registry.make("twcooking")
    listed = {split: env.tasks(split) for split in base.SPLITS}
    assert {s: len(tasks) for s, tasks in listed.items()} == twgames_env.SIZES
    assert [t.family for t in listed["dev"][:4]] == [
        *twgames_env.RECIPES,
        twgames_env.RECIPES[0],
    ]
    ids = [t.id for tasks in listed.values() for t in tasks]
    assert len(set(ids)) == len(ids)
    seeds = [{t.options["seed"] for t in tasks} for tasks in listed.values()]
    assert not seeds[0] & seeds[1]
    assert not (seeds[0] | seeds[1]) & seeds[2]


@pytest.mark.usefixtures("without_walkthroughs")
def test_dev_and_test_games_have_foods_that_no_train_game_has():
    from textworld.challenges.tw_cooking.cooking import FOODS_SPLITS

    apart = {
        split: set(FOODS_SPLITS[games.SPLIT_NAMES[split]]) for split in base.SPLITS
    }
    for split in base.SPLITS:
        game, _ = described("recipe3+take3+cook+open", split, 0)
        infos = Description.deserialize(json.loads(game)).infos.values()
        foods = {info.name for info in infos if info.type == "f"}
        assert foods & apart[split]
        others = [s for s in base.SPLITS if s not in (split, "train")]
        assert not any(foods & apart[other] for other in others)


@pytest.mark.medium
def test_the_request_for_a_coin_does_not_tell_the_way():
    game, _ = described("level105", "train", 0, kind="coin")
    request = Description.deserialize(json.loads(game)).objective
    assert "coin" in request
    assert not {"north", "south", "east", "west"} & set(re.findall(r"\w+", request))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "unknown game of tw-cooking 'None'"),
        ({"game": "recipe1", "split": "valid", "seed": 1}, "no split 'valid'"),
        ({"game": "recipe1", "split": "dev", "seed": True}, "no seed True"),
        ({"game": "recipe9", "split": "dev", "seed": 1}, "recipe must be 1 to 5"),
    ],
)
def test_a_task_that_names_no_game_is_refused(env, options, message):
    begin(env)
    task = Task(id="t", instruction="", options=options)
    with pytest.raises(ValueError, match="options must name a game") as caught:
        env.reset(options={"task": task})
    assert message in str(caught.value)
    with pytest.raises(RuntimeError, match="needs a running episode"):
        env.step("look")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("twcooking:nonsense", "skills joined by \\+.*got 'nonsense'"),
        ("twcooking:recipe2+take3", "take must be at most recipe"),
        ("twcooking:recipe2+go7", "must be one of \\(1, 6, 9, 12\\)"),
        ("twcooking:recipe0", "recipe must be 1 to 5"),
        ("twcooking:recipe1+cut+recipe2", "each skill once, got 'recipe2' again"),
        ("twcooking:recipe1+cut+cut", "each skill once, got 'cut' again"),
        ("twcooking:recipe\u0663", "skills joined by"),  # a digit of another script
        ("twcooking:", "skills joined by"),
        ("twcoin:level301", "level201 to level233"),
        ("twcoin:level005", "expected level1 to level100"),
        ("twcoin:recipe1", "expected level1 to level100"),
        ("twcoin:level151", "has 102 rooms: TextWorld takes 100"),
    ],
)
def test_an_unknown_game_is_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        registry.make(spec)


def test_names_are_written_in_one_way():
    env = registry.make("twcooking:go1+cut+take1+recipe2")
    assert env.names == ("recipe2+take1+cut",)
    assert env.max_episode_steps == 50
    assert registry.make("twcooking:recipe1+go6").max_episode_steps == 100
    assert registry.make("twcoin:level105").max_episode_steps == 50
    assert registry.make("twcoin:level133").max_episode_steps == 165  # 33 in a row


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "dreamgym.envs.suites.twgames.env", raising=False)
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ValueError, match=r"dreamgym\[textworld\]") as caught:
        registry.make("twcooking")
    assert "\n" not in str(caught.value)
