"""A curriculum teaches sooner than none, and one of shuffled values does not.

Bandits as tasks, one softmax over arms each, REINFORCE with the group's mean. Most
tasks have no winning arm or no losing one; the rest can be learned. Every way of
choosing tasks plays the same number of rollouts with the same learner.
"""

import dataclasses

import numpy as np
import pytest

from curriculum.config import CurriculumConfig, ValueConfig
from curriculum.sampler import pool_of, task_weights, weights
from tests import doubles, helpers

ARMS, TASKS, GROUP, RATE = 6, 8, 8, 1.0
HOPELESS, TRIVIAL, LEARNABLE = 50, 50, 20
COUNT = HOPELESS + TRIVIAL + LEARNABLE
WON = 0.8
"""The mean success on what can be learned at which it is learned."""
NEVER_RETIRED = 10**6  # the weights alone are to be judged


def tasks(*, worded=False):
    base = doubles.task(0, 1, 2)
    words = ["drain the endless sea"] * HOPELESS + ["count to one"] * TRIVIAL
    words += ["open one of six doors"] * LEARNABLE
    return [
        dataclasses.replace(
            base,
            id=f"t{i}",
            family="f",
            instruction=f"{words[i]} {i}" if worded else base.instruction,
        )
        for i in range(COUNT)
    ]


class Learner:
    """A softmax over the arms of each task."""

    def __init__(self, rng):
        self.rng, self.logits = rng, np.zeros((COUNT, ARMS))
        self.pays = np.zeros((COUNT, ARMS), bool)
        self.pays[HOPELESS : HOPELESS + TRIVIAL] = True
        first = HOPELESS + TRIVIAL
        self.pays[np.arange(first, COUNT), rng.integers(0, ARMS, LEARNABLE)] = True

    def policy(self):
        p = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    def learned(self):
        return (self.policy() * self.pays).sum(axis=1)[-LEARNABLE:].mean()

    def play(self, task, rollouts, baseline=None):
        """A policy-gradient step on rollouts of one task; their successes."""
        p = self.policy()[task]
        arms = self.rng.choice(ARMS, rollouts, p=p)
        won = self.pays[task, arms]
        against = won.mean() if baseline is None else baseline
        grad = ((won - against)[:, None] * (np.eye(ARMS)[arms] - p)).mean(axis=0)
        self.logits[task] += RATE * grad
        return won


def rollouts_until_learned(seed, how, *, updates=1500):
    """GRPO's groups; `how`: values, shuffled values, or uniform draws."""
    rng = np.random.default_rng(seed)
    learner = Learner(np.random.default_rng(seed))
    config = CurriculumConfig(retire_after=NEVER_RETIRED)
    pool = pool_of(tasks(), config)
    entries = pool.active()
    for update in range(updates):
        if learner.learned() >= WON:
            return update * TASKS * GROUP
        value = task_weights(pool, entries, config)
        if how == "shuffled":
            value = rng.permutation(value)
        p = weights(np.ones(COUNT) if how == "uniform" else value, config.uniform_share)
        for i in rng.choice(COUNT, TASKS, replace=False, p=p):
            won = learner.play(i, GROUP)
            helpers.record(pool, entries[i].task.id, won.tolist(), update)
    return updates * TASKS * GROUP


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_values_teach_sooner_and_shuffled_values_do_not(seed):
    uniform = rollouts_until_learned(seed, "uniform")
    assert uniform < 1500 * TASKS * GROUP  # it can be learned without
    assert rollouts_until_learned(seed, "value") < 0.6 * uniform
    assert rollouts_until_learned(seed, "shuffled") > 0.75 * uniform


def single_rollouts_until_learned(seed, cluster, *, updates=400, batch=64):
    """PPO's: one rollout a task, judged against the success expected of the task."""
    rng = np.random.default_rng(seed)
    learner = Learner(np.random.default_rng(seed))
    config = CurriculumConfig(
        retire_after=NEVER_RETIRED, value=ValueConfig(pooling=cluster, clusters=3)
    )
    pool = pool_of(tasks(worded=True), config)
    entries = pool.active()
    won, played = np.ones(COUNT), np.full(COUNT, 2)
    for update in range(updates):
        if learner.learned() >= WON:
            return update * batch
        p = weights(task_weights(pool, entries, config), config.uniform_share)
        rows = []
        for i in rng.choice(COUNT, batch, p=p):
            result = learner.play(i, 1, baseline=won[i] / played[i])
            won[i], played[i] = won[i] + result.sum(), played[i] + 1
            rows.append((entries[i].task.id, result.tolist()))
        pool.record_batch(rows, update)
    return updates * batch


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_single_rollouts_teach_sooner_with_the_values_of_clusters(seed):
    alone = single_rollouts_until_learned(seed, "task")
    assert alone < 400 * 64
    assert single_rollouts_until_learned(seed, "lexical") < 0.4 * alone
    # One cluster of all tasks has one value for all: as good as none.
    assert single_rollouts_until_learned(seed, "family") > 0.5 * alone
