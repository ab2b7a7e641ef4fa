"""Limits of costs: what is counted, what it takes from rewards, and that it is kept."""

import dataclasses

import numpy as np
import pytest

from dreamgym.agent.rollout import Trajectory
from dreamgym.rewards.config import ComponentWeightConfig
from dreamgym.rewards.reward_function import RewardedEpisode
from dreamgym.training.config import LoopConfig
from dreamgym.training.limit_config import LimitConfig
from dreamgym.training.limits import (
    cost_counters,
    limit_metrics,
    multipliers,
    step_cost,
)
from dreamgym.training.recovery import Recovery
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import rescore
from dreamgym.training.turn_batch import TurnBatch
from tests import doubles
from tests.dreamgym.training import common
from worldmodel.data.records import Transition

FALL = LimitConfig(name="fall", limit=0.1, pattern="^go left$", learning_rate=0.5)
DAMAGE = LimitConfig(name="damage", limit=1.0, initial_weight=2.0)
TASK = doubles.task(1, 0, 3)


def step(action="wait", costs=None, after="b"):
    return Transition(
        state=("a",), action=action, next_state=(after,), costs=costs or {}
    )


def test_a_cost_is_what_the_environment_says_and_else_that_of_the_pattern():
    assert step_cost(step("go left"), FALL) == 1.0
    assert step_cost(step("go lefty"), FALL) == 0.0
    # Reality and dream count alike: what is reported is not counted twice.
    assert step_cost(step("go left", {"fall": 2.0}), FALL) == 2.0
    assert step_cost(step("go left", {"fall": 0.0}), FALL) == 0.0
    assert step_cost(step("go left", {"damage": 2.0}), FALL) == 1.0
    assert step_cost(step(costs={"damage": 0.5}), DAMAGE) == 0.5
    assert step_cost(step("go left"), DAMAGE) == 0.0
    seen = dataclasses.replace(FALL, pattern="you fell", search_in="next_state")
    assert step_cost(step(after="you fell down"), seen) == 1.0


def test_each_counter_counts_its_own_limit_over_an_episode():
    counters = cost_counters([FALL, DAMAGE])
    steps = [step("go left"), step("go left"), step(costs={"damage": 0.5})]
    assert {name: count(steps) for name, count in counters.items()} == {
        "fall": 2.0,
        "damage": 0.5,
    }


def rollouts(*plans) -> list[Trajectory]:
    return [doubles.trajectory(TASK, plan, index=i) for i, plan in enumerate(plans)]


def test_the_multiplier_rises_above_the_limit_and_falls_below_it():
    rows = rollouts(["go left", "take coin"], ["go right", "go right"])
    assert multipliers({}, [FALL, DAMAGE]) == {"fall": 0.0, "damage": 2.0}
    # One of two episodes costs 1: 0.5 on average, 0.4 above the limit, times 0.5.
    row = limit_metrics(rows, {"fall": 0.3, "damage": 0.2}, [FALL, DAMAGE])
    assert row == pytest.approx(
        {
            "cost/fall": 0.5,
            "limit_weight/fall": 0.5,
            "cost/damage": 0.0,
            "limit_weight/damage": 0.1,  # 0.2 - 0.1 * 1
        }
    )
    assert multipliers(row, [FALL]) == pytest.approx({"fall": 0.5})
    low = limit_metrics(rollouts(["go right"] * 2), {"fall": 0.01}, [FALL])
    assert low["limit_weight/fall"] == 0.0  # never negative


def test_the_worst_share_of_the_rollouts_moves_the_multiplier():
    tail = dataclasses.replace(FALL, worst_share=0.25, limit=1.0)
    rows = rollouts(["go left"] * 3, *[["go right"]] * 5)
    row = limit_metrics(rows, {"fall": 0.3}, [tail])
    # The mean is 0.5, below the limit; 1.5 of six rollouts cost 3 and half of 0.
    assert row == pytest.approx(
        {"cost/fall": 0.5, "tail_cost/fall": 2.0, "limit_weight/fall": 0.8}
    )


def test_a_cost_lowers_the_reward_of_its_step_by_the_multiplier():
    plans = (["go left", "take coin"], ["go right", "go left", "go left"])
    config = LoopConfig(group_size=2, limits=(FALL,))
    batch = TurnBatch(rollouts(*plans), config)
    weights, updater = config.initial_weights, common.updater()
    free, _ = batch.rewards(weights, updater, None)
    limited, _ = batch.rewards(weights, updater, None, {"fall": 0.25})
    np.testing.assert_allclose(free - limited, [0.25, 0, 0, 0.25, 0.25])
    np.testing.assert_allclose(batch.rewards(weights, updater, None, {})[0], free)


@pytest.mark.parametrize("limit", [0.0, 0.2])
def test_dual_ascent_keeps_the_limit_on_a_bandit(limit):
    # A policy that calls the forbidden arm with probability p earns p, and p is the
    # cost. Its best response to the multiplier is a step of the gradient; the rate that
    # it ends with is the limit, and without a limit it is 1.
    bound = LimitConfig(name="c", limit=limit, pattern="bad", learning_rate=0.2)
    good, bad = (
        Trajectory(
            dataclasses.replace(doubles.expert(TASK), transitions=(step(action),)),
            (),
            None,
        )
        for action in ("good", "bad")
    )
    weights, logit, rates = {"c": 0.0}, 0.0, []
    for _ in range(600):
        p = 1 / (1 + np.exp(-logit))
        rates.append(p)
        logit += 2.0 * (1.0 - weights["c"]) * p * (1 - p) - 0.01 * logit
        count = round(10 * p)
        row = limit_metrics([bad] * count + [good] * (10 - count), weights, [bound])
        assert row["cost/c"] == pytest.approx(count / 10)
        weights = multipliers(row, [bound])
    assert rates[10] > limit + 0.2  # it is the multiplier that brings it down
    assert np.mean(rates[-200:]) == pytest.approx(limit, abs=0.06)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name"),
        ({"pattern": "("}, "pattern of limit"),
        ({"search_in": "x"}, "search_in"),
        ({"limit": -1.0}, "limit"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_bad_limits_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        LimitConfig(**({"name": "m", "limit": 0.0} | changes))
    with pytest.raises(ValueError, match="different names"):
        LoopConfig(limits=(FALL, FALL))


def test_limits_that_nothing_reads_are_said():
    update = dataclasses.replace(
        LoopConfig().update, advantage_estimator="success_filter"
    )
    problem = LoopConfig(update=update, limits=(FALL,)).dead()
    assert problem is not None
    assert problem.startswith("limits")


def test_each_token_that_was_sampled_has_a_price():
    rows = rollouts(["go right", "take coin"])

    def score(episodes, pasts, past_states):
        del pasts, past_states
        return [
            RewardedEpisode(({"a": 1.0}, {"b": 2.0}), ("rule", "rule"), None)
            for _ in episodes
        ]

    priced = rescore(Rollouts(rows, []), score, 0.5).started[0]
    tokens = [sum(turn.sampled) for turn in rows[0].turns]
    assert [t.rewards for t in priced.episode.transitions] == [
        {"a": 1.0, "cost/token": -0.5 * tokens[0]},
        {"b": 2.0, "cost/token": -0.5 * tokens[1]},
    ]
    weights = (ComponentWeightConfig(name="cost/*", weight=0.5),)
    half = rescore(Rollouts(rows, []), score, 0.5, weights)
    assert half.started[0].episode.transitions[0].rewards == {
        "a": 1.0,
        "cost/token": -0.25 * tokens[0],
    }
    assert half.reward_metrics["reward/cost/token"] == -0.25 * sum(tokens)
    free = rescore(Rollouts(rows, []), score).started[0]
    assert [t.rewards for t in free.episode.transitions] == [{"a": 1.0}, {"b": 2.0}]


def test_a_reverted_update_keeps_the_multipliers():
    def broken():
        raise FloatingPointError

    config = LoopConfig(
        limits=(FALL,),
        monitor=dataclasses.replace(LoopConfig().monitor, response="revert"),
    )
    state = common.fresh([TASK])._replace(curve=[{"limit_weight/fall": 0.7}])
    recovery = Recovery(config)
    result = recovery.attempt(
        broken, recovery.snapshot(state), state, Rollouts(rollouts(["go right"]), [])
    )
    assert multipliers(result.metrics, [FALL]) == {"fall": 0.7}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"search_in": "next_state"}, "limits: m: search_in says where"),
        ({"learning_rate": 0.0}, "limits: m: it would change nothing"),
        ({"learning_rate": 0.0, "initial_weight": 1.0}, None),
        ({"search_in": "next_state", "pattern": "x"}, None),
    ],
)
def test_limits_without_an_effect_are_refused_in_new_runs(changes, message):
    limit = LimitConfig(**({"name": "m", "limit": 0.0} | changes))  # old runs open
    problem = LoopConfig(limits=(limit,)).dead()
    assert (problem is None) == (message is None)
    assert message is None or (problem or "").startswith(message)
