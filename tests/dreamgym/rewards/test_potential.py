"""Potentials by hand, and that shaping by them changes no best action."""

import dataclasses
import itertools

import numpy as np
import pytest

from dreamgym.rewards.config import PotentialConfig, RewardConfig
from dreamgym.rewards.potential import (
    GoalPotential,
    plan_potential,
    progress_rewards,
    shaping_rewards,
)
from dreamgym.rl.advantages import gae
from tests import doubles
from worldmodel.data.records import Episode, Task, Transition


def test_shaping_by_hand():
    # A plan of 2 actions, a detour to one of 3, back to 2, to 1, and the win.
    # phi = 0.5^n: 0.25, 0.125, 0.25, 0.5, and 0 after the end.
    potentials = [plan_potential(n, 0.5) for n in (2, 3, 2, 1)]
    assert potentials == [0.25, 0.125, 0.25, 0.5]
    detour, back, nearer, end = shaping_rewards(potentials, 0.8)
    assert detour == pytest.approx(0.8 * 0.125 - 0.25)  # -0.15
    assert back == pytest.approx(0.8 * 0.25 - 0.125)  # 0.075
    assert nearer == pytest.approx(0.8 * 0.5 - 0.25)  # 0.15
    assert end == -0.5
    assert plan_potential(None, 0.5) == 0.0
    assert shaping_rewards([], 0.8) == []


@pytest.mark.parametrize("discount", [0.5, 0.9, 1.0])
def test_the_shaping_of_an_episode_is_that_of_its_start(discount):
    rng = np.random.default_rng(0)
    for length in (1, 2, 7):
        potentials = rng.normal(size=length).tolist()
        rewards = shaping_rewards(potentials, discount)
        total = sum(discount**t * r for t, r in enumerate(rewards))
        assert total == pytest.approx(-potentials[0])


def values(rewards, moves, discount):
    """Return the optimal Q[s, a] of a game whose last state is its end."""
    q = np.zeros(rewards.shape)
    for _ in range(300):
        value = np.append(q.max(1), 0.0)
        q = (moves * (rewards[:, :, None] + discount * value)).sum(2)
    return q


def test_shaping_changes_no_best_action():
    rng, discount = np.random.default_rng(1), 0.9
    for _ in range(5):
        moves = rng.dirichlet(np.full(7, 0.3), (6, 3))  # of 6 states; the 7th is an end
        rewards = rng.normal(size=(6, 3))
        phi = np.append(rng.normal(size=6), 0.0)
        plain = values(rewards, moves, discount)
        shaping = discount * moves @ phi - phi[:6, None]
        shaped = values(rewards + shaping, moves, discount)
        np.testing.assert_allclose(shaped, plain - phi[:6, None], atol=1e-8)
        # Pay for the nearness itself is no such shaping.
        paid = values(rewards + 3 * moves @ phi, moves, discount)
        assert (shaped.argmax(1) == plain.argmax(1)).all()
        if (paid.argmax(1) != plain.argmax(1)).any():
            break
    else:
        pytest.fail("the wrong shaping changes no best action either")


# --- turns alone --------------------------------------------------------------


def returns(rewards, discount):
    out = [0.0]
    for reward in reversed(rewards):
        out.append(reward + discount * out[-1])
    return out[:0:-1]


def test_a_turn_is_credited_with_its_own_progress_alone():
    # phi 0.25, 0.125, 0.5 and 1 at the won end, 0 at the lost one.
    potentials = [0.25, 0.125, 0.5]
    gains = [0.8 * 0.125 - 0.25, 0.8 * 0.5 - 0.125]  # -0.15, 0.275
    won = progress_rewards(potentials, 0.8, end=1.0)
    assert won == pytest.approx(
        [gains[0] - 0.8 * gains[1], gains[1] - 0.8 * 0.3, 0.8 - 0.5]
    )
    assert returns(won, 0.8) == pytest.approx([*gains, 0.3])
    lost = progress_rewards(potentials, 0.8, end=0.0)
    assert returns(lost, 0.8) == pytest.approx([*gains, -0.5])
    # The last step of an episode that was cut is worth nothing, however near it was.
    cut = progress_rewards(potentials, 0.8, end=None)
    assert returns(cut, 0.8) == pytest.approx([*gains, 0.0])
    assert progress_rewards([], 0.8, end=None) == []


def test_shaping_adds_the_same_to_the_returns_of_all_actions_of_a_state():
    potentials = [0.25, 0.125, 0.5]
    shaping = shaping_rewards(potentials, 0.8)
    assert returns(shaping, 0.8) == pytest.approx([-x for x in potentials])


# --- what shaping does to a critic that bootstraps ------------------------------

ROOMS = 10


def actor_critic(lengths, seed):
    """Return success in early and in late updates of a tabular actor and critic."""
    rng, wins = np.random.default_rng(seed), []
    table, value = np.zeros((ROOMS, 2)), np.zeros(ROOMS)
    for _ in range(120):
        chances = np.exp(table) / np.exp(table).sum(1, keepdims=True)
        step = np.zeros_like(table)
        for _ in range(8):
            at, path = 2, []
            while at < ROOMS and len(path) < 16:
                move = int(rng.random() < chances[at, 1])
                path.append((at, move))
                at = max(at + 2 * move - 1, 0)
            rewards = np.zeros(len(path))
            rewards[-1] = wins_now = float(at == ROOMS)
            wins.append(wins_now)
            if lengths is not None:
                phi = [plan_potential(int(lengths[room]), 0.8) for room, _ in path]
                rewards += 2.0 * np.array(shaping_rewards(phi, 0.9))
            advantages, targets = gae(
                rewards[None],
                value[[room for room, _ in path]][None],
                np.zeros(1),
                np.ones((1, len(path)), bool),
                discount=0.9,
                gae_lambda=0.5,
            )
            for (room, move), a, g in zip(path, advantages[0], targets[0], strict=True):
                step[room] -= a * chances[room]
                step[room, move] += a
                value[room] += 0.1 * (g - value[room])
        table += 0.3 * step
    return np.mean(wins[:200]), np.mean(wins[-80:])


@pytest.mark.parametrize("seed", [0, 1])
def test_shaping_speeds_a_critic_up_and_a_wrong_potential_does_no_harm(seed):
    lengths = np.arange(ROOMS, 0, -1)
    alone, led, misled = (actor_critic(x, seed) for x in (None, lengths, lengths[::-1]))
    assert led[0] > max(alone[0], misled[0]) + 0.15
    assert min(alone[1], led[1], misled[1]) > 0.9


# --- goals -------------------------------------------------------------------


def episode(*states, task="t", success=True):
    steps = tuple(
        Transition(state=a, action="x", next_state=b)
        for a, b in itertools.pairwise(states)
    )
    whole = Task(id=task, instruction="")
    return Episode(id="e", task=whole, transitions=steps, source="", success=success)


START = ("door closed", "lamp off", "bag holds a map", "dust")
END = ("door open", "lamp off", "bag holds a map and a coin")
GOALS = GoalPotential([episode(START, END)])
TASK = Task(id="t", instruction="")


def test_the_potential_of_a_goal_by_hand():
    # Two new facts and three lines that are gone (`dust`, and what they replace).
    # At the start: "door": 1 of 3 words, "bag holds a map (and a coin)": 4 of 7; none
    # is gone. A line of another object does not count.
    assert GOALS(TASK, START) == pytest.approx((1 / 3 + 4 / 7) / 5)
    assert GOALS(TASK, END) == 1.0
    assert GOALS(TASK, ("door open", *START[1:])) == pytest.approx((2 + 4 / 7) / 5)
    assert GOALS(TASK, ("box holds a map and a coin", *START)) == pytest.approx(
        GOALS(TASK, START)
    )


def test_the_nearest_of_several_ends_counts_and_lost_episodes_do_not():
    other = ("door broken", "lamp off", "bag holds a map", "dust")
    both = GoalPotential([episode(START, END), episode(START, other)])
    assert both(TASK, other) == 1.0 > GOALS(TASK, other)
    lost = GoalPotential([episode(START, END, success=False)])
    assert lost(TASK, END) == 0.0
    assert GOALS(Task(id="another", instruction=""), END) == 0.0


def test_an_episode_that_changes_nothing_is_no_goal():
    assert GoalPotential([episode(START, START)])(TASK, START) == 0.0


def test_the_goal_of_the_corridor_is_nearest_in_its_room():
    task = doubles.task(1, 3, 5)
    goals = GoalPotential([doubles.expert(task)])
    near = [goals(task, doubles.start_state(at, 3, 5)) for at in range(6)]
    assert near.index(max(near)) == 3
    assert near[0] == near[5]  # a number is equal or it is not


# --- settings ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -1.0}, "weight must be >= 0 and finite, got -1.0"),
        ({"weight": 1.0, "kind": "hope"}, r"kind must be one of \('plan', 'goal'\)"),
        ({"weight": 1.0, "decay": 1.0}, r"decay must be in \(0, 1\), got 1.0"),
        ({"kind": "goal"}, "weight is 0"),
        ({"weight": 1.0, "kind": "goal", "decay": 0.5}, "decay is about the lengths"),
    ],
)
def test_settings_say_what_is_wrong(settings, message):
    with pytest.raises(ValueError, match=message):
        PotentialConfig(**settings)


def test_it_is_off_by_default_and_a_dream_has_no_plans():
    assert not RewardConfig().potential.weight
    assert RewardConfig().dream_problem() is None
    plan = RewardConfig(potential=PotentialConfig(weight=0.5))
    assert plan.dense
    assert "potential.kind" in (plan.dream_problem() or "")
    goal = dataclasses.replace(plan.potential, kind="goal")
    assert RewardConfig(potential=goal).dream_problem() is None
