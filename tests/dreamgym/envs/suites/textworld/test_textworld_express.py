"""TextWorldExpress: real games, the mapping to lines, splits, determinism, experts."""

import os
import random
import re
import signal

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from dreamgym.envs import base, restarting
from dreamgym.envs.suites.textworld import express as textworld
from dreamgym.envs.suites.textworld import java as textworld_java
from worldmodel.data.records import Task, lines


def game(family, seed, split="train"):
    return Task(
        id=f"{family}-{seed}",
        instruction="",
        family=family,
        options={
            "family": family,
            "seed": textworld.FOLDS[split] + seed,
            "fold": split,
        },
    )


def start(family, seed, split="train", **settings):
    env = textworld.TextWorldExpress(**settings)
    obs, info = env.reset(options={"task": game(family, seed, split)})
    return env, lines(obs), info


def status(state):
    """What the last line says: message, carried things, things here, room."""
    form = r"said (.+) carry (.+) here (.+) at (\w+)"
    return re.fullmatch(form, state[-1]).groups()


def exits(state):
    """[(direction, room)] of where the agent is: the last line but one."""
    here = status(state)[3]
    words = state[-2].replace(" unseen", "").split()
    assert words[::3] == [here] * (len(words) // 3)
    return list(zip(words[1::3], words[2::3], strict=True))


def unseen(state):
    """Rooms that some line of the map calls unseen."""
    return set(re.findall(r"(\w+) unseen", " | ".join(state[:-1])))


def things(state):
    """{room: things} of the first line."""
    result = state[0].removeprefix("found ")
    return dict(re.findall(r"(\w+) has (.+?)(?= \w+ has |$)", result))


def test_a_coin_game_by_hand():
    # "You are in the kitchen. [...] There is also a coin. To the South you see the
    # bathroom. To the East you see the backyard. To the West you see the pantry."
    env, state, info = start("coin", 1)
    assert info["instruction"] == "find and take the coin"
    kitchen = (
        "kitchen south bathroom unseen kitchen east backyard unseen kitchen west pantry"
    )
    assert state == (
        "found kitchen has coin",
        f"{kitchen} unseen",
        "said ok carry nothing here coin at kitchen",
    )
    # What is left behind is remembered, and so is the way back.
    away = lines(env.step("move west")[0])
    assert away == (
        "found kitchen has coin",
        kitchen,
        "pantry east kitchen",
        "said ok carry nothing here nothing at pantry",
    )
    # The room one is in stands last, in the words it stood in before.
    assert lines(env.step("move east")[0]) == (
        "found kitchen has coin",
        "pantry east kitchen",
        kitchen,
        "said ok carry nothing here coin at kitchen",
    )
    obs, reward, terminated, truncated, output = env.step("take coin")
    assert lines(obs) == (
        "found nothing",
        "pantry east kitchen",
        kitchen,
        "said you take the coin carry coin here nothing at kitchen",
    )
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert output["success"] is True
    assert output["rewards"] == {"score": 1.0}


def test_a_map_game_by_hand():
    # The coin is in the chamber, the box here. The map reads: "The supermarket connects
    # to the cupboard and parlor. [...] The cupboard connects to the living room, study,
    # supermarket and chamber."
    env, state, info = start("mapreader", 0)
    assert info["instruction"] == "bring the coin from chamber to the box in cupboard"
    cupboard = (
        "cupboard north supermarket unseen cupboard south chamber unseen "
        "cupboard east livingroom unseen cupboard west study unseen"
    )
    seen = ("found cupboard has box", cupboard)
    assert state == (*seen, "said ok carry map here box at cupboard")
    state = lines(env.step("read map")[0])
    assert status(state) == ("map read", "map", "box", "cupboard")
    # Of the map's five other rooms the task names one.
    assert set(state[:-1]) == {"chamber near cupboard", *seen}
    # What is seen replaces what was read of that room.
    state = lines(env.step("move south")[0])
    cupboard = cupboard.replace("chamber unseen", "chamber")
    seen = ("found cupboard has box chamber has coin", cupboard)
    assert set(state[:-1]) == {*seen, "chamber north cupboard"}
    assert state[-3:-1] == (cupboard, "chamber north cupboard")
    assert things(state) == {"cupboard": "box", "chamber": "coin"}
    # Reading again tells nothing new, and what was seen stays where it is.
    assert lines(env.step("read map")[0])[:-1] == state[:-1]
    rewards = [env.step(a)[1] for a in ("take coin", "move north")]
    assert rewards == [0.5, 0.0]
    obs, reward, terminated, _, output = env.step("put coin in box")
    assert things(lines(obs)) == {"cupboard": "box with coin"}
    assert status(lines(obs))[1] == "map"
    assert (reward, terminated, output["success"]) == (0.5, True, True)


@pytest.mark.parametrize("action", ["frob ☃", "", "Take Coin", "x" * 300, "move\nwest"])
def test_an_unknown_action_changes_nothing_but_the_message(action):
    env, before, _ = start("coin", 1)
    obs, reward, terminated, truncated, info = env.step(action)
    after = lines(obs)
    assert info["invalid"] is True
    assert (reward, terminated, truncated) == (0.0, False, False)
    _, *rest = status(before)
    assert status(after) == ("unknown action", *rest)
    assert after[:-1] == before[:-1]
    obs, _, _, _, info = env.step("take coin")
    assert info["invalid"] is False
    assert info["success"] is True


@pytest.mark.parametrize("family", textworld.GAMES)
@pytest.mark.parametrize("split", base.SPLITS)
def test_the_expert_wins(family, split):
    for seed in range(4):
        env, _, _ = start(family, seed, split)
        plan = env.expert()
        total = 0.0
        for number, action in enumerate(plan):
            assert action in env.valid_actions()
            _, reward, terminated, truncated, info = env.step(action)
            total += reward
            assert terminated is (number + 1 == len(plan))
        assert info["success"] is True
        assert not truncated
        assert total == pytest.approx(1.0)


@pytest.mark.parametrize("family", textworld.GAMES)
def test_same_game_and_actions_same_texts_in_another_copy(family):
    traces = []
    for _ in range(2):
        env, state, _ = start(family, 7)
        trace = [state]
        for number in range(8):
            actions = env.valid_actions()
            obs, *rest, _ = env.step(actions[number % len(actions)])
            trace.append((lines(obs), *rest))
            if rest[1] or rest[2]:
                break
        traces.append(trace)
    assert traces[0] == traces[1]
    assert start(family, 8)[1] != traces[0][0] or start(family, 9)[1] != traces[0][0]


@pytest.mark.parametrize("family", textworld.GAMES)
def test_a_room_is_unseen_until_the_agent_has_been_there(family):
    rng = random.Random(3)
    for seed in range(6):
        env, state, _ = start(family, seed)
        been, named = set(), set()
        for _ in range(14):
            been.add(status(state)[3])
            named |= {room for _, room in exits(state)}
            assert unseen(state) == named - been
            moves = [a for a in env.valid_actions() if a.startswith("move")]
            text, *_, info = env.step(rng.choice(moves))
            state = lines(text)
            assert info["reveals"] is (status(state)[3] not in been)


def test_a_map_reveals_what_is_near_once():
    env, _, _ = start("mapreader", 0)
    info = [env.step("read map")[-1]["reveals"] for _ in range(2)]
    assert info == [True, False]
    assert env.step("dance")[-1]["reveals"] is False


def test_two_copies_do_not_disturb_each_other():
    one, state_one, _ = start("coin", 2)
    two, _, _ = start("mapreader", 3)
    two.step("read map")
    obs, *_ = one.step("frob")
    assert lines(obs)[:-1] == state_one[:-1]
    assert any("near" in line for line in lines(two.step("frob")[0]))


def walked(env, task):
    """Every room of a game, by walking through it: what makes it this game."""
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    state = lines(env.reset(options={"task": task})[0])
    rooms, path = {}, []
    while True:
        here, ways = status(state)[3], exits(state)
        rooms[here] = (tuple(ways), things(state).get(here))
        new = [d for d, room in ways if room not in rooms]
        if new:
            path.append(back[new[0]])
        elif not path:
            return tuple(sorted(rooms.items()))
        state = lines(env.step(f"move {new[0] if new else path.pop()}")[0])


@pytest.mark.slow
def test_no_game_of_one_split_is_a_game_of_another():
    env = textworld.TextWorldExpress(max_steps=1000)
    games = {}
    for split in base.SPLITS:
        tasks = env.tasks(split)
        assert {t.split for t in tasks} == {split}
        assert [t.family for t in tasks[:4]] == [*textworld.GAMES] * 2
        assert len({t.id for t in tasks}) == len(tasks) > 100
        for task in tasks:
            if task.family == "coin":  # a map game's instruction tells it apart
                start = env.reset(options={"task": task})[0]
                games.setdefault((start, walked(env, task)), []).append(task.id)
    assert [same for same in games.values() if len(same) > 1] == []
    with pytest.raises(ValueError, match=r"split must be one of .* got 'valid'"):
        env.tasks("valid")


def test_map_games_of_the_splits_differ():
    env = textworld.TextWorldExpress()
    seen = {}
    for split in base.SPLITS:
        for task in env.tasks(split)[1:120:2]:
            obs, info = env.reset(options={"task": task})
            output = (obs, info["instruction"], env.step("read map")[0])
            assert seen.setdefault(output, task.id) == task.id


def test_the_games_of_a_split_are_the_same_when_looked_at_again(monkeypatch):
    # Another process must choose the same games, or a run cannot be repeated.
    monkeypatch.setattr(textworld, "SEEDS", {"train": 80, "dev": 20, "test": 20})
    results = []
    for _ in range(3):
        textworld._games.cache_clear()
        env = textworld.TextWorldExpress()
        results.append([[t.id for t in env.tasks(s)] for s in base.SPLITS])
    textworld._games.cache_clear()
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("family", textworld.GAMES)
def test_the_expert_has_one_plan_for_a_game(family):
    for seed in range(6):
        plans = [start(family, seed)[0].expert() for _ in range(3)]
        assert plans[0] == plans[1] == plans[2]


def test_valid_actions_are_progress_in_a_fixed_order():
    env, state, _ = start("coin", 1)
    actions = env.valid_actions()
    assert actions == sorted(actions)
    assert "look around" not in actions
    assert [a for a in actions if a.startswith("move")] == [
        f"move {d}" for d, _ in sorted(exits(state))
    ]


def test_the_limit_truncates_and_then_a_step_raises():
    env, _, _ = start("coin", 5, max_steps=3)
    ends = [env.step("frob")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    with pytest.raises(RuntimeError, match="reset"):
        env.step("frob")
    with pytest.raises(RuntimeError, match="reset"):
        textworld.TextWorldExpress().step("look around")
    with pytest.raises(ValueError, match="max_steps must be >= 1, got 0"):
        textworld.TextWorldExpress(max_steps=0)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"family": "chess", "seed": 1, "fold": "train"},
        {"family": "coin", "fold": "train"},
        {"family": "coin", "seed": 1, "fold": "valid"},
    ],
)
def test_a_task_of_another_environment_is_refused(options):
    task = Task(id="odd", instruction="", options=options)
    with pytest.raises(ValueError, match=r"'odd'.*family of .*coin.*fold of .*train"):
        textworld.TextWorldExpress().reset(options={"task": task})


def test_a_closed_environment_opens_again():
    env, state, _ = start("coin", 1)
    env.close()
    with pytest.raises(RuntimeError, match="reset"):
        env.step("take coin")
    obs, _ = env.reset(options={"task": game("coin", 1)})
    assert lines(obs) == state


def test_a_seed_alone_chooses_a_train_game():
    env = textworld.TextWorldExpress()
    first, again = (env.reset(seed=3)[0] for _ in range(2))
    assert first == again
    others = {env.reset(seed=s)[0] for s in range(4, 9)}
    assert others - {first}


@pytest.mark.medium
def test_a_java_machine_that_is_killed_is_replaced_in_the_same_place():
    task = game("coin", 3)
    plain = textworld.TextWorldExpress()
    base.begin(plain, task)
    plan = plain.expert()
    expected = [base.take(plain, a) for a in plan]
    env = restarting.RestartingEnv(textworld.TextWorldExpress)
    base.begin(env, task)
    steps = []
    for action in plan:
        os.kill(textworld_java.current_machine()._process.pid, signal.SIGKILL)
        steps.append(base.take(env, action))
    assert steps == expected
    base.begin(plain, task)
    os.kill(textworld_java.current_machine()._process.pid, signal.SIGKILL)
    with pytest.raises(ConnectionError, match="Java machine"):
        base.take(plain, "look around")  # without a restart it says what happened


def test_java_is_a_session_of_its_own_and_asks_for_a_token():
    machine = textworld_java.current_machine()
    assert os.getsid(machine._process.pid) != os.getsid(0)
    port = machine._gateway.gateway_parameters.port
    stranger = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    with pytest.raises(Py4JError):
        stranger.jvm.java.lang.System.currentTimeMillis()
