"""Perturbed games: the same games in other words, which every plan still wins."""

import dataclasses

import pytest

from dreamgym.agent import floors
from dreamgym.envs import base
from dreamgym.envs.perturbations import (
    PERTURBATIONS,
    PerturbedEnv,
    following,
    names_of,
)
from tests import corridor, doubles
from tests.strangers.tools import Calendar, Store

PEOPLE, PLACES = ("ada", "bob", "eve", "kim"), ("coin", "goal", "at", "end", "left")
NAMES = {
    "short": (PLACES,),
    "long": (PLACES,),
    "store": (PEOPLE,),
    "calendar": (PEOPLE, ("mon", "tue")),
}


def games(make, kind, rate=0.5, count=6):
    """Play the expert's plan of test tasks under a perturbation."""
    tasks = base.begin_all(make(), base.tasks_of(make(), "env", "test", count))
    env = PerturbedEnv(make(), kind, rate=rate, names=NAMES, seed=3)
    return floors.play_scripted(
        env,
        [env.perturbed(t) for t in tasks],
        lambda env, _: floors.expert_actor(env),
        source="expert",
        seed=0,
        max_steps=40,
    )


def plain(make, count=6):
    tasks = base.begin_all(make(), base.tasks_of(make(), "env", "test", count))
    return floors.play_scripted(
        make(),
        tasks,
        lambda env, _: floors.expert_actor(env),
        source="expert",
        seed=0,
        max_steps=20,
    )


@pytest.mark.parametrize("make", [doubles.Corridor, Store, Calendar])
@pytest.mark.parametrize("kind", PERTURBATIONS)
def test_an_expert_loses_nothing(make, kind):
    played = games(make, kind)
    assert played
    assert all(t.episode.success for t in played)


@pytest.mark.parametrize("make", [doubles.Corridor, Store])
def test_the_identity_gives_the_same_games(make):
    assert games(make, "identity") == plain(make)


@pytest.mark.parametrize("kind", [k for k in PERTURBATIONS if k != "identity"])
def test_every_other_kind_changes_what_is_read(kind):
    other, same = games(doubles.Corridor, kind), plain(doubles.Corridor)
    assert other != same
    # The same seed gives the same perturbation.
    assert other == games(doubles.Corridor, kind)


def test_a_renaming_is_consistent_and_is_undone_in_actions():
    task = doubles.task(0, 1, 2)
    names = {"short": (("coin", "left"),)}
    env = PerturbedEnv(doubles.Corridor(), "rename", names=names, seed=0)
    changed = env.perturbed(task)
    assert changed.instruction == "take the left"
    _, state = base.begin(env, changed)
    assert state == task.initial_state  # its words are no names here
    assert env.valid_actions() == ["go coin", "go right", "take left"]
    assert env.expert() == ["go right", "take left"]
    base.take(env, "go right")
    assert base.take(env, "take left").success


def test_names_are_exchanged_within_their_group():
    groups = (("a", "b", "c", "d"), ("north", "south"), ("alone",))
    task = dataclasses.replace(doubles.task(0, 1, 2), instruction="a b c d north alone")
    names = {"short": groups}
    for seed in range(9):
        env = PerturbedEnv(doubles.Corridor(), "rename", names=names, seed=seed)
        *letters, way, last = env.perturbed(task).instruction.split()
        assert sorted(letters) == ["a", "b", "c", "d"]
        assert all(one != other for one, other in zip(letters, "abcd", strict=True))
        assert (way, last) == ("south", "alone")
        other = env.perturbed(dataclasses.replace(task, family="long"))
        assert other.instruction == task.instruction  # it has no such names


def test_no_word_of_a_tool_is_exchanged():
    words = ("ada", "bob", "cancel", "Book", "day", "who", "meeting", "string", "free")
    names = {"calendar": (words,)}
    assert names_of(Calendar().tasks("test")[0], names) == (words,)  # not begun yet
    tasks = base.begin_all(Calendar(), Calendar().tasks("test")[:20])
    assert names_of(tasks[0], names) == (("ada", "bob"),)
    env, exchanged = PerturbedEnv(Calendar(), "rename", names=names), 0
    for task in tasks:
        changed = env.perturbed(task)
        swap = {"ada": "bob", "bob": "ada"}
        words = [swap.get(word, word) for word in task.instruction.split(" ")]
        assert changed.instruction == " ".join(words)
        exchanged += changed.instruction != task.instruction
        base.begin(env, changed)
        assert [call.split()[0] for call in env.expert()] == ["cancel", "book"]
    assert exchanged


def test_lines_are_shuffled_and_none_is_lost():
    task = doubles.task(2, 1, 6)
    env = PerturbedEnv(doubles.Corridor(), "order", seed=1)
    states = [base.begin(env, env.perturbed(task))[1]]
    states += [base.take(env, "go right").state for _ in range(3)]
    assert any(list(s) != sorted(s) for s in states)
    for state in states:
        assert {line.split()[0] for line in state} == {"at", "goal", "end", "said"}


def test_a_lost_reply_shows_the_state_before():
    env = PerturbedEnv(doubles.Corridor(), "lost", rate=1.0)
    task = doubles.task(0, 1, 6)
    _, before = base.begin(env, env.perturbed(task))
    step = base.take(env, "go right")
    assert step.state == before
    assert base.take(env, "take coin").success  # the world went on


def test_garbled_letters_are_as_many_as_the_rate_says():
    env = PerturbedEnv(doubles.Corridor(), "garbled", rate=1.0)
    _, state = base.begin(env, env.perturbed(doubles.task(0, 1, 6)))
    plain_state = doubles.start_state(0, 1, 6)
    changed = [
        a != b
        for a, b in zip("".join(state), "".join(plain_state), strict=True)
        if b.isalpha()
    ]
    assert sum(changed) > 0.8 * len(changed)
    assert [x.split()[1] for x in state[:3]] == ["0", "1", "6"]  # numbers stay


@pytest.mark.parametrize("make", [doubles.Corridor, corridor.PlansAnywhere])
def test_a_longer_episode_is_two_games_in_a_row(make):
    env = PerturbedEnv(make(), "longer")
    one, two = doubles.task(0, 1, 2), doubles.task(2, 0, 3)
    read = [env.perturbed(task) for task in (one, two)]
    assert [t.instruction for t in read] == ["take the coin"] * 2
    _, state = base.begin(env, read[0])
    assert state == one.initial_state
    plan = ["go right", "take coin", "go left", "go left", "take coin"]
    assert env.expert() == plan
    steps = [base.take(env, action) for action in plan]
    assert steps[0].state == doubles.start_state(1, 1, 2)
    assert steps[1].state == two.initial_state  # the other game begins
    assert [s.terminated for s in steps] == [False] * 4 + [True]
    assert [s.success for s in steps] == [False] * 4 + [True]
    assert sum(s.rewards["coin"] for s in steps) == 2.0
    # The last of the tasks is followed by the first one.
    base.begin(env, read[1])
    assert env.expert() == ["go left", "go left", "take coin", "go right", "take coin"]


@pytest.mark.parametrize("make", [doubles.Corridor, doubles.Bare])
@pytest.mark.parametrize("first", [True, False])
def test_a_longer_episode_is_lost_with_either_game(make, first):
    env = PerturbedEnv(make(), "longer")
    (task,) = base.tasks_of(env, "env", "test", 1)
    total, step = 0.0, None
    state = base.begin(env, env.perturbed(task))[1]
    for _ in range(doubles.STEPS):
        # The same task follows where there is no other one.
        wins = total == 0 and not first
        action = doubles.plan(state)[0] if wins else "go left"
        step = base.take(env, action, total)
        state, total = step.state, total + sum(step.rewards.values())
        if step.terminated:
            break
    assert step is not None
    assert (step.terminated, step.success) == (True, False)
    assert total == (0.0 if first else 1.0)


def test_a_game_of_other_words_does_not_follow():
    tasks = [doubles.task(0, goal, 4) for goal in (0, 1, 2)]
    tasks[1] = dataclasses.replace(tasks[1], instruction="leave it")
    order = [tasks.index(following(task, tasks)) for task in tasks]
    assert order == [2, 1, 0]


def test_what_there_is_not_is_said():
    with pytest.raises(ValueError, match="identity"):
        PerturbedEnv(doubles.Corridor(), "noise")
    with pytest.raises(ValueError, match="rate"):
        PerturbedEnv(doubles.Corridor(), "lost", rate=2.0)
    assert base.as_expert(PerturbedEnv(doubles.Bare(), "order")) is None
