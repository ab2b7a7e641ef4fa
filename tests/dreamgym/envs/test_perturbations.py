"""Perturbed games: the same games in other words, which every plan still wins."""

import pytest

from dreamgym.agent import floors
from dreamgym.envs import base
from dreamgym.envs.perturbations import PERTURBATIONS, PerturbedEnv
from tests import doubles
from tests.strangers.tools import Calendar, Store

NAMES = ("coin", "goal", "at", "end", "ada", "bob", "eve", "kim", "mon", "tue", "left")


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
        max_steps=20,
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
    env = PerturbedEnv(doubles.Corridor(), "rename", names=("coin", "left"), seed=0)
    changed = env.perturbed(task)
    assert changed.instruction == "take the left"
    _, state = base.begin(env, changed)
    assert state == task.initial_state  # its words are no names here
    assert env.valid_actions() == ["go coin", "go right", "take left"]
    assert env.expert() == ["go right", "take left"]
    base.take(env, "go right")
    assert base.take(env, "take left").success


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


def test_what_there_is_not_is_said():
    with pytest.raises(ValueError, match="identity"):
        PerturbedEnv(doubles.Corridor(), "noise")
    with pytest.raises(ValueError, match="rate"):
        PerturbedEnv(doubles.Corridor(), "lost", rate=2.0)
    assert base.as_expert(PerturbedEnv(doubles.Bare(), "order")) is None
