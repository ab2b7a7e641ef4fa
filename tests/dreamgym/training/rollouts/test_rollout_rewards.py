"""Subgoals are paid where they are reached, by hand and in the loop."""

import dataclasses

import pytest

from dreamgym import training
from dreamgym.agent.config import PolicyConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.rewards.config import (
    ComponentWeightConfig,
    NoveltyConfig,
    PotentialConfig,
    RewardConfig,
)
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import with_all_rewards, with_subgoals
from tests import doubles
from tests.dreamgym.training.common import CONFIG, Recorder, fresh, updater, with_

TASK = doubles.task(0, 2, 4)
ACTIONS = ["go right", "go right", "take coin"]


def thinking(thoughts):
    """Return a trajectory of the corridor with these thoughts."""
    t = doubles.trajectory(TASK, ACTIONS)
    steps = tuple(
        dataclasses.replace(step, thought=thought)
        for step, thought in zip(t.episode.transitions, thoughts, strict=True)
    )
    return t._replace(episode=dataclasses.replace(t.episode, transitions=steps))


def test_a_reached_subgoal_is_paid_once_in_every_kind_of_rollout():
    one = thinking(["at 2", None, "said taken"])
    none = thinking(["at 0", None, None])  # it stood there before
    rollouts = Rollouts([one, none], [one])
    weights = [ComponentWeightConfig(name="subgoal", weight=0.5)]
    paid = with_subgoals(rollouts, 0.4, 2, weights)
    rows = [
        [step.rewards["subgoal"] for step in t.episode.transitions] for t in paid.all
    ]
    assert rows == [[0.0, 0.2, 0.2], [0.0, 0.0, 0.0], [0.0, 0.2, 0.2]]
    assert paid.reward_metrics["reward/subgoal"] == pytest.approx(0.8 / 3)
    # With one step for each the first is given up before it is reached.
    late = with_subgoals(rollouts, 0.4, 1, weights).started[0].episode.transitions
    assert [step.rewards["subgoal"] for step in late] == [0.0, 0.0, 0.2]


def test_without_a_weight_nothing_is_paid():
    rollouts = Rollouts([thinking(["at 2", None, None])], [])
    same = with_all_rewards(
        rollouts, CONFIG, None, novelty=None, goals=None, subgoal_steps=2
    )
    assert same == rollouts


@pytest.mark.parametrize("estimator", ["gae", "group_mean"])
def test_rewards_of_several_sources_stand_beside_each_other(estimator):
    """Novel states, subgoals and a potential are each paid as if alone."""
    t = thinking(["at 2", None, "said taken"])._replace(plan_lengths=(3, 2, 1))
    rollouts = Rollouts([t], [])
    novelty = NoveltyConfig(weight=0.3, numbers=True)
    collected = [doubles.expert(x) for x in doubles.tasks("train")[:3]]
    settings = {"subgoal_weight": 0.4, "novelty": novelty}
    settings["potential"] = PotentialConfig(weight=0.5)

    def rewards_of(**reward):
        reward = RewardConfig(**reward)
        config = with_(CONFIG, reward=reward, advantage_estimator=estimator)
        paid = with_all_rewards(
            rollouts,
            config,
            None,
            novelty=NoveltyReward(novelty, collected)
            if reward.novelty.weight
            else None,
            goals=None,
            subgoal_steps=2,
        )
        steps = paid.started[0].episode.transitions
        return [step.rewards for step in steps], paid.reward_metrics

    alone = [rewards_of(**{name: value}) for name, value in settings.items()]
    together, metrics = rewards_of(**settings)
    for step, *parts in zip(together, *(rows for rows, _ in alone), strict=True):
        assert step == {name: x for part in parts for name, x in part.items()}
    assert metrics == {name: x for _, row in alone for name, x in row.items()}
    assert {"reward/novelty", "reward/subgoal", "reward/potential"} <= metrics.keys()
    assert all(metrics.values())


class Manager(doubles.Scripted):
    """Walks to the coin, and wants to see its room from the first turn on."""

    def _turn(self, task, past, state, valid_actions=()):
        turn = super()._turn(task, past, state, valid_actions)
        return turn._replace(thought="" if past else "at 2")


def test_the_loop_pays_for_the_subgoals_of_its_policy():
    policy = Manager(doubles.expert_rule)
    policy.config = PolicyConfig(thought_tokens=8, subgoal_steps=2)
    config = with_(CONFIG, updates=1, reward=RewardConfig(subgoal_weight=0.5))
    end = training.train(
        policy,
        DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9),
        updater(),
        fresh([TASK], config),
        config,
        seed=3,
        recorder=Recorder(),
    )
    # The room is two steps away: as many as the policy takes for a subgoal.
    assert end.curve[-1]["reward/subgoal"] == pytest.approx(0.5)
