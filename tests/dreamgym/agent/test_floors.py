"""The floors of a table: a random choice of valid actions, and the expert."""

import pytest

from dreamgym.agent.floors import expert_actor, play_scripted, random_actor
from tests import doubles

TASKS = doubles.tasks("test")[:6]


def play(env, actor_for, max_steps=9):
    return play_scripted(env, TASKS, actor_for, max_steps=max_steps, source="x", seed=0)


def test_the_expert_wins_every_task():
    played = play(doubles.Corridor(), lambda env, _: expert_actor(env))
    assert [t.episode.task for t in played] == list(TASKS)
    assert [t.episode.success for t in played] == [True] * 6
    for t in played:
        plan = doubles.plan(t.episode.task.initial_state)
        assert [x.action for x in t.episode.transitions] == plan


def test_a_seed_fixes_what_the_environment_draws():
    class Dice(doubles.Corridor):
        def step(self, action):
            return super().step(action if self.np_random.random() < 0.5 else "slip")

    def played(seed):
        return play_scripted(
            Dice(),
            TASKS,
            lambda env, _: expert_actor(env),
            max_steps=9,
            source="x",
            seed=seed,
        )

    assert played(3) == played(3) != played(4)


def test_random_actions_are_valid_and_drawn_by_the_seed():
    def actor(seed):
        return lambda env, task: random_actor(env, task, (), seed=seed)

    played = play(doubles.Corridor(), actor(0))
    actions = {x.action for t in played for x in t.episode.transitions}
    assert actions == set(doubles.ACTIONS)
    assert (
        played
        == play(doubles.Corridor(), actor(0))
        != play(doubles.Corridor(), actor(1))
    )
    for t in played:
        last = t.episode.transitions[-1]
        assert last.terminated or last.truncated
        assert len(t.episode.transitions) <= 9


def test_without_valid_actions_the_collected_ones_are_drawn():
    def known(env, task):
        return random_actor(env, task, ("go right",), seed=0)

    played = play(doubles.Bare(), known)
    assert {x.action for t in played for x in t.episode.transitions} == {"go right"}


def test_an_episode_that_breaks_is_not_scored():
    class Breaking(doubles.Corridor):
        def step(self, action):
            del action
            raise OSError("gone")

    nobody = play(doubles.Bare(), lambda env, _: expert_actor(env))
    assert {t.error for t in nobody} == {"ValueError: the environment has no expert"}
    broken = play(Breaking(), lambda env, task: random_actor(env, task, (), seed=0))
    assert [t.episode.success for t in broken] == [None] * 6
    assert {t.error for t in broken} == {"OSError: gone"}
    with pytest.raises(ValueError, match="no valid action"):
        random_actor(doubles.Bare(), TASKS[0], (), seed=0)(0)
