"""Playing test games and the row of a policy."""

import dataclasses

import numpy as np
import pytest

from dreamgym.envs.vector import RealVectorEnv
from dreamgym.evaluation import evaluate
from dreamgym.evaluation.statistics import wilson
from tests import doubles

A, B = doubles.task(0, 1, 2), doubles.task(0, 1, 6)  # families short and long
WIN, LOSE = ["go right", "take coin"], ["fly", "go left"]


def envs(size=3):
    return RealVectorEnv([doubles.Corridor() for _ in range(size)], max_steps=5)


def test_one_episode_a_game_in_order():
    games = list(doubles.tasks("test")[:5])
    policy = doubles.Scripted(doubles.expert_rule)
    messages = []
    results = evaluate.play(
        policy,
        envs(),
        games,
        seed=0,
        temperature=0.5,
        progress=lambda *x: messages.append(x),
    )
    assert [t.episode.task for t in results] == games
    assert messages[-1] == (5, 5)


def test_the_noise_of_a_game_is_the_same_for_every_policy():
    games = list(doubles.tasks("test")[:4])
    keys = []
    for rule in (doubles.expert_rule, lambda *_: "fly"):
        policy = doubles.Scripted(rule)
        evaluate.play(policy, envs(4), games, seed=5, temperature=0.5)
        keys.append([k.tolist() for k in policy.keys[:4]])
    assert keys[0] == keys[1]
    policy = doubles.Scripted(doubles.expert_rule)
    evaluate.play(policy, envs(4), games, seed=6, temperature=0.5)
    assert [k.tolist() for k in policy.keys[:4]] != keys[0]


class Dice(doubles.Corridor):
    """A corridor in which every second step slips; its tasks carry no seed."""

    def step(self, action):
        return super().step(action if self.np_random.random() < 0.5 else "slip")


def test_a_game_that_draws_lots_draws_the_same_for_every_policy():
    games, policy = list(doubles.tasks("test")), doubles.Scripted(doubles.expert_rule)

    def play(size, seed):
        batch = RealVectorEnv([Dice() for _ in range(size)], max_steps=9)
        played = evaluate.play(policy, batch, games, seed=seed, temperature=0.5)
        return [t.episode.transitions for t in played]

    first = play(4, seed=0)
    assert play(4, seed=0) == first
    assert play(3, seed=0) == first  # whichever slot plays it
    assert play(4, seed=1) != first


def test_summary_by_hand():
    b, c = (dataclasses.replace(A, id=name) for name in "bc")
    rows = [
        doubles.trajectory(A, WIN),
        doubles.trajectory(b, LOSE),
        doubles.trajectory(c, LOSE),
        doubles.trajectory(A, ["fly"], error="broke"),
    ]
    got = evaluate.summary(rows, real_transitions=12)
    low, high = wilson(1, 3)
    assert got == {
        "success": {
            "mean": 1 / 3,
            "low": low,
            "high": high,
            "episodes": 3,
            "unscored": 1,
        },
        "errors": {"broke": 1},
        "mean_return": pytest.approx(1 / 3),
        "mean_steps": 2.0,
        "invalid_action_rate": pytest.approx(2 / 6),
        "real_transitions": 12,
        "costs": {},
    }


@pytest.mark.parametrize("rows", [[], [doubles.trajectory(A, ["fly"], error="x")]])
def test_a_policy_without_a_scored_episode_has_no_numbers(rows):
    got = evaluate.summary(rows, real_transitions=0)
    assert got["success"] == {
        "mean": None,
        "low": 0.0,
        "high": 1.0,
        "episodes": 0,
        "unscored": len(rows),
    }
    assert got["mean_return"] is got["mean_steps"] is got["invalid_action_rate"] is None


def test_families_apart_in_order_of_name():
    rows = [doubles.trajectory(x, WIN) for x in (A, B, A)]
    result = evaluate.by_family(rows)
    assert list(result) == ["long", "short"]
    assert result["short"] == [rows[0], rows[2]]


def test_pairs_are_games_where_both_were_scored():
    won, lost = doubles.trajectory(A, WIN), doubles.trajectory(A, LOSE)
    broke = doubles.trajectory(A, LOSE, error="broke")
    got = evaluate.paired(
        [won, won, lost, broke, won], [lost, won, lost, lost, broke], seed=0
    )
    assert got["episodes"] == 3
    assert got["mean"] == pytest.approx(1 / 3)
    back = evaluate.paired([lost, won, lost], [won, won, lost], seed=0)
    np.testing.assert_allclose(back["mean"], -1 / 3, rtol=1e-9)
    # Games that one of them has not played have no pair.
    other = doubles.trajectory(dataclasses.replace(A, id="other"), WIN)
    assert evaluate.paired([other, won], [won, lost], seed=0)["episodes"] == 1
    assert evaluate.paired([other], [won], seed=0)["mean"] is None


def test_a_game_played_in_several_runs_is_one_draw():
    games = [dataclasses.replace(A, id=f"g{i}") for i in range(6)]
    a = [doubles.trajectory(g, WIN) for g in games]
    b = [doubles.trajectory(g, WIN if i % 2 else LOSE) for i, g in enumerate(games)]
    once, often = evaluate.paired(a, b, seed=0), evaluate.paired(a * 9, b * 9, seed=0)
    assert (once.pop("episodes"), often.pop("episodes")) == (6, 54)
    assert once == often
    assert once["mean"] == 0.5
    assert once["high"] - once["low"] > 0.3
