"""Shaping by potentials in the loop: plans lead, plans of other rooms do not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.agent.rollout import rollout
from dreamgym.config.stages import TrainConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import RealVectorEnv
from dreamgym.rewards.config import (
    ComponentWeightConfig,
    NoveltyConfig,
    PotentialConfig,
    RewardConfig,
)
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.rewards.potential import GoalPotential
from dreamgym.training import LoopParts, TrainingState
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import (
    with_all_rewards,
    with_novelty,
    with_potential,
)
from tests import doubles
from tests.corridor import PlansAnywhere
from tests.dreamgym.training.common import (
    CONFIG,
    WIN,
    Recorder,
    Tabular,
    fresh,
    loop,
    pair,
    updater,
    with_,
)

ROOMS, START, GOAL = 12, 2, 11
TASK = doubles.task(START, GOAL, ROOMS - 1)
PLAN = RewardConfig(potential=PotentialConfig(weight=2.0))


class Misled(PlansAnywhere):
    """Its plans have the lengths of those of other rooms, drawn once."""

    lengths = tuple(np.random.default_rng(5).permutation(ROOMS) + 1)

    def expert(self):
        return ["wait"] * int(self.lengths[int(self.state[0].split()[1])])


def play(seed, env, reward, monkeypatch):
    """Train in the corridor, which pays at its end alone; return the last success."""
    policy = Tabular(
        jnp.zeros((ROOMS, 3)), doubles.ACTIONS, lambda s: int(s[0].split()[1])
    )
    config = with_(
        CONFIG,
        updates=14,
        tasks_per_update=1,
        group_size=8,
        normalize_advantages="batch",
        reward=reward,
    )
    end = training.train(
        policy,
        RealVectorEnv([env() for _ in range(8)], max_steps=doubles.STEPS),
        updater(),
        TrainingState(
            0,
            policy.take_updates(monkeypatch),
            pool_of([TASK], config.curriculum),
            0,
            [],
        ),
        config,
        seed=seed,
        recorder=Recorder(),
    )
    return float(np.mean([row["success"] for row in end.curve][-3:]))


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 1])
def test_plans_lead_to_the_goal_and_plans_of_other_rooms_do_not(seed, monkeypatch):
    alone = play(seed, PlansAnywhere, RewardConfig(), monkeypatch)
    led = play(seed, PlansAnywhere, PLAN, monkeypatch)
    misled = play(seed, Misled, PLAN, monkeypatch)
    assert led > 0.8
    assert max(alone, misled) < 0.4


def test_a_rollout_has_the_length_of_the_plan_at_each_turn():
    actions = ["go right", "go left", "go right", "go right", "take coin"]
    policy = doubles.Scripted(lambda _, past, __: actions[len(past)])
    task = doubles.task(1, 3, 5)
    envs = RealVectorEnv([PlansAnywhere()], max_steps=9)
    (t,) = rollout(
        policy, envs, [task], key=jax.random.key(0), temperature=1.0, asks_plans=True
    )
    assert t.plan_lengths == (3, 2, 3, 2, 1)
    config = PotentialConfig(weight=2.0, decay=0.5)
    weights = [ComponentWeightConfig(name="potential", weight=0.5)]
    shaped = with_potential(Rollouts([t], []), config, 0.8, weights, bootstraps=True)
    paid = [x.rewards["potential"] for x in shaped.started[0].episode.transitions]
    # 2 * 0.5 * (0.8 phi' - phi) with phi = 1/8, 1/4, 1/8, 1/4, 1/2, 0
    assert paid == pytest.approx([0.075, -0.15, 0.075, 0.15, -0.5])
    assert shaped.reward_metrics["reward/potential"] == pytest.approx(sum(paid))
    (without,) = rollout(
        doubles.Scripted(doubles.expert_rule),
        envs,
        [task],
        key=jax.random.key(0),
        temperature=1.0,
    )
    assert without.plan_lengths == ()


def test_goals_shape_dreamed_episodes():
    won, lost = pair()
    goals = GoalPotential([won.episode])
    config = PotentialConfig(weight=1.0, kind="goal")
    shaped = with_potential(
        Rollouts([won, lost], []), config, 0.9, goals=goals, bootstraps=True
    )
    task = won.episode.task
    first, second = (goals(task, x.state) for x in won.episode.transitions)
    steps = shaped.started[0].episode.transitions
    assert second > first
    assert [x.rewards["potential"] for x in steps] == pytest.approx(
        [0.9 * second - first, -second]
    )
    fall = shaped.started[1].episode.transitions
    assert [x.rewards["potential"] for x in fall] == pytest.approx([-first])


def test_where_returns_are_compared_the_end_is_that_of_the_outcome():
    """The last turn has no part of its own where nobody knows what follows."""
    won, lost = pair()
    goals = GoalPotential([won.episode])

    def ended(t, **changes):
        *steps, last = t.episode.transitions
        steps = (*steps, dataclasses.replace(last, **changes))
        return t._replace(episode=dataclasses.replace(t.episode, transitions=steps))

    rows = [
        ended(won, terminated=True, truncated=False),
        ended(won, terminated=True, truncated=True),  # at the last step allowed
        ended(won, terminated=False, truncated=True),
        ended(lost, terminated=True, truncated=False),
        ended(lost, terminated=False, truncated=True),
        ended(lost, terminated=False, truncated=False)._replace(error="malformed"),
    ]
    config = PotentialConfig(weight=1.0, kind="goal")
    shaped = with_potential(
        Rollouts(rows, []), config, 0.9, goals=goals, bootstraps=False
    )
    paid = [
        [x.rewards["potential"] for x in t.episode.transitions] for t in shaped.started
    ]
    task = won.episode.task
    first, second = (goals(task, x.state) for x in won.episode.transitions)
    # What is added to each turn is 0.9 phi' - phi; phi is 1 after success.
    one, two = 0.9 * second - first, 0.9 - second
    for rewards in paid[:3]:
        assert rewards == pytest.approx([one - 0.9 * two, two])
    assert paid[3] == pytest.approx([-first])
    assert paid[4] == paid[5] == [0.0]


@pytest.mark.parametrize("estimator", ["gae", "group_mean"])
def test_the_loop_pays_potential_and_novelty_by_their_weights(estimator):
    rollouts, goals = Rollouts(pair(), []), GoalPotential([pair()[0].episode])
    potential = PotentialConfig(weight=1.0, kind="goal")
    weights = (
        ComponentWeightConfig(name="potential", weight=0.5),
        ComponentWeightConfig(name="novelty", weight=0.25),
    )
    novelty = NoveltyConfig(weight=0.8, numbers=True)
    reward = RewardConfig(
        potential=potential, novelty=novelty, component_weights=weights
    )
    config = with_(CONFIG, advantage_estimator=estimator, discount=0.7, reward=reward)
    got = with_all_rewards(
        rollouts,
        config,
        None,
        novelty=NoveltyReward(novelty, []),
        goals=goals,
        subgoal_steps=0,
    )
    wanted = with_potential(
        with_novelty(rollouts, NoveltyReward(novelty, []), weights),
        potential,
        0.7,
        weights,
        goals,
        bootstraps=estimator == "gae",
    )
    assert [t.episode for t in got.all] == [t.episode for t in wanted.all]
    assert got.reward_metrics == wanted.reward_metrics
    first = got.started[0].episode.transitions[0].rewards
    assert first["novelty"] == pytest.approx(0.25 * 0.8)


@pytest.mark.medium
def test_what_nobody_knows_is_refused():
    config = with_(CONFIG, reward=PLAN)
    with pytest.raises(ValueError, match="plans_from_any_state = True"):
        loop(config)
    goal = RewardConfig(potential=PotentialConfig(weight=1.0, kind="goal"))
    with pytest.raises(ValueError, match="needs won episodes, got none"):
        loop(with_(CONFIG, reward=goal))
    goals = GoalPotential([doubles.episode(doubles.tasks("train")[0], WIN)])
    end = loop(with_(CONFIG, reward=goal), parts=LoopParts(goals=goals))
    assert "reward/potential" in end.curve[-1]
    assert not DreamVectorEnv(doubles.RuleModel(), 1, max_steps=2).knows_plans
    assert fresh([TASK]).update == 0


def test_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match=r"update.credit must be turn .*, got episode"):
        with_(CONFIG, reward=PLAN, credit="episode")
    with pytest.raises(ValueError, match=r"environment = dream: reward.potential.kind"):
        TrainConfig(reward=PLAN)
    assert TrainConfig(reward=PLAN, environment="real")
    assert dataclasses.replace(CONFIG, reward=PLAN).reward.dense
