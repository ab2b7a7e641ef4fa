"""Advantages that are normalised component by component, by hand and in invariances."""

import dataclasses

import numpy as np
import pytest

from curriculum.config import CurriculumConfig
from dreamgym.rewards.config import ComponentWeightConfig, RewardConfig
from dreamgym.rl.config import KLPenaltyConfig, UpdateConfig
from dreamgym.training.limit_config import LimitConfig
from tests import doubles
from tests.dreamgym.training.common import CONFIG, fresh, learn, with_

APART = with_(CONFIG, normalize_advantages="component")


def paid(t, parts):
    """A one-turn rollout with these components in place of its own."""
    (step,) = t.episode.transitions
    steps = (dataclasses.replace(step, rewards=parts),)
    return t._replace(episode=dataclasses.replace(t.episode, transitions=steps))


def rows(*rewards):
    """One-turn attempts with these components, two at each task, won and lost."""
    out = []
    for number, parts in enumerate(rewards):
        task = doubles.task(number // 2, number // 2, 6)
        t = doubles.trajectory(task, ["take coin" if number % 2 == 0 else "dance"])
        (step,) = t.episode.transitions
        steps = (dataclasses.replace(step, rewards=parts),)
        out.append(
            t._replace(episode=dataclasses.replace(t.episode, transitions=steps))
        )
    return out


FOUR = rows({"win": 1.0, "fast": 0.2}, {"win": 0.0, "fast": 0.1}, {"win": 1.0}, {})


def advantages(calls, rollouts, config):
    learn(rollouts, config)
    return [e.columns["advantage"] for e in calls.examples[-1]]


def test_components_are_divided_before_they_are_added(update_calls):
    # Task 0: (1, 0.2) over (0, 0.1) is 1 + 1 deviations from the mean, task 1: 1 + 0.
    # The root mean square of 2, -2, 1, -1 is 2.5^0.5.
    got = advantages(update_calls, FOUR, APART)
    np.testing.assert_allclose(got, np.array([2, -2, 1, -1]) / 2.5**0.5, rtol=1e-5)
    # The sum divided by the group's deviation says the same of both tasks (GRPO).
    grpo = with_(CONFIG, normalize_advantages="group")
    got = advantages(update_calls, FOUR, grpo)
    np.testing.assert_allclose(got, [1, -1, 1, -1], rtol=1e-5)


def weighted(fast):
    weights = (ComponentWeightConfig(name="fa*", weight=fast),)
    reward = RewardConfig(component_weights=weights)
    return dataclasses.replace(APART, reward=reward)


def scaled(rollouts, fast):
    """The rollouts as a reward function would pay them: with the weight inside."""
    out = []
    for t in rollouts:
        (step,) = t.episode.transitions
        factors = {"fast": fast}
        parts = {k: v * factors.get(k, 1.0) for k, v in step.rewards.items()}
        out.append(paid(t, parts))
    return out


@pytest.mark.parametrize("fast", [0.5, -2.0, 0.0])
def test_weights_multiply_what_was_divided(update_calls, fast):
    got = advantages(update_calls, scaled(FOUR, fast), weighted(fast))
    wanted = np.array([1 + fast, -1 - fast, 1, -1])
    wanted = wanted / np.sqrt((wanted**2).mean())
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_size_of_a_component_says_nothing(update_calls, scale):
    plain = advantages(update_calls, FOUR, APART)
    large = advantages(update_calls, scaled(FOUR, scale), APART)
    np.testing.assert_allclose(large, plain, rtol=1e-5)
    batch = with_(CONFIG, normalize_advantages="batch")
    one = advantages(update_calls, FOUR, batch)
    other = advantages(update_calls, scaled(FOUR, scale), batch)
    assert not np.allclose(one, other, rtol=0.01)


def test_one_component_is_the_group_normalisation(update_calls):
    single = rows({"win": 1.0}, {"win": 0.0}, {"win": 5.0}, {"win": 0.0})
    got = advantages(update_calls, single, APART)
    grpo = advantages(update_calls, single, with_(CONFIG, normalize_advantages="group"))
    np.testing.assert_allclose(got, grpo, rtol=1e-5)


def test_groups_without_a_difference_are_left_out(update_calls):
    alike = rows({"win": 1.0}, {"win": 0.0}, {"win": 1.0}, {"win": 1.0})
    assert len(advantages(update_calls, alike, APART)) == 2
    # One component that differs is enough, whichever it is.
    apart = rows({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 1.0}, {"b": 1.0}, {"b": 0.0})
    assert len(advantages(update_calls, apart, APART)) == 4


def test_the_remedy_of_rewards_turns_a_dense_component_down(update_calls):
    dense = rows(
        {"win": 1.0, "judge": 0.2}, {"win": 0.0, "judge": 0.1}, {"win": 1.0}, {}
    )
    progress = fresh([doubles.task(0, 0, 6)])._replace(curve=[{"dense_weight": 0.5}])
    learn(dense, APART, progress=progress)
    got = [e.columns["advantage"] for e in update_calls.examples[-1]]
    wanted = np.array([1.5, -1.5, 1, -1]) / np.sqrt((1.5**2 + 1) / 2)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_settings_without_a_meaning_are_refused():
    with pytest.raises(ValueError, match="advantage_estimator must be one of"):
        UpdateConfig(normalize_advantages="component", advantage_estimator="gae")
    with pytest.raises(ValueError, match=r"kl_penalty.placement loss"):
        UpdateConfig(
            normalize_advantages="component",
            kl_penalty=KLPenaltyConfig(placement="reward"),
        )
    with pytest.raises(ValueError, match="limits and lessons"):
        dataclasses.replace(APART, limits=(LimitConfig(name="x", limit=1.0),))
    with pytest.raises(ValueError, match="limits and lessons"):
        dataclasses.replace(APART, curriculum=CurriculumConfig(lessons="tools"))
    assert not UpdateConfig(normalize_advantages="component").in_returns
