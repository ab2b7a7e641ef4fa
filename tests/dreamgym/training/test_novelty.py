"""Novel states are paid in the loop, and a room that draws lots holds nobody."""

import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from curriculum.sampler import pool_of
from dreamgym import training
from dreamgym.config.stages import TrainConfig
from dreamgym.envs.base import Step
from dreamgym.envs.vector import VectorEnv
from dreamgym.rewards.config import ComponentWeightConfig, NoveltyConfig, RewardConfig
from dreamgym.rewards.novelty import NoveltyReward
from dreamgym.training import TrainingState
from dreamgym.training.rollouts.groups import Rollouts
from dreamgym.training.rollouts.rewards import with_novelty
from tests.dreamgym.training.common import (
    CONFIG,
    Recorder,
    Tabular,
    learn,
    pair,
    updater,
)
from worldmodel.data.records import Episode, Task, Transition

ROOMS = (
    "hall",
    "kitchen",
    "cellar",
    "garden",
    "shed",
    "attic",
    "stairs",
    "tower",
    "roof",
)
TASK = Task(id="house", instruction="explore", initial_state=("room hall", "ticket 0"))


class House(VectorEnv):
    """Rooms in a row; the last one wins. In each, a machine draws tickets for ever."""

    def __init__(self, size, seed):
        self.size, self.max_steps, self.transitions = size, 11, 0
        self._rng = np.random.default_rng(seed)
        self._room, self._steps = [0] * size, [0] * size
        self._running = [False] * size

    def _state(self, slot, ticket):
        return (f"room {ROOMS[self._room[slot]]}", f"ticket {ticket}")

    def reset(self, *, options):
        out = [None] * self.size
        for i, task in enumerate(options["tasks"]):
            if task is not None and options["reset_mask"][i]:
                self._room[i], self._steps[i], self._running[i] = 0, 0, True
                out[i] = self._state(i, "0")
        return out

    def step(self, actions):
        out = [None] * self.size
        for i, action in enumerate(actions):
            if action is None or not self._running[i]:
                continue
            self._steps[i] += 1
            self.transitions += 1
            move = {"go on": 1, "go back": -1}.get(action, 0)
            self._room[i] = min(max(self._room[i] + move, 0), len(ROOMS) - 1)
            ticket = "0"
            if action == "draw":  # a number, and a word that nobody knows
                letters = self._rng.choice(list("aeioukrstvz"), 6)
                ticket = f"{self._rng.integers(10**6)} {''.join(letters)}"
            won = self._room[i] == len(ROOMS) - 1
            late = self._steps[i] >= self.max_steps
            self._running[i] = not (won or late)
            reward = {"goal": float(won)}
            out[i] = Step(self._state(i, ticket), reward, won, late and not won, won)
        return out


def collected():
    """Two walks through all rooms, whose words are then known."""
    states = [(f"room {room}", "ticket 0") for room in ROOMS]
    steps = tuple(
        Transition(state=a, action="go on", next_state=b)
        for a, b in itertools.pairwise(states)
    )
    return [
        Episode(id="e", task=TASK, transitions=steps, source="expert", success=True)
    ] * 2


def play(seed, config, monkeypatch):
    """Train in the house; return success and the share of draws at the end."""
    actions = ("go on", "go back", "draw", "wait")
    policy = Tabular(
        jnp.zeros((len(ROOMS), 4)), actions, lambda s: ROOMS.index(s[0][5:])
    )
    loop = dataclasses.replace(CONFIG, updates=14, tasks_per_update=2, group_size=8)
    recorder = Recorder()
    end = training.train(
        policy,
        House(16, seed),
        updater(),
        TrainingState(
            0,
            policy.take_updates(monkeypatch),
            pool_of([TASK], loop.curriculum),
            0,
            [],
            novelty=None if config is None else NoveltyReward(config, collected()),
        ),
        loop,
        seed=seed,
        recorder=recorder,
    )
    last = [x.action for t in recorder.seen[-1][1] for x in t.episode.transitions]
    success = [row["success"] for row in end.curve]
    return np.mean(success[-3:]), last.count("draw") / len(last), end


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, 1])
def test_novelty_leads_on_and_a_room_that_draws_lots_holds_nobody(seed, monkeypatch):
    alone, _, _ = play(seed, None, monkeypatch)
    led, draws, _ = play(seed, NoveltyConfig(weight=0.5), monkeypatch)
    held, held_draws, _ = play(
        seed, NoveltyConfig(weight=0.5, numbers=True), monkeypatch
    )
    assert alone < 0.1
    assert led > 0.8
    assert draws < 0.2
    assert held < 0.1
    assert held_draws > 0.6


def test_what_novelty_pays_is_learned_from_and_in_the_row(update_calls):
    novelty = NoveltyReward(NoveltyConfig(weight=0.5, numbers=True), [])
    rollouts = with_novelty(Rollouts(pair(), []), novelty)
    won, lost = rollouts.started
    rewards = [x.rewards for x in won.episode.transitions]
    # Every state is new; the fall leaves its room with another message alone.
    assert rewards == [{"coin": 0.0, "novelty": 0.5}, {"coin": 1.0, "novelty": 0.0}]
    assert [x.rewards["novelty"] for x in lost.episode.transitions] == [0.0]
    result = learn(rollouts.started, CONFIG)
    assert update_calls.examples[-1][0].columns["advantage"] == pytest.approx(
        (0.5 + 0.9) / 2
    )
    assert rollouts.reward_metrics == {"reward/novelty": 0.25}
    assert "reward/novelty" not in result.metrics  # of rollouts without it


def test_novelty_has_the_weight_of_its_name():
    novelty = NoveltyReward(NoveltyConfig(weight=0.5, numbers=True), [])
    weights = [ComponentWeightConfig(name="nov*", weight=0.5)]
    rollouts = with_novelty(Rollouts(pair(), []), novelty, weights)
    steps = rollouts.started[0].episode.transitions
    assert [x.rewards["novelty"] for x in steps] == [0.25, 0.0]
    assert rollouts.reward_metrics == {"reward/novelty": 0.125}


def test_a_dream_is_not_paid_for_what_it_invents():
    reward = RewardConfig(novelty=NoveltyConfig(weight=0.5))
    with pytest.raises(
        ValueError, match=r"reward.novelty.weight .* must be 0 .* got 0.5"
    ):
        TrainConfig(reward=reward)
    assert TrainConfig(reward=reward, environment="real")
    assert reward.dense
