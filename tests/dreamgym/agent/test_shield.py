"""Shields: what is executed in place of an action, and that it is counted."""

import jax
import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.rollout import rollout
from dreamgym.agent.shield import keep_action, shield_for, valid_shield
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.evaluation import evaluate
from tests import doubles

TASK = doubles.task(0, 1, 2)


def never_left(task, state, action, valid):
    """A shield of the tests: never fall off the left end."""
    del task, valid
    falls = action == "go left" and state[0] == "at 0"
    return "go right" if falls else action


def play(rule, shield):
    policy = doubles.Scripted(rule)
    policy.shield = shield_for(shield)
    envs = RealVectorEnv([doubles.Corridor()], max_steps=4)
    (t,) = rollout(policy, envs, [TASK], key=jax.random.key(0), temperature=1.0)
    return t


def test_an_action_that_is_not_valid_becomes_the_most_similar_valid_one():
    valid = ["go left", "go right", "take coin"]
    assert valid_shield(TASK, (), "go rigt", valid) == "go right"
    assert valid_shield(TASK, (), "take coin", valid) == "take coin"
    for unknown in (None, []):
        assert valid_shield(TASK, (), "fly", unknown) == "fly"


def test_the_shield_acts_before_the_environment_and_is_counted():
    t = play(lambda *_: "go rigth", "valid")
    actions = [x.action for x in t.episode.transitions]
    assert actions == ["go right"] * 4
    assert [x.invalid for x in t.episode.transitions] == [False] * 4
    # The policy is trained on what it sampled, not on what was executed.
    assert {turn.action for turn in t.turns} == {"go rigth"}
    row = evaluate.summary([t], real_transitions=0)
    assert row["costs"]["shielded"]["mean"] == 4.0
    assert row["invalid_action_rate"] == 0.0


class Hesitant(doubles.Scripted):
    """Draws an action that is not listed, and then one that is."""

    def __init__(self, draws):
        super().__init__(doubles.expert_rule)
        self.draws, self.number = draws, 0

    def act(self, situations, keys, *, temperature):
        turns = super().act(situations, keys, temperature=temperature)
        out = []
        for turn in turns:
            flies = self.number % (self.draws + 1) < self.draws
            out.append(turn._replace(action="fly") if flies else turn)
            self.number += 1
        return out


def test_what_is_not_listed_is_drawn_again_before_it_is_replaced():
    policy = Hesitant(draws=2)
    policy.shield = shield_for("valid")
    envs = RealVectorEnv([doubles.Corridor()], max_steps=4)
    (t,) = rollout(policy, envs, [TASK], key=jax.random.key(0), temperature=1.0)
    assert t.episode.success
    executed = [x.action for x in t.episode.transitions]
    assert executed == [turn.action for turn in t.turns]  # nothing was replaced
    assert all(not x.costs for x in t.episode.transitions)
    # Without the shield it flies.
    free = Hesitant(draws=2)
    (t,) = rollout(free, envs, [TASK], key=jax.random.key(0), temperature=1.0)
    assert t.episode.transitions[0].action == "fly"


def test_a_policy_can_be_watched_without_replacing_an_action():
    """The stage `shield` counts the actions that are taken and were not listed."""
    policy = doubles.Scripted(lambda *_: "go rigth")
    policy.shield = keep_action
    envs = RealVectorEnv([doubles.Corridor()], max_steps=4)
    (t,) = rollout(policy, envs, [TASK], key=jax.random.key(0), temperature=1.0)
    steps = t.episode.transitions
    assert [x.action for x in steps] == ["go rigth"] * 4
    assert all(x.valid_actions and not x.costs for x in steps)
    unwatched = play(lambda *_: "go rigth", "").episode.transitions
    assert not any(x.valid_actions for x in unwatched)


def test_without_a_shield_nothing_is_replaced():
    t = play(lambda *_: "go rigth", "")
    assert [x.invalid for x in t.episode.transitions] == [True] * 4
    assert evaluate.summary([t], real_transitions=0)["costs"] == {}


def test_a_function_of_ones_own_shields_from_a_forbidden_action():
    t = play(lambda *_: "go left", f"{__name__}:never_left")
    assert not any(x.terminated for x in t.episode.transitions)
    fallen = play(lambda *_: "go left", "")
    assert fallen.episode.transitions[0].terminated


@pytest.mark.parametrize("name", ["no_such_module:f", "json:no_such", "legal", ":"])
def test_a_shield_that_there_is_not_is_said(name):
    with pytest.raises(ValueError, match="shield must be"):
        shield_for(name)
    with pytest.raises(ValueError, match="shield must be"):
        doubles.policy(shield=name)
    assert PolicyConfig().shield == "auto"
    with pytest.raises(ValueError, match='"auto", "valid", "module:function" or ""'):
        PolicyConfig(shield="vaild")  # before anything is collected
    assert shield_for("auto") is None  # a run decides


def forgetful(task, state, action, valid):
    """A shield of the tests that returns nothing."""


def test_a_shield_that_returns_no_action_is_named():
    with pytest.raises(TypeError, match=r"forgetful\(task, .* must return .* got None"):
        play(doubles.expert_rule, f"{__name__}:forgetful")
