"""Guided play: whose actions are given, which turns they make, and who goes on."""

import dataclasses

import jax

from dreamgym.agent.guidance import GuidedPolicy, guiding_actions
from dreamgym.agent.policy import Situation
from dreamgym.agent.recorded_turns import given_turn
from dreamgym.agent.rollout import rollout
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from tests import doubles

TASK = doubles.task(0, 3, 6)  # right, right, right, take
NEAR = doubles.task(1, 1, 3)  # take
FAR = doubles.task(6, 2, 6)  # left four times, take


def test_a_task_is_guided_by_its_own_shortest_win():
    detour = ["go right", "go left", *["go right"] * 3, "take coin"]
    won = [doubles.episode(TASK, detour), doubles.expert(TASK), doubles.expert(FAR)]
    for share, count in ((0.5, 2), (0.1, 1), (0.99, 3)):
        actions = guiding_actions([TASK], won, share)
        assert actions == {TASK.id: ("go right",) * count}


def test_without_a_win_of_its_own_the_most_similar_task_guides_it():
    like = dataclasses.replace(TASK, id="like", instruction="take the coin!")
    actions = guiding_actions([like], [doubles.expert(FAR), doubles.expert(TASK)], 0.5)
    assert actions == {"like": ("go right", "go right")}


def test_what_has_a_single_step_guides_nobody():
    assert guiding_actions([NEAR], [doubles.expert(NEAR)], 0.5) == {}
    assert guiding_actions([NEAR], [], 0.5) == {}
    assert guiding_actions([], [doubles.expert(NEAR)], 0.5) == {}


def test_a_given_turn_is_one_that_the_policy_might_have_sampled():
    policy = doubles.policy(action_tokens=6)
    situation = Situation(TASK, ("go right",), doubles.start_state(1, 3, 6))
    want = doubles.turn(policy, *situation[:3], "go right")
    got = given_turn(policy, policy.grammar(1.0), situation, "go right")
    assert got is not None
    assert got.given
    assert not got.void
    assert got._replace(given=False, logp=want.logp) == want
    assert given_turn(policy, policy.grammar(1.0), situation, "go " * 9) is None


def play(envs, actions, rule=doubles.expert_rule):
    policy = doubles.Scripted(rule)
    guided = GuidedPolicy(policy, actions)
    return policy, rollout(
        guided, envs, [TASK, FAR], key=jax.random.key(0), temperature=1.0
    )


def test_the_policy_goes_on_where_the_guidance_ends():
    dream = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9)
    real = RealVectorEnv([doubles.Corridor() for _ in range(2)], max_steps=9)
    given = {TASK.id: ("go right", "go left", "go right")}
    for envs in (dream, real):
        policy, (guided, other) = play(envs, given)
        actions = [t.action for t in guided.episode.transitions]
        assert actions == [*given[TASK.id], "go right", "go right", "take coin"]
        assert [x.given for x in guided.turns] == [True] * 3 + [False] * 3
        assert guided.episode.success
        assert not any(x.given for x in other.turns)  # a task without guidance
        # The policy was not asked where an action was given: three times once.
        assert policy.calls[:4] == [1, 1, 1, 2]
        # It reads the given actions as past ones, and nothing else of them.
        context = policy.context(TASK, actions[:3], doubles.start_state(1, 3, 6))
        assert list(guided.turns[3].context) == context


def test_the_noise_of_the_policy_does_not_depend_on_the_guidance_of_others():
    dream = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9)
    alone, _ = play(dream, {})
    guided, _ = play(dream, {TASK.id: ("go right",)})
    # The second task's keys of its first steps.
    assert (alone.keys[1] == guided.keys[0]).all()


def test_what_the_policy_cannot_write_it_does_itself():
    dream = DreamVectorEnv(doubles.RuleModel(), 2, max_steps=9)
    _, (guided, _) = play(dream, {TASK.id: ("go right", "go " * 20, "go right")})
    assert [x.given for x in guided.turns] == [True, False, True, False]
    assert guided.episode.success
